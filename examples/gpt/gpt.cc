// SPDX-License-Identifier: Apache-2.0
// Trains a GPT-2 on the bytes of a text with a plain loop: a tape, backward, an optimizer over the resident parameters.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/loss.h"
#include "examples/common/format.h"
#include "examples/common/progress.h"
#include "examples/common/stop.h"
#include "examples/gpt/options.h"
#include "io/batch_loader.h"
#include "io/text.h"
#include "nn/resident_manager.h"
#include "optim/plain_optimizer.h"
#include "tensor/context.h"
#include "tensor/cpu_isa.h"
#include "tensor/thread_pool.h"

namespace tessera::examples {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// The start of a text from one blank to another, or as it is when it has no blanks.
std::vector<int64_t> FirstWords(const io::TokenDataset& text) {
  std::vector<int32_t> sample(static_cast<size_t>(text.sequence_tokens()) + 1);
  text.CopySample(0, sample);
  const auto is_blank = [](int32_t token) { return token == ' ' || token == '\n'; };
  auto begin = std::find_if(sample.begin(), sample.end(), is_blank);
  auto end = std::find_if(sample.rbegin(), sample.rend(), is_blank).base();
  if (end - begin < 8) return {sample.begin(), sample.end()};
  return {begin + 1, end};
}

class Trainer {
 public:
  Trainer(const GptOptions& options, io::TextDatasets text);
  int Run();

 private:
  void ShowStart() const;
  void TrainOneStep();
  StepReport Report() const;
  bool IsTimeToEvaluate() const;
  double Evaluate();
  void ReportSkippedStep();
  void ShowSample();
  void ShowSummary() const;
  double Elapsed() const { return SecondsSince(start_); }
  double Fraction() const { return options_.budget.Fraction(steps_, Elapsed()); }

  const GptOptions options_;
  const io::TextDatasets text_;
  const Terminal terminal_ = Terminal::Of(stdout);
  nn::Gpt model_;
  nn::ResidentManager params_;
  optim::PlainOptimizer optimizer_;
  std::unique_ptr<io::BatchLoader> loader_;
  Progress progress_{stdout, terminal_};

