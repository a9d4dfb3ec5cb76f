// SPDX-License-Identifier: Apache-2.0
#include "examples/gpt/options.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/flags/flag.h"
#include "examples/common/flags.h"
#include "tensor/error.h"

template <class T>
using OptionalFlag = std::optional<T>;  // unset: the preset's value

ABSL_FLAG(std::string, preset, "tiny", "tiny (0.8 M parameters, learns in two minutes) or gpt2-124m");
ABSL_FLAG(OptionalFlag<int64_t>, n_layer, std::nullopt, "blocks; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, n_embd, std::nullopt, "width; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, n_head, std::nullopt, "attention heads, a divisor of n_embd; default: the preset's");
ABSL_FLAG(std::string, dtype, "fp32", "of the parameters: fp32, bf16 (with fp32 masters) or fp64");
ABSL_FLAG(double, dropout, 0, "share of activations set to 0 in training");
ABSL_FLAG(bool, recompute, false, "keep one block's activations at a time and compute the others again");

ABSL_FLAG(std::string, data, "", "text to learn: a file, or a folder of which all text files are read");
ABSL_FLAG(OptionalFlag<int64_t>, seq_len, std::nullopt, "tokens in a sequence; default: the preset's 64");
ABSL_FLAG(OptionalFlag<int64_t>, batch_size, std::nullopt,
          "sequences in a micro-batch; default: the preset's (tiny 16, gpt2-124m 4)");
ABSL_FLAG(int64_t, accumulation_steps, 1, "micro-batches in an update");

ABSL_FLAG(OptionalFlag<double>, max_minutes, std::nullopt,
          "end after this time; default: 2, or no limit with --max_steps");
ABSL_FLAG(OptionalFlag<int64_t>, max_steps, std::nullopt, "end after this many updates; default: no limit");
ABSL_FLAG(uint64_t, seed, 0, "of weights, order, dropout and sample; a run of --max_steps repeats to the bit");

ABSL_FLAG(OptionalFlag<double>, lr, std::nullopt,
          "highest learning rate, which falls to a tenth; default: the preset's (tiny 3.5e-3, gpt2-124m 6e-4)");
ABSL_FLAG(int64_t, warmup_steps, 0, "updates in which the rate rises; 0: the first 5 % of the run");
ABSL_FLAG(double, weight_decay, 0.1, "AdamW's, of matrices only");
ABSL_FLAG(double, adam_beta1, 0.9, "AdamW's first moment");
ABSL_FLAG(double, adam_beta2, 0.99, "AdamW's second moment");
ABSL_FLAG(double, gradient_clipping, 1, "largest norm of the whole gradient; 0: no clipping");

ABSL_FLAG(int64_t, eval_every, 0, "updates between validations; 0: six in the run");
ABSL_FLAG(double, validation_fraction, 0.1, "the end of the text that is not learned but predicted");
ABSL_FLAG(int64_t, validation_tokens, 32768, "of it, tokens that a validation uses: the same each time");

ABSL_FLAG(int64_t, sample_tokens, 400, "length of the text at the end; 0: none");
ABSL_FLAG(std::string, prompt, "", "what that text goes on from; default: the first words of the validation text");
ABSL_FLAG(double, temperature, 0.8, "of the sample: 0 takes the likeliest token, 1 follows the model");
ABSL_FLAG(int64_t, top_k, 0, "sample from the k likeliest tokens; 0: all");
ABSL_FLAG(double, top_p, 0.95, "sample from the likeliest tokens that sum to p");

