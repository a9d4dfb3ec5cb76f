// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer/trainer.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <exception>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "examples/common/format.h"
#include "examples/common/progress.h"
#include "examples/common/stop.h"
#include "examples/trainer/options.h"
#include "examples/trainer/planned_memory.h"
#include "examples/trainer/report.h"
#include "examples/trainer/run_record.h"
#include "examples/trainer/validation.h"
#include "io/batch_loader.h"
#include "io/text.h"
#include "tensor/context.h"
#include "tensor/thread_pool.h"
#include "zero/engine.h"

namespace tessera::examples {
namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

template <class T>
T OrThrow(absl::StatusOr<T> value) {
  if (!value.ok()) throw Error(std::string(value.status().message()));
  return *std::move(value);
}

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

// One rank's part of a run. All ranks make the same calls; rank 0 also looks at the clock and talks.
class Trainer {
 public:
  // The record is made in `record`, on rank 0, where it outlives an error of this rank or another.
  Trainer(const TrainerOptions& options, const io::TextDatasets& text, const StopRequest& stop, zero::Rank& rank,
          std::unique_ptr<RunRecord>& record);
  void Run();

 private:
  zero::ModelEngine<nn::Module> MakeEngine();
  std::unique_ptr<io::BatchLoader> MakeLoader() const;
  void Say(const std::string& line);
  void Notice(const std::string& line);
  void ShowStart();
  void Loop();
  void AgreeWhereWeAre();
  void TrainOneStep();
  void RecordStep();
  StepReport Report() const;
  bool IsTimeToEvaluate() const;
  void Evaluate();
  io::Batch NextBatch();
  std::vector<int64_t> Sample();
  void ShowSample();
  void ShowSummary(bool failed);
  void TakePeaks();
  RunRecord* record() const { return rank_.is_main() ? record_.get() : nullptr; }  // others are not to touch it
  double Elapsed() const { return SecondsSince(start_); }

  const TrainerOptions& options_;
  const io::TextDatasets& text_;
  const StopRequest& stop_request_;
  zero::Rank& rank_;
  const Terminal terminal_ = Terminal::Of(stdout);
  std::unique_ptr<RunRecord>& record_;  // made on rank 0
  std::optional<Progress> progress_;    // on rank 0
  std::vector<std::string> notices_;    // of the engine, until the start table is shown
  bool started_ = false;

  TrainedModel model_;
  zero::ModelEngine<nn::Module> engine_;
  std::unique_ptr<io::BatchLoader> loader_;
  std::vector<io::Batch> kept_batches_;  // with --overfit_batches
  size_t next_kept_ = 0;