  Clock::time_point start_;
  int64_t steps_ = 0;
  double lr_ = 0;
  struct Step {
    double loss, seconds;
  };
  std::deque<Step> recent_;  // the last few, for the step line
  double training_s_ = 0;    // without the first step and validations
  int64_t evaluations_ = 0;
  int64_t last_evaluated_step_ = -1;
  double validation_loss_ = std::numeric_limits<double>::infinity();
  double best_loss_ = std::numeric_limits<double>::infinity();
  int64_t best_step_ = 0;
  int skipped_in_a_row_ = 0;
};

Trainer::Trainer(const GptOptions& options, io::TextDatasets text)
    : options_(options),
      text_(std::move(text)),
      model_(options.model),
      params_(model_, {.dtype = options.dtype, .seed = options.seed}),
      optimizer_(optim::Optimizer::Create(options.adam), params_.ranges()) {
  auto loader =
      io::BatchLoader::Create(text_.train, {.batch_size = options.batch_size, .order = {.seed = options.seed}});
  if (!loader.ok()) throw Error(std::string(loader.status().message()));
  loader_ = *std::move(loader);
}

int Trainer::Run() {
  ShowStart();
  const StopRequest stop;
  start_ = Clock::now();
  Evaluate();
  while (!stop.requested() && Fraction() < 1) {
    TrainOneStep();
    progress_.Step(Report());
    if (!optimizer_.was_step_applied()) ReportSkippedStep();
    if (IsTimeToEvaluate()) Evaluate();
  }
  if (stop.requested()) progress_.Print("stopped: one last validation and a sample; Ctrl-C again ends at once");
  progress_.Finish();
  if (last_evaluated_step_ != steps_) Evaluate();
  ShowSample();
  ShowSummary();
  return 0;
}

void Trainer::TrainOneStep() {
  const Clock::time_point begin = Clock::now();
  lr_ = options_.schedule.Lr(steps_, Fraction());
  double loss_sum = 0;
  for (int64_t micro = 0; micro < options_.accumulation_steps; ++micro) {
    CurrentContext().BeginMicroStep(steps_, micro);
    const io::Batch batch = *loader_->Next();
    Tape tape;
    const Loss loss = model_(batch.ids, batch.targets);
    Backward(loss);
    loss_sum += loss.Mean();
  }
  const auto accumulated = static_cast<double>(options_.accumulation_steps);
  optimizer_.SetLr(lr_);
  optimizer_.Step(params_.FinishGradients(), {.max_grad_norm = options_.gradient_clipping, .loss_weight = accumulated});
  ++steps_;

  const double seconds = SecondsSince(begin);
  recent_.push_back({loss_sum / accumulated, seconds});
  if (recent_.size() > 20) recent_.pop_front();
  if (steps_ > 1) training_s_ += seconds;
}

// Loss and speed are means over the last steps, for single ones jump about.
StepReport Trainer::Report() const {
  double loss = 0, seconds = 0;
  for (const Step& step : recent_) {
    loss += step.loss / static_cast<double>(recent_.size());
    seconds += step.seconds / static_cast<double>(recent_.size());
  }
  return {.step = steps_,
          .max_steps = options_.budget.max_steps,
          .loss = loss,
          .grad_norm = optimizer_.grad_norm(),
          .lr = lr_,
          .tokens_per_s = static_cast<double>(options_.step_tokens()) / seconds,
          .step_ms = 1000 * seconds,
          .elapsed_s = Elapsed(),
          .fraction = Fraction()};
}

bool Trainer::IsTimeToEvaluate() const {
  if (options_.eval_every > 0) return steps_ % options_.eval_every == 0;
  const double fraction = Fraction();  // the last of the six is the one after the loop
  return fraction < 1 && fraction * 6 >= static_cast<double>(evaluations_);
}

// The mean over the same samples each time, evenly spread over the validation text.
double Trainer::Evaluate() {
  const int64_t wanted = std::max<int64_t>(options_.validation_tokens / options_.seq_len, 1);
  const int64_t samples = std::min(wanted, text_.validation.size());
  const int64_t stride = text_.validation.size() / samples;
  const int64_t length = options_.seq_len;
  model_.SetTraining(false);
  double sum = 0, weight = 0;
  std::vector<int32_t> sample(static_cast<size_t>(length) + 1);
  for (int64_t first = 0; first < samples; first += options_.batch_size) {
    const int64_t count = std::min(options_.batch_size, samples - first);
    std::vector<int32_t> ids, targets;
    for (int64_t i = first; i < first + count; ++i) {
      text_.validation.CopySample(i * stride, sample);
      ids.insert(ids.end(), sample.begin(), sample.end() - 1);
      targets.insert(targets.end(), sample.begin() + 1, sample.end());
    }
    const Loss loss = model_(Tensor::From(ids, {count, length}), Tensor::From(targets, {count, length}));
    sum += loss.sum.Item();
    weight += loss.weight.Item();
  }
  model_.SetTraining(true);
  validation_loss_ = sum / weight;
  const bool is_best = validation_loss_ < best_loss_;
  if (is_best) {
    best_loss_ = validation_loss_;
    best_step_ = steps_;
  }
  ++evaluations_;
  last_evaluated_step_ = steps_;
  progress_.Print(ValidationLine(steps_, validation_loss_, is_best && steps_ > 0));
  return validation_loss_;
}

void Trainer::ReportSkippedStep() {
  std::string where = "some parameter";
  for (nn::Parameter* parameter : model_.parameters()) {
    const std::vector<double> gradient = params_.Gradient(*parameter).ToVector();
    if (std::all_of(gradient.begin(), gradient.end(), [](double g) { return std::isfinite(g); })) continue;
    where = parameter->path();
    break;
  }
  const std::string message = Str("step ", steps_, " | update skipped: the gradient of ", where, " is not finite");
  progress_.Print(message);
  if (++skipped_in_a_row_ == 10) throw Error(Str(message, ", as in the 9 steps before; try a lower --lr"));
}

void Trainer::ShowSample() {
  if (options_.sample_tokens == 0) return;
  std::vector<int64_t> prompt;
  for (char c : options_.prompt) prompt.push_back(static_cast<unsigned char>(c));
  if (prompt.empty()) prompt = FirstWords(text_.validation);
  model_.SetTraining(false);
  const auto logits = [&](const Tensor& ids) { return model_(ids); };
  const std::vector<int64_t> tokens = nn::Generate(logits, prompt,
                                                   {.new_tokens = options_.sample_tokens,
                                                    .positions = options_.model.n_positions,
                                                    .sampling = options_.sampling,
                                                    .seed = options_.seed});
  const int columns = terminal_.text_columns();
  std::printf("\nSample, after \"%s\"\n", FitColumns(Printable(prompt), columns - 20).c_str());
  for (const std::string& line : Wrap(Printable(tokens), columns - 2)) std::printf("  %s\n", line.c_str());
}

void Trainer::ShowStart() const {
  const nn::GptConfig& model = options_.model;
  const CosineSchedule& schedule = options_.schedule;
  const AllocatorStats memory = CpuAllocator().stats();
  const std::string warmup = schedule.warmup_steps > 0 ? Str(schedule.warmup_steps, " steps")
                                                       : Str(Short(100 * schedule.warmup_fraction), " % of the run");
  const std::string clipping = options_.gradient_clipping > 0 ? Short(options_.gradient_clipping) : "none";
  std::string limit = options_.budget.max_seconds > 0 ? Duration(options_.budget.max_seconds) + " minutes" : "";
  if (options_.budget.max_steps > 0) {
    limit = Str(limit, limit.empty() ? "" : " or ", WithCommas(options_.budget.max_steps), " steps");
  }
  const std::vector<Row> rows = {
      {"model", Str("GPT-2, ", model.n_layer, " layers, ", model.n_embd, " wide, ", model.n_head, " heads, context ",
                    model.n_positions, ", vocabulary ", WithCommas(model.vocab_size), " (tokens are bytes)")},
      {"parameters", Str(WithCommas(model_.ParameterCount()), ", all trained")},
      {"data", Str(options_.data, ": ", Bytes(text_.train.token_count() + text_.validation.token_count()), " in ",
                   text_.corpus.file_count, text_.corpus.file_count == 1 ? " file, " : " files, ",
                   WithCommas(text_.train.size()), " training and ", WithCommas(text_.validation.size()),
                   " validation samples of ", options_.seq_len, " tokens")},
      {"batch",
       Str("global ", options_.batch_size * options_.accumulation_steps, " = micro ", options_.batch_size, " × accum ",
           options_.accumulation_steps, " × ranks 1 (", WithCommas(options_.step_tokens()), " tokens/step)")},
      {"optimizer", Str("AdamW, betas ", options_.adam.beta1, " and ", options_.adam.beta2, ", weight decay ",
                        options_.adam.weight_decay, ", clipping ", clipping)},
      {"schedule", Str("lr ", Short(schedule.peak_lr), " after ", warmup, ", then a cosine to ",
                       Short(schedule.peak_lr * schedule.final_ratio))},
      {"limit", Str(limit, options_.budget.max_seconds > 0 ? "; the time decides the steps, so runs differ a little"
                                                           : "; the same seed gives the same run")},
      {"compute", Str(Name(options_.dtype), ", ", NumThreads(), NumThreads() == 1 ? " thread, " : " threads, ",
                      Name(ActiveIsa()))},
      {"memory", Str("params ", Bytes(memory[MemoryTag::kParams]), ", grads ", Bytes(memory[MemoryTag::kGrads]),
                     ", states ", Bytes(memory[MemoryTag::kStates]), "; activations at the end")},
  };
  std::fputs(Table(Str("Tessera GPT, preset ", options_.preset), rows, terminal_.text_columns()).c_str(), stdout);
  for (const std::string& notice : text_.corpus.notices) {
    for (const std::string& line : Wrap(Str("notice: ", notice), terminal_.text_columns())) std::puts(line.c_str());
  }
  std::puts("");
}

void Trainer::ShowSummary() const {
  const AllocatorStats memory = CpuAllocator().stats();
  std::string peaks;
  for (int tag = 0; tag < kMemoryTagCount; ++tag) {
    const int64_t bytes = memory.peak_by_tag[static_cast<size_t>(tag)];
    if (bytes > 0) peaks = Str(peaks, peaks.empty() ? "" : ", ", Name(static_cast<MemoryTag>(tag)), " ", Bytes(bytes));
  }
  const auto tokens = static_cast<double>(options_.step_tokens());
  const int64_t samples = steps_ * options_.batch_size * options_.accumulation_steps;
  const double epochs = static_cast<double>(samples) / static_cast<double>(text_.train.size());
  std::string speed = "n/a: one step is too few to tell";
  if (steps_ > 1) {
    const double step_s = training_s_ / static_cast<double>(steps_ - 1);
    speed = Str(Compact(tokens / step_s), " tok/s, ", Milliseconds(1000 * step_s),
                " a step (first step and validations apart)");
  }
  const std::string longer = options_.budget.max_seconds > 0
                                 ? Str("--max_minutes ", Short(options_.budget.max_seconds / 60 * 5))
                                 : Str("--max_steps ", options_.budget.max_steps * 5);
  const std::vector<Row> rows = {
      {"time", Str(Duration(Elapsed()), ", ", WithCommas(steps_), " steps")},
      {"tokens", Str(WithCommas(steps_ * options_.step_tokens()), ", ", Fixed(epochs, 2), " epochs")},
      {"speed", speed},
      {"validation", Str(Fixed(validation_loss_, 3), " nats/byte, perplexity ", Fixed(std::exp(validation_loss_), 2),
                         "; best ", Fixed(best_loss_, 3), " at step ", WithCommas(best_step_))},
      {"memory", Str("peak ", Bytes(memory.peak_bytes), " in all; by kind: ", peaks)},
      {"next",
       Str(options_.program, " --preset ", options_.preset, " --data ", ShellQuoted(options_.data), " ", longer)},
  };
  std::puts("");
  std::fputs(Table("Done", rows, terminal_.text_columns()).c_str(), stdout);
}

int Main(int argc, char** argv) {
  const GptOptions options = OptionsFromFlags(argc, argv);
  auto text = io::OpenText(options.data,
                           {.sequence_tokens = options.seq_len, .validation_fraction = options.validation_fraction});
  if (!text.ok()) throw Error(Str("--data ", std::string(text.status().message())));
  Context context = CurrentContext();
  context.seed = options.seed;
  const ContextGuard guard(context);
  return Trainer(options, *std::move(text)).Run();
}

}  // namespace
}  // namespace tessera::examples

int main(int argc, char** argv) {
  try {
    return tessera::examples::Main(argc, argv);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "gpt: %s\n", error.what());
    return 1;
  }
}