namespace tessera::examples {
namespace {

constexpr const char* kUsage =
    "trains a GPT-2 on the bytes of a text, shows how well it predicts text that it has not seen, and lets it write.\n"
    "For example: gpt --data book.txt --max_minutes 10";

const std::vector<FlagGroup>& Groups() {
  static const std::vector<FlagGroup> kGroups = {
      {"Model", {"preset", "n_layer", "n_embd", "n_head", "dtype", "dropout", "recompute"}},
      {"Data", {"data", "seq_len", "batch_size", "accumulation_steps"}},
      {"Run", {"max_minutes", "max_steps", "seed"}},
      {"Optimizer", {"lr", "warmup_steps", "weight_decay", "adam_beta1", "adam_beta2", "gradient_clipping"}},
      {"Validation", {"eval_every", "validation_fraction", "validation_tokens"}},
      {"Sample", {"sample_tokens", "prompt", "temperature", "top_k", "top_p"}},
  };
  return kGroups;
}

template <class T>
T Value(const absl::Flag<T>& flag) {
  return absl::GetFlag(flag);
}

void Require(bool legal, const char* flag, double value, const char* expected) {
  if (!legal) throw Error(Str("--", flag, " is ", value, ", expected ", expected));
}

DType DTypeFromFlag() {
  const std::string name = Value(FLAGS_dtype);
  for (const auto& [known, dtype] :
       {std::pair("fp32", DType::kF32), std::pair("bf16", DType::kBF16), std::pair("fp64", DType::kF64)}) {
    if (name == known) return dtype;
  }
  throw Error(Str("--dtype is \"", name, "\", expected fp32, bf16 or fp64"));
}

void ApplyPreset(GptOptions* options) {
  options->preset = Value(FLAGS_preset);
  options->seq_len = 64;
  if (options->preset == "tiny") {
    options->model = nn::GptConfig::Tiny();
    options->batch_size = 16;
    options->schedule.peak_lr = 3.5e-3;
  } else if (options->preset == "gpt2-124m") {
    options->model = nn::GptConfig::Gpt2_124M();
    options->batch_size = 4;
    options->schedule.peak_lr = 6e-4;
  } else {
    throw Error(Str("--preset is \"", options->preset, "\", expected tiny or gpt2-124m"));
  }
}

Budget BudgetFromFlags() {
  const auto steps = Value(FLAGS_max_steps);
  const auto minutes = Value(FLAGS_max_minutes);
  if (steps) Require(*steps >= 1, "max_steps", static_cast<double>(*steps), "1 or more");
  if (minutes) Require(*minutes > 0 && *minutes < 1e6, "max_minutes", *minutes, "a number above 0");
  return {.max_steps = steps.value_or(0), .max_seconds = 60 * minutes.value_or(steps ? 0 : 2)};
}

void Check(const GptOptions& options) {
  const auto at_least = [](const char* flag, int64_t value, int64_t least) {
    if (value < least) throw Error(Str("--", flag, " is ", value, ", expected ", least, " or more"));
  };
  at_least("batch_size", options.batch_size, 1);
  at_least("accumulation_steps", options.accumulation_steps, 1);
  at_least("seq_len", options.seq_len, 1);
  at_least("warmup_steps", options.schedule.warmup_steps, 0);
  at_least("eval_every", options.eval_every, 0);
  at_least("validation_tokens", options.validation_tokens, 1);
  at_least("sample_tokens", options.sample_tokens, 0);
  Require(options.gradient_clipping >= 0, "gradient_clipping", options.gradient_clipping, "0 (none) or more");
  Require(options.validation_fraction > 0 && options.validation_fraction < 1, "validation_fraction",
          options.validation_fraction, "a number between 0 and 1");
  Require(options.schedule.peak_lr > 0, "lr", options.schedule.peak_lr, "a number above 0");
  options.model.Validate();
  options.sampling.Validate();
  if (options.data.empty()) throw Error("--data is missing: a text file, or a folder with text files");
}

}  // namespace

GptOptions OptionsFromFlags(int argc, char** argv) {
  ParseFlags(argc, argv, kUsage, Groups());
  GptOptions options;
  options.program = argv[0];
  ApplyPreset(&options);
  options.data = Value(FLAGS_data);
  options.dtype = DTypeFromFlag();
  options.seed = Value(FLAGS_seed);
  options.batch_size = Value(FLAGS_batch_size).value_or(options.batch_size);
  options.accumulation_steps = Value(FLAGS_accumulation_steps);
  options.seq_len = Value(FLAGS_seq_len).value_or(options.seq_len);
  options.model.n_positions = std::max(options.model.n_positions, options.seq_len);
  options.model.n_layer = Value(FLAGS_n_layer).value_or(options.model.n_layer);
  options.model.n_embd = Value(FLAGS_n_embd).value_or(options.model.n_embd);
  options.model.n_head = Value(FLAGS_n_head).value_or(options.model.n_head);
  options.model.dropout = Value(FLAGS_dropout);
  options.model.recompute = Value(FLAGS_recompute);
  options.budget = BudgetFromFlags();
  options.schedule.peak_lr = Value(FLAGS_lr).value_or(options.schedule.peak_lr);
  options.schedule.warmup_steps = Value(FLAGS_warmup_steps);
  options.adam = {.lr = options.schedule.peak_lr,
                  .beta1 = Value(FLAGS_adam_beta1),
                  .beta2 = Value(FLAGS_adam_beta2),
                  .weight_decay = Value(FLAGS_weight_decay)};
  options.gradient_clipping = Value(FLAGS_gradient_clipping);
  options.eval_every = Value(FLAGS_eval_every);
  options.validation_fraction = Value(FLAGS_validation_fraction);
  options.validation_tokens = Value(FLAGS_validation_tokens);
  options.sample_tokens = Value(FLAGS_sample_tokens);
  options.prompt = Value(FLAGS_prompt);
  options.sampling = {
      .temperature = Value(FLAGS_temperature), .top_k = Value(FLAGS_top_k), .top_p = Value(FLAGS_top_p)};
  Check(options);
  return options;
}

}  // namespace tessera::examples