  Clock::time_point start_;
  double fraction_ = 0;  // of the run, by rank 0's clock before the step
  bool stopping_ = false;
  double lr_ = 0;
  int64_t recorded_steps_ = 0;
  AllocatorStats step_memory_;  // since the step before
  AllocatorStats memory_;       // now, with the peaks of the whole run
  struct Step {
    double loss, seconds;
  };
  std::deque<Step> recent_;  // the last few, for the step line
  double first_loss_ = std::nan("");
  double training_s_ = 0;  // without the first step and validations
  std::vector<comm::Traffic> sent_ = std::vector<comm::Traffic>(comm::kPurposeCount);
  std::vector<int64_t> prompt_, last_sample_;
  int64_t last_sampled_step_ = -1;
  int64_t evaluations_ = 0;
  int64_t last_evaluated_step_ = -1;
  double validation_loss_ = std::numeric_limits<double>::infinity();
  double best_loss_ = std::numeric_limits<double>::infinity();
  int64_t best_step_ = 0;
};

Trainer::Trainer(const TrainerOptions& options, const io::TextDatasets& text, const StopRequest& stop, zero::Rank& rank,
                 std::unique_ptr<RunRecord>& record)
    : options_(options),
      text_(text),
      stop_request_(stop),
      rank_(rank),
      record_(record),
      model_(options.model.make()),
      engine_(MakeEngine()),
      loader_(MakeLoader()) {
  for (char c : options_.prompt) prompt_.push_back(static_cast<unsigned char>(c));
  if (prompt_.empty()) prompt_ = FirstWords(text_.validation);
  if (rank.is_main()) progress_.emplace(stdout, terminal_);
}

zero::ModelEngine<nn::Module> Trainer::MakeEngine() {
  zero::EngineOptions engine{.seed = options_.seed,
                             .loss_weight_per_sample = static_cast<double>(options_.seq_len),
                             .print = [this](const std::string& line) { Notice(line); }};
  return OrThrow(zero::Engine::Create(*model_.module, options_.config, rank_, std::move(engine)));
}

// Micro-batch m of rank r is rows (m * ranks + r) * micro and on of one order: a step reads the same rows however many
// ranks share them.
std::unique_ptr<io::BatchLoader> Trainer::MakeLoader() const {
  return OrThrow(io::BatchLoader::Create(text_.train, {.batch_size = engine_.train_micro_batch_size_per_gpu(),
                                                       .rank = rank_.index(),
                                                       .ranks = rank_.world_size(),
                                                       .order = {.seed = options_.seed}}));
}

void Trainer::Say(const std::string& line) {
  if (started_ && progress_) progress_->Print(line);
  const bool is_new = std::find(notices_.begin(), notices_.end(), line) == notices_.end();
  if (!started_ && is_new) notices_.push_back(line);
}

// What the engine says; its progress lines are no notices.
void Trainer::Notice(const std::string& line) {
  Say(line);
  if (record() && !line.starts_with("step=")) record()->Notice(line);
}

void Trainer::Run() {
  ShowStart();
  try {
    Loop();
  } catch (const std::exception& error) {
    if (!rank_.is_main()) throw;
    if (progress_) progress_->Finish();
    if (engine_.global_steps() > recorded_steps_) RecordStep();  // the last one, that ended the run
    if (record()) record()->Finish(RunState::kFailed, error.what());
    ShowSummary(/*failed=*/true);
    throw;
  }
  if (record()) record()->Finish(stopping_ ? RunState::kStopped : RunState::kFinished, "");
  if (rank_.is_main()) ShowSummary(/*failed=*/false);
}

void Trainer::Loop() {
  start_ = Clock::now();
  if (record()) record()->SetStart(0);
  while (true) {
    AgreeWhereWeAre();
    if (stopping_ || fraction_ >= 1) break;
    if (IsTimeToEvaluate()) Evaluate();
    TrainOneStep();
    if (progress_) progress_->Step(Report());
    if (options_.sample_every > 0 && options_.sample_tokens > 0 &&
        engine_.global_steps() % options_.sample_every == 0) {
      last_sample_ = Sample();
      const std::string text = Printable(last_sample_);
      const size_t begin = std::min(text.find_first_not_of(" \n"), text.size());
      Say(FitColumns(Str("step ", engine_.global_steps(),
                         " | writes: ", std::string_view(text).substr(begin, text.find('\n', begin) - begin)),
                     100));
    }
  }
  if (stopping_) Say("stopped: one last validation and a sample; Ctrl-C again ends at once");
  if (progress_) progress_->Finish();
  if (last_evaluated_step_ != engine_.global_steps()) Evaluate();
  ShowSample();
}

// Clocks differ and a signal comes at any moment, but all ranks must take the same steps: rank 0 decides.
void Trainer::AgreeWhereWeAre() {
  struct {
    double fraction;
    int64_t stop;
  } state = {options_.budget.Fraction(engine_.global_steps(), Elapsed()), stop_request_.requested() ? 1 : 0};
  const std::string mine(reinterpret_cast<const char*>(&state), sizeof state);
  std::memcpy(&state, rank_.comm().AllGatherBytes(mine).front().data(), sizeof state);
  fraction_ = state.fraction;
  stopping_ = state.stop != 0;
}

io::Batch Trainer::NextBatch() {
  const auto kept = static_cast<size_t>(options_.overfit_batches * engine_.gradient_accumulation_steps());
  if (kept == 0) return *loader_->Next();
  if (kept_batches_.size() < kept) {
    kept_batches_.push_back(*loader_->Next());
    return kept_batches_.back();
  }
  return kept_batches_[next_kept_++ % kept];
}

void Trainer::TrainOneStep() {
  const Clock::time_point begin = Clock::now();
  const comm::Counters before = rank_.comm().counters();
  if (!options_.has_scheduler()) engine_.SetLr(options_.schedule.Lr(engine_.global_steps(), fraction_));
  lr_ = engine_.get_lr();
  for (int64_t micro = 0; micro < engine_.gradient_accumulation_steps(); ++micro) {
    const io::Batch batch = NextBatch();
    const Loss loss = engine_.Forward([&] { return model_.loss(batch.ids, batch.targets); });
    engine_.Backward(loss);
    engine_.Step();
  }
  const comm::Counters after = rank_.comm().counters();
  for (size_t purpose = 0; purpose < sent_.size(); ++purpose) {
    sent_[purpose].elements += after.purposes[purpose].total().elements - before.purposes[purpose].total().elements;
  }
  const double seconds = SecondsSince(begin);
  recent_.push_back({engine_.get_loss(), seconds});
  if (recent_.size() > 20) recent_.pop_front();
  if (engine_.global_steps() == 1) first_loss_ = engine_.get_loss();
  if (engine_.global_steps() > 1) training_s_ += seconds;
  RecordStep();
}

void Trainer::RecordStep() {
  recorded_steps_ = engine_.global_steps();
  TakePeaks();
  if (!record()) return;
  const double seconds = recent_.empty() ? 0 : recent_.back().seconds;
  record()->Step({.step = engine_.global_steps(),
                  .micro_steps = engine_.micro_steps(),
                  .loss = engine_.get_loss(),
                  .grad_norm_before_clip = engine_.get_global_grad_norm(),
                  .clip_factor = engine_.clip_factor(),
                  .lr = lr_,
                  .loss_scale = engine_.loss_scale(),
                  .skipped = !engine_.was_step_applied(),
                  .tokens = engine_.global_steps() * options_.step_tokens(),
                  .tokens_per_s = static_cast<double>(options_.step_tokens()) / seconds,
                  .step_ms = 1000 * seconds,
                  .elapsed_s = Elapsed(),
                  .memory_bytes = step_memory_.bytes_by_tag,
                  .memory_peak_bytes = step_memory_.peak_by_tag,
                  .memory_peak_total_bytes = step_memory_.peak_bytes});
  if (const std::string problem = record()->TakeProblem(); !problem.empty()) Say(problem);
}

// The allocator's peaks begin anew with each step; the run's are kept here.
void Trainer::TakePeaks() {
  const AllocatorStats before = memory_;
  step_memory_ = rank_.allocator().stats();
  rank_.allocator().ResetPeaks();
  memory_ = step_memory_;
  memory_.peak_bytes = std::max(memory_.peak_bytes, before.peak_bytes);
  for (size_t tag = 0; tag < memory_.peak_by_tag.size(); ++tag) {
    memory_.peak_by_tag[tag] = std::max(memory_.peak_by_tag[tag], before.peak_by_tag[tag]);
  }
}

// Loss and speed are means over the last steps, for single ones jump about.
StepReport Trainer::Report() const {
  double loss = 0, seconds = 0;
  for (const Step& step : recent_) {
    loss += step.loss / static_cast<double>(recent_.size());
    seconds += step.seconds / static_cast<double>(recent_.size());
  }
  const double elapsed_s = Elapsed(), norm = engine_.get_global_grad_norm();
  return {.step = engine_.global_steps(),
          .max_steps = options_.budget.max_steps,
          .loss = loss,
          .grad_norm = norm < 0 ? std::nan("") : norm,  // -1: not finite
          .lr = lr_,
          .tokens_per_s = static_cast<double>(options_.step_tokens()) / seconds,
          .step_ms = 1000 * seconds,
          .elapsed_s = elapsed_s,
          .fraction = options_.budget.Fraction(engine_.global_steps(), elapsed_s)};
}

bool Trainer::IsTimeToEvaluate() const {
  const int64_t steps = engine_.global_steps();
  if (steps == 0) return true;  // a broken validation shows at once
  if (options_.eval_every > 0) return steps % options_.eval_every == 0;
  return fraction_ * 6 >= static_cast<double>(evaluations_);  // the last of the six is the one after the loop
}

void Trainer::Evaluate() {
  const int64_t steps = engine_.global_steps();
  validation_loss_ = ValidationLoss(engine_, rank_, model_, text_.validation, options_.validation_tokens);
  const bool is_best = validation_loss_ < best_loss_;
  if (is_best) {
    best_loss_ = validation_loss_;
    best_step_ = steps;
  }
  ++evaluations_;
  last_evaluated_step_ = steps;
  Say(ValidationLine(steps, validation_loss_, is_best && steps > 0));
  if (record()) record()->Validation({.step = steps, .loss = validation_loss_, .elapsed_s = Elapsed()});
}

// What the model writes now. Every rank writes the same, for at stage 3 a forward is a collective.
std::vector<int64_t> Trainer::Sample() {
  const auto logits = [&](const Tensor& ids) { return engine_.EvaluateWith([&] { return model_.logits(ids); }); };
  std::vector<int64_t> tokens = nn::Generate(logits, prompt_,
                                             {.new_tokens = options_.sample_tokens,
                                              .positions = options_.model.positions,
                                              .sampling = options_.sampling,
                                              .seed = options_.seed});
  last_sampled_step_ = engine_.global_steps();
  if (record()) {
    record()->Sample({.step = engine_.global_steps(),
                      .elapsed_s = Elapsed(),
                      .prompt = Printable(prompt_),
                      .text = Printable(tokens)});
  }
  return tokens;
}

void Trainer::ShowSample() {
  if (options_.sample_tokens == 0) return;
  if (last_sampled_step_ != engine_.global_steps()) last_sample_ = Sample();
  if (!rank_.is_main()) return;
  const int columns = terminal_.text_columns();
  std::printf("\nSample, after \"%s\"\n", FitColumns(Printable(prompt_), columns - 20).c_str());
  for (const std::string& line : Wrap(Printable(last_sample_), columns - 2)) std::printf("  %s\n", line.c_str());
}

void Trainer::ShowStart() {
  const AllocatorStats memory = rank_.allocator().stats();
  const RankMemory mine{memory[MemoryTag::kParams], memory[MemoryTag::kGrads], memory[MemoryTag::kStates]};
  StartFacts facts{.parameters = model_.module->ParameterCount(),
                   .trained_parameters = model_.module->TrainableParameterCount(),
                   .threads_per_rank = NumThreads()};
  for (const std::string& bytes :
       rank_.comm().AllGatherBytes(std::string(reinterpret_cast<const char*>(&mine), sizeof mine))) {
    std::memcpy(&facts.by_rank.emplace_back(), bytes.data(), sizeof mine);
  }
  started_ = true;
  if (!rank_.is_main()) return;
  const int columns = terminal_.text_columns();
  std::vector<Row> rows = StartRows(options_, text_, facts);
  if (!options_.run_folder.empty()) {
    record_ = std::make_unique<RunRecord>(options_, rows);
    rows.emplace_back("run folder", record()->folder());
  }
  rows.emplace_back("values", ConfigLines(options_.config));
  std::fputs(StartTable(options_, rows, columns).c_str(), stdout);
  notices_.insert(notices_.begin(), text_.corpus.notices.begin(), text_.corpus.notices.end());
  if (record()) {
    for (const std::string& notice : notices_) record()->Notice(notice);
  }
  for (const std::string& notice : notices_) {
    for (const std::string& line : Wrap(Str("notice: ", notice), columns)) std::puts(line.c_str());
  }
  std::puts("");
}

void Trainer::ShowSummary(bool failed) {
  TakePeaks();
  const int64_t steps = engine_.global_steps();
  const EndFacts facts{.elapsed_s = Elapsed(),
                       .steps = steps,
                       .step_s = steps > 1 ? training_s_ / static_cast<double>(steps - 1) : 0,
                       .first_loss = first_loss_,
                       .last_loss = recent_.empty() ? std::nan("") : recent_.back().loss,
                       .validation_loss = validation_loss_,
                       .best_loss = best_loss_,
                       .best_step = best_step_,
                       .memory = memory_,
                       .sent = sent_,
                       .report_path = record() ? record()->report_path() : "",
                       .failed = failed};
  std::puts("");
  std::fputs(EndTable(options_, text_, facts, terminal_.text_columns()).c_str(), stdout);
}

// The ranks fail alike at most mistakes: what all say is said once, without a rank in front.
std::string FailureText(const std::string& message) {
  std::vector<std::string> by_rank;
  for (const std::string& line : Wrap(message, 0)) {
    const size_t colon = line.find(": ");
    if (line.starts_with("rank ") && colon != std::string::npos) {
      by_rank.push_back(line.substr(colon + 2));
    } else if (!by_rank.empty()) {
      by_rank.back() += Str("\n", line);
    }
  }
  const auto is_first = [&](const std::string& text) { return text == by_rank.front(); };
  return !by_rank.empty() && std::all_of(by_rank.begin(), by_rank.end(), is_first) ? by_rank.front() : message;
}

// Makes no tensor: a module's parameters have no memory before an engine takes it over.
void ShowDryRun(const TrainerOptions& options, const io::TextDatasets& text) {
  const TrainedModel model = options.model.make();
  const RankMemory mine = PlannedMemory(*model.module, options.config, options.ranks);
  StartFacts facts{.parameters = model.module->ParameterCount(),
                   .trained_parameters = model.module->TrainableParameterCount(),
                   .threads_per_rank = NumThreads(),
                   .by_rank = std::vector<RankMemory>(static_cast<size_t>(options.ranks), mine)};
  std::vector<Row> rows = StartRows(options, text, facts);
  rows.emplace_back("besides",
                    "activations, and slots for gathered weights and fresh gradients: the end table has them");
  rows.emplace_back("values", ConfigLines(options.config));
  const int columns = Terminal::Of(stdout).text_columns();
  std::fputs(StartTable(options, rows, columns).c_str(), stdout);
  std::vector<std::string> notices = text.corpus.notices;
  notices.insert(notices.end(), options.config.notices.begin(), options.config.notices.end());
  for (const std::string& notice : notices) {
    for (const std::string& line : Wrap(Str("notice: ", notice), columns)) std::puts(line.c_str());
  }
  std::puts("\nDry run: nothing was made or trained.");
}

void Train(const TrainerOptions& options) {
  const io::TextDatasets text = [&] {
    auto opened = io::OpenText(
        options.data, {.sequence_tokens = options.seq_len, .validation_fraction = options.validation_fraction});
    if (!opened.ok()) throw Error(Str("--data ", std::string(opened.status().message())));
    return *std::move(opened);
  }();
  const StopRequest stop;
  std::unique_ptr<RunRecord> record;
  const absl::Status status = zero::RunRanks(
      {.world_size = options.ranks, .comm_timeout_s = options.config.tessera.comm_timeout_s}, [&](zero::Rank& rank) {
        if (!options.dry_run) {
          Trainer(options, text, stop, rank, record).Run();
        } else if (rank.is_main()) {
          ShowDryRun(options, text);
        }
      });
  if (status.ok()) return;
  const std::string failure = FailureText(std::string(status.message()));
  if (record) record->Finish(RunState::kFailed, failure);  // it knows of all ranks
  throw Error(failure);
}

}  // namespace

int TrainerMain(int argc, char** argv, const Program& program) {
  try {
    Train(OptionsFromFlags(argc, argv, program));
    return 0;
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s: %s\n", program.name, error.what());
    return 1;
  }
}

}  // namespace tessera::examples
