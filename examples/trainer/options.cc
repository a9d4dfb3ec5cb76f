// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer/options.h"

#include <algorithm>
#include <ctime>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/flags/flag.h"
#include "examples/common/flags.h"
#include "examples/common/format.h"
#include "examples/common/run_folder.h"
#include "examples/trainer/run_config.h"
#include "examples/trainer/strategy.h"
#include "examples/trainer/validation.h"
#include "optim/optimizer.h"
#include "tensor/error.h"
#include "zero/rank.h"

template <class T>
using OptionalFlag = std::optional<T>;  // unset: the config's value, else the preset's

ABSL_FLAG(OptionalFlag<std::string>, dtype, std::nullopt,
          "of weights and computing: fp32, bf16 or fp16 (with fp32 masters) or fp64; default: the config's, else fp32");

ABSL_FLAG(std::string, config, "", "a DeepSpeed config file; a flag that disagrees with it is an error");
ABSL_FLAG(int32_t, num_gpus, 1, "ranks, as threads of this process; under mpirun its processes are the ranks");
ABSL_FLAG(
    OptionalFlag<int64_t>, zero_stage, std::nullopt,
    "0: everything on every rank; 1: optimizer states are sharded; 2: gradients too; 3: weights too; default: the "
    "config's, else 0");
ABSL_FLAG(OptionalFlag<std::string>, strategy, std::nullopt,
          "the stage by the name that other trainers give it: ddp, deepspeed_stage_1, _2, _3 or zero1, zero2, zero3");
ABSL_FLAG(OptionalFlag<int64_t>, stage3_param_persistence_threshold, std::nullopt,
          "parameters of at most so many elements stay gathered at stage 3; default: the config's, else the preset's "
          "(tiny 0, others 100000)");

ABSL_FLAG(std::string, data, "", "text to learn: a file, or a folder of which all text files are read");
ABSL_FLAG(int64_t, seq_len, 64, "tokens in a sequence");
ABSL_FLAG(OptionalFlag<int64_t>, batch_size, std::nullopt,
          "sequences in one rank's micro-batch; default: the config's, else the preset's batch over the ranks");
ABSL_FLAG(OptionalFlag<int64_t>, gradient_accumulation_steps, std::nullopt,
          "micro-batches in an update; default: the config's, else 1");

ABSL_FLAG(OptionalFlag<double>, max_minutes, std::nullopt,
          "end after this time; default: 2, or no limit with --max_steps");
ABSL_FLAG(OptionalFlag<int64_t>, max_steps, std::nullopt, "end after this many updates; default: no limit");
ABSL_FLAG(uint64_t, seed, 0, "of weights, order, dropout and sample; a run of --max_steps repeats to the bit");

ABSL_FLAG(bool, dry_run, false, "show the start table with the bytes that each rank will hold, make and train nothing");
ABSL_FLAG(int64_t, fast_dev_run, 0,
          "this many steps and validation batches and no run folder, to see that all works; other limits do not count");
ABSL_FLAG(int64_t, overfit_batches, 0,
          "train on the batches of the first so many steps again and again: a model that can learn will know them");
ABSL_FLAG(std::string, run_dir, "runs/<date-time>_<model>",
          "folder for metrics, config and report.html; a counter is added to one that is in use; --norun_dir: none");

ABSL_FLAG(OptionalFlag<double>, lr, std::nullopt, "highest learning rate; default: the config's, else the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, warmup_steps, std::nullopt,
          "updates in which the rate rises before its cosine, if the config has no scheduler; default: the first 5 %");
ABSL_FLAG(OptionalFlag<double>, weight_decay, std::nullopt,
          "AdamW's, of matrices only, if the config has no optimizer; default: 0.1");
ABSL_FLAG(OptionalFlag<double>, adam_beta1, std::nullopt, "AdamW's first moment; default: 0.9");
ABSL_FLAG(OptionalFlag<double>, adam_beta2, std::nullopt, "AdamW's second moment; default: 0.99");
ABSL_FLAG(OptionalFlag<double>, gradient_clipping, std::nullopt,
          "largest norm of the whole gradient; 0: no clipping; default: the config's, else 1");

ABSL_FLAG(int64_t, eval_every, 0, "updates between validations; 0: six in the run");
ABSL_FLAG(double, validation_fraction, 0.1, "the end of the text that is not learned but predicted");
ABSL_FLAG(int64_t, validation_tokens, 32768, "of it, tokens that a validation uses: the same each time");

ABSL_FLAG(int64_t, sample_tokens, 400, "length of the text at the end; 0: none");
ABSL_FLAG(int64_t, sample_every, 0, "updates between two samples; 0: one at the end");
ABSL_FLAG(std::string, prompt, "", "what that text goes on from; default: the first words of the validation text");
ABSL_FLAG(double, temperature, 0.8, "of the sample: 0 takes the likeliest token, 1 follows the model");
ABSL_FLAG(int64_t, top_k, 0, "sample from the k likeliest tokens; 0: all");
ABSL_FLAG(double, top_p, 0.95, "sample from the likeliest tokens that sum to p");

namespace tessera::examples {
namespace {

std::vector<FlagGroup> Groups(const Program& program) {
  FlagGroup model{"Model", program.model_flags};
  model.flags.push_back("dtype");
  return {
      std::move(model),
      {"Ranks and ZeRO", {"config", "num_gpus", "zero_stage", "strategy", "stage3_param_persistence_threshold"}},
      {"Data", {"data", "seq_len", "batch_size", "gradient_accumulation_steps"}},
      {"Run", {"max_minutes", "max_steps", "seed", "run_dir", "dry_run", "fast_dev_run", "overfit_batches"}},
      {"Optimizer", {"lr", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "gradient_clipping"}},
      {"Validation", {"eval_every", "validation_fraction", "validation_tokens"}},
      {"Sample", {"sample_tokens", "sample_every", "prompt", "temperature", "top_k", "top_p"}},
  };
}

template <class T>
T Value(const absl::Flag<T>& flag) {
  return absl::GetFlag(flag);
}

void Require(bool legal, const char* flag, double value, const char* expected) {
  if (!legal) throw Error(Str("--", flag, " is ", value, ", expected ", expected));
}

void RequireAtLeast(const char* flag, const std::optional<int64_t>& value, int64_t least) {
  if (value && *value < least) throw Error(Str("--", flag, " is ", *value, ", expected ", least, " or more"));
}

Budget BudgetFromFlags() {
  if (const int64_t steps = Value(FLAGS_fast_dev_run); steps > 0) return {.max_steps = steps};
  const auto steps = Value(FLAGS_max_steps);
  const auto minutes = Value(FLAGS_max_minutes);
  RequireAtLeast("max_steps", steps, 1);
  if (minutes) Require(*minutes > 0 && *minutes < 1e6, "max_minutes", *minutes, "a number above 0");
  return {.max_steps = steps.value_or(0), .max_seconds = 60 * minutes.value_or(steps ? 0 : 2)};
}

ConfigFlags CheckedConfigFlags() {
  ConfigFlags flags{.zero_stage = Value(FLAGS_zero_stage),
                    .batch_size = Value(FLAGS_batch_size),
                    .gradient_accumulation_steps = Value(FLAGS_gradient_accumulation_steps),
                    .gradient_clipping = Value(FLAGS_gradient_clipping),
                    .persistence_threshold = Value(FLAGS_stage3_param_persistence_threshold),
                    .dtype = Value(FLAGS_dtype),
                    .lr = Value(FLAGS_lr),
                    .weight_decay = Value(FLAGS_weight_decay),
                    .adam_beta1 = Value(FLAGS_adam_beta1),
                    .adam_beta2 = Value(FLAGS_adam_beta2),
                    .warmup_steps = Value(FLAGS_warmup_steps)};
  if (const auto stage = flags.zero_stage; stage && (*stage < 0 || *stage > 3)) {
    throw Error(Str("--zero_stage is ", *stage, ", expected 0, 1, 2 or 3"));
  }
  if (const auto strategy = Value(FLAGS_strategy)) {
    const int64_t stage = StageOfStrategy(*strategy);
    if (flags.zero_stage.value_or(stage) != stage) {
      throw Error(Str("--strategy ", *strategy, " is stage ", stage, ", but --zero_stage is ", *flags.zero_stage,
                      "; make them agree, or drop one"));
    }
    flags.zero_stage = stage;
    flags.stage_flag = Str("strategy=", *strategy);
  }
  RequireAtLeast("batch_size", flags.batch_size, 1);
  RequireAtLeast("gradient_accumulation_steps", flags.gradient_accumulation_steps, 1);
  RequireAtLeast("stage3_param_persistence_threshold", flags.persistence_threshold, 0);
  RequireAtLeast("warmup_steps", flags.warmup_steps, 0);
  if (flags.gradient_clipping) {
    Require(*flags.gradient_clipping >= 0, "gradient_clipping", *flags.gradient_clipping, "0 (none) or more");
  }
  if (flags.lr) Require(*flags.lr > 0, "lr", *flags.lr, "a number above 0");
  return flags;
}

void CheckOwnFlags(const TrainerOptions& options) {
  if (options.ranks < 1) throw Error(Str("--num_gpus is ", options.ranks, ", expected 1 or more"));
  RequireAtLeast("seq_len", options.seq_len, 1);
  RequireAtLeast("eval_every", options.eval_every, 0);
  RequireAtLeast("validation_tokens", options.validation_tokens, 1);
  RequireAtLeast("sample_tokens", options.sample_tokens, 0);
  RequireAtLeast("sample_every", options.sample_every, 0);
  RequireAtLeast("fast_dev_run", options.fast_dev_run, 0);
  RequireAtLeast("overfit_batches", options.overfit_batches, 0);
  Require(options.validation_fraction > 0 && options.validation_fraction < 1, "validation_fraction",
          options.validation_fraction, "a number between 0 and 1");
  options.sampling.Validate();
  if (options.data.empty()) throw Error("--data is missing: a text file, or a folder with text files");
}

// The command line as one would type it again. `limits`: with --max_minutes and --max_steps; without, for the line that
// says how to train on.
std::string Command(const std::vector<char*>& arguments, bool limits) {
  std::string out = ShellQuoted(arguments[0]);
  for (size_t i = 1; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    const std::string_view name = argument.substr(std::min(argument.find_first_not_of('-'), argument.size()));
    if (!limits && (name == "max_minutes" || name == "max_steps")) {
      ++i;
    } else if (limits || (!name.starts_with("max_minutes=") && !name.starts_with("max_steps="))) {
      out += Str(" ", ShellQuoted(argument));
    }
  }
  return out;
}

// A text flag has no "no" form of its own.
std::vector<char*> WithNoRunFolderSpelledOut(int argc, char** argv) {
  static char none[] = "--run_dir=";
  std::vector<char*> arguments(argv, argv + argc);
  for (char*& argument : arguments) {
    if (std::string_view(argument) == "--norun_dir" || std::string_view(argument) == "-norun_dir") argument = none;
  }
  return arguments;
}

// A try of all parts: as few of everything as shows a mistake.
void ShortenToTry(TrainerOptions* options) {
  options->run_folder.clear();
  options->eval_every = options->fast_dev_run;
  options->validation_tokens = std::min(options->validation_tokens, options->fast_dev_run * kValidationBatchTokens);
  options->sample_tokens = std::min<int64_t>(options->sample_tokens, 40);
}

std::string RunFolder(const ModelChoice& model) {
  const std::string given = Value(FLAGS_run_dir);
  return given.find('<') == std::string::npos ? given : DefaultRunFolder(model.name, std::time(nullptr));
}

}  // namespace

TrainerOptions OptionsFromFlags(int argc, char** argv, const Program& program) {
  std::vector<char*> arguments = WithNoRunFolderSpelledOut(argc, argv);
  ParseFlags(argc, arguments.data(), program.usage, Groups(program));
  TrainerOptions options;
  options.program = program.name;
  options.command = Command({argv, argv + argc}, /*limits=*/false);
  options.full_command = Command({argv, argv + argc}, /*limits=*/true);
  options.config_path = Value(FLAGS_config);
  options.ranks = Value(FLAGS_num_gpus);
  options.data = Value(FLAGS_data);
  options.seq_len = Value(FLAGS_seq_len);
  options.seed = Value(FLAGS_seed);
  options.budget = BudgetFromFlags();
  options.dry_run = Value(FLAGS_dry_run);
  options.fast_dev_run = Value(FLAGS_fast_dev_run);
  options.overfit_batches = Value(FLAGS_overfit_batches);
  options.sample_every = Value(FLAGS_sample_every);
  options.eval_every = Value(FLAGS_eval_every);
  options.validation_fraction = Value(FLAGS_validation_fraction);
  options.validation_tokens = Value(FLAGS_validation_tokens);
  options.sample_tokens = Value(FLAGS_sample_tokens);
  options.prompt = Value(FLAGS_prompt);
  options.sampling = {
      .temperature = Value(FLAGS_temperature), .top_k = Value(FLAGS_top_k), .top_p = Value(FLAGS_top_p)};
  CheckOwnFlags(options);
  const absl::StatusOr<zero::World> world = zero::FindWorld(options.ranks);
  if (!world.ok()) throw Error(std::string(world.status().message()));
  options.ranks = world->size;
  options.ranks_are = world->ranks_are;

  const ConfigFlags flags = CheckedConfigFlags();
  options.model = program.choose(options.seq_len);
  options.run_folder = RunFolder(options.model);
  if (options.fast_dev_run > 0) ShortenToTry(&options);
  options.config = RunConfig(options.config_path, flags,
                             {.global_batch = options.model.global_batch,
                              .lr = options.model.lr,
                              .persistence_threshold = options.model.persistence_threshold,
                              .hidden_size = options.model.hidden_size,
                              .max_steps = options.budget.max_steps},
                             options.ranks);
  const zero::OptimizerConfig& optimizer = options.config.optimizer;
  options.schedule.peak_lr = optim::Optimizer::Create(optimizer.type, optimizer.params)->start_values().lr;
  options.schedule.warmup_steps = flags.warmup_steps.value_or(0);
  return options;
}

}  // namespace tessera::examples
