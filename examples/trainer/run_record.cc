// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer/run_record.h"

#include <algorithm>
#include <cmath>

#include "examples/common/environment.h"
#include "examples/common/run_folder.h"
#include "tensor/error.h"
#include "zero/config_json.h"

namespace tessera::examples {
namespace {

constexpr double kSmoothing = 0.9;  // of the drawn loss: about the last ten steps
// What the page shows of long lists; the files have all of it.
constexpr size_t kFirstSamples = 3, kLastSamples = 12;
constexpr size_t kMostNotices = 100, kMostSkipped = 50;

std::vector<ConfigRow> ConfigRows(const zero::Config& config) {
  std::vector<ConfigRow> rows;
  for (const zero::ConfigEntry& entry : zero::ConfigEntries(config)) {
    rows.push_back({entry.path, entry.value, entry.origin, entry.is_default()});
  }
  return rows;
}

std::string Capitalized(std::string_view text) {
  std::string out(text);
  if (!out.empty() && out[0] >= 'a' && out[0] <= 'z') out[0] = static_cast<char>(out[0] - 'a' + 'A');
  return out;
}

// "step 7: step skipped, ..." without the number, which has a column of its own.
std::string WithoutStep(const std::string& line) {
  const size_t colon = line.find(": ");
  return Capitalized(colon == std::string::npos ? line : line.substr(colon + 2));
}

std::string LossText(double loss) { return std::isfinite(loss) ? Fixed(loss, 3) : "not finite"; }

}  // namespace

RunRecord::RunRecord(const TrainerOptions& options, std::vector<Row> facts)
    : options_(options),
      facts_(std::move(facts)),
      folder_(MakeRunFolder(options.run_folder)),
      metrics_(folder_),
      start_time_(std::time(nullptr)) {
  WriteFileAtomically(folder_ + "/config.resolved.json", zero::ConfigToJson(options.config));
  WriteFileAtomically(folder_ + "/config.origins.json", zero::ConfigOriginsToJson(options.config));
}

void RunRecord::SetStart(double elapsed_s) {
  start_ = Clock::now() - std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(elapsed_s));
}

void RunRecord::Step(const StepMetrics& metrics) {
  metrics_.Step(metrics);
  last_ = metrics;
  if (metrics.step > 1) training_ms_ += metrics.step_ms;
  const double step = static_cast<double>(metrics.step);
  if (std::isfinite(metrics.loss)) {
    smooth_sum_ = kSmoothing * smooth_sum_ + (1 - kSmoothing) * metrics.loss;
    smooth_weight_ = kSmoothing * smooth_weight_ + (1 - kSmoothing);
  }
  loss_.Add(step, metrics.loss);
  smooth_loss_.Add(step, std::isfinite(metrics.loss) ? smooth_sum_ / smooth_weight_ : metrics.loss);
  lr_.Add(step, metrics.lr);
  tokens_per_s_.Add(step, metrics.tokens_per_s);
  grad_norm_.Add(step, metrics.grad_norm_before_clip < 0 ? std::nan("") : metrics.grad_norm_before_clip);
  loss_scale_.Add(step, metrics.loss_scale);
  for (size_t tag = 0; tag < memory_.size(); ++tag) {
    memory_[tag].Add(step, static_cast<double>(metrics.memory_peak_bytes[tag]));
    peak_bytes_[tag] = std::max(peak_bytes_[tag], metrics.memory_peak_bytes[tag]);
  }
  total_memory_.Add(step, static_cast<double>(metrics.memory_peak_total_bytes));
  peak_total_bytes_ = std::max(peak_total_bytes_, metrics.memory_peak_total_bytes);
  if (metrics.skipped) {
    ++skipped_count_;
    if (skipped_.size() < kMostSkipped) skipped_.push_back({metrics.step, WithoutStep(last_notice_)});
  }
  last_notice_.clear();
  WriteReportNowAndThen();
}

void RunRecord::Validation(const ValidationMetrics& metrics) {
  metrics_.Validation(metrics);
  validation_loss_.Add(static_cast<double>(metrics.step), metrics.loss);
  if (!has_validation_ || !(best_.loss <= metrics.loss)) best_ = metrics;  // NaN is the best of nothing
  last_validation_ = metrics;
  has_validation_ = true;
  WriteReportNowAndThen();
}

void RunRecord::Sample(const SampleMetrics& metrics) {
  metrics_.Sample(metrics);
  if (samples_.size() == kFirstSamples + kLastSamples) {
    samples_.erase(samples_.begin() + kFirstSamples);
    ++samples_left_out_;
  }
  samples_.push_back({metrics.step, metrics.prompt, metrics.text});
}

void RunRecord::Notice(const std::string& line) {
  if (line.starts_with("step ") && line.find("skipped") != std::string::npos) {
    last_notice_ = line;  // the table of skipped steps has it
  } else if (notices_.size() < kMostNotices) {
    notices_.push_back(line);
  } else {
    ++notices_left_out_;
  }
}

std::string RunRecord::TakeProblem() {
  if (problem_.empty() && !metrics_.problem().empty()) {
    problem_ = metrics_.problem();
    return problem_;
  }
  return "";
}

// ---- the page ----

// However large the page is, it costs less than a hundredth of the time.
void RunRecord::WriteReportNowAndThen() {
  const Clock::duration interval = std::max<Clock::duration>(std::chrono::seconds(10), 200 * report_cost_);
  if (Clock::now() - last_report_ >= interval) WriteReport(RunState::kRunning, "");
}

void RunRecord::WriteReport(RunState state, const std::string& why) {
  const Clock::time_point begin = Clock::now();
  try {
    WriteFileAtomically(report_path(), ReportHtml(Page(state, why)));
  } catch (const Error& error) {  // a full disk ends no run
    Notice(error.what());
  }
  last_report_ = Clock::now();
  report_cost_ = last_report_ - begin;
}

void RunRecord::Finish(RunState state, const std::string& why) {
  metrics_.Flush();
  WriteReport(state, why);
}

std::string RunRecord::StateText(RunState state, const std::string& why) const {
  const std::string so_far = Str(WithCommas(last_.step), last_.step == 1 ? " step in " : " steps in ",
                                 Duration(std::chrono::duration<double>(Clock::now() - start_).count()));
  switch (state) {
    case RunState::kFinished:
      return Str("Finished: ", so_far, ".");
    case RunState::kStopped:
      return Str("Stopped on request: ", so_far, ".");
    case RunState::kFailed:
      return Str("Failed after ", so_far, ": ", why);
    case RunState::kRunning:
      break;
  }
  return Str("Running: ", so_far, ", as of ", LocalTime(std::time(nullptr)),
             ". This file is written again about every ten seconds; load it again to see more.");
}

std::vector<HeadlineNumber> RunRecord::Numbers() const {
  std::vector<HeadlineNumber> numbers;
  if (has_validation_) {
    numbers.push_back(
        {"Best validation loss", LossText(best_.loss),
         Str("nats/byte at step ", WithCommas(best_.step), "; perplexity ", Fixed(std::exp(best_.loss), 2))});
    numbers.push_back({"Last validation loss", LossText(last_validation_.loss),
                       Str("nats/byte at step ", WithCommas(last_validation_.step))});
  }
  const double smooth = std::isfinite(last_.loss) ? smooth_sum_ / smooth_weight_ : last_.loss;
  numbers.push_back(
      {"Training loss", last_.step == 0 ? "n/a" : LossText(smooth), "nats/byte, over about the last 10 steps"});
  const int64_t max_steps = options_.budget.max_steps;
  numbers.push_back(
      {"Steps", WithCommas(last_.step),
       Str(max_steps > 0 ? Str("of ", WithCommas(max_steps), ", ") : "", WithCommas(skipped_count_), " skipped")});
  numbers.push_back(
      {"Tokens", Compact(static_cast<double>(last_.tokens)), Str(WithCommas(options_.step_tokens()), " in a step")});
  const double step_ms = last_.step > 1 ? training_ms_ / static_cast<double>(last_.step - 1) : std::nan("");
  numbers.push_back({"Tokens a second", Compact(1000 * static_cast<double>(options_.step_tokens()) / step_ms),
                     Str(Milliseconds(step_ms), " a step, without the first and validations")});
  numbers.push_back({"Time", Duration(std::chrono::duration<double>(Clock::now() - start_).count()),
                     Str("since ", LocalTime(start_time_).substr(0, 16))});
  numbers.push_back(
      {"Peak memory", Bytes(peak_total_bytes_), options_.ranks == 1 ? "of tensors" : "of tensors, rank 0"});
  return numbers;
}

std::vector<Chart> RunRecord::Charts() const {
  const std::string steps = Str("step (", WithCommas(options_.step_tokens()), " tokens each)");
  const auto missing = [](const Series& series) {
    const int64_t count = series.not_finite_count();
    return count == 0 ? std::string() : Str(WithCommas(count), " of the values are not finite and leave gaps.");
  };
  std::vector<Chart> charts;
  charts.push_back({.id = "loss",
                    .title = "Loss",
                    .unit = "nats/byte",
                    .x_title = steps,
                    .note = missing(loss_),
                    .log_above = 2.5,
                    .lines = {{"training, each step", ChartMark::kFaint, loss_.MinMaxPoints()},
                              {"validation", ChartMark::kDots, validation_loss_.MeanPoints()},
                              {"training, smoothed", ChartMark::kLine, smooth_loss_.MeanPoints()}}});
  charts.push_back({.id = "lr",
                    .title = "Learning rate",
                    .unit = "of the update",
                    .x_title = steps,
                    .from_zero = true,
                    .lines = {{"learning rate", ChartMark::kLine, lr_.MeanPoints()}}});
  charts.push_back({.id = "speed",
                    .title = "Tokens a second",
                    .unit = "all ranks, without validations",
                    .x_title = steps,
                    .from_zero = true,
                    .lines = {{"each step", ChartMark::kFaint, tokens_per_s_.MinMaxPoints()},
                              {"mean of neighbours", ChartMark::kLine, tokens_per_s_.MeanPoints()}}});
  charts.push_back({.id = "norm",
                    .title = "Gradient norm",
                    .unit = "before clipping",
                    .x_title = steps,
                    .note = missing(grad_norm_),
                    .from_zero = true,
                    .log_above = 8,
                    .lines = {{"each step", ChartMark::kFaint, grad_norm_.MinMaxPoints()},
                              {"mean of neighbours", ChartMark::kLine, grad_norm_.MeanPoints()}}});
  Chart memory{.id = "memory",
               .title = "Memory by kind",
               .unit = options_.ranks == 1 ? "bytes" : "bytes on rank 0",
               .x_title = steps,
               .note = "Each kind at its own highest within a step, so their sum may be above the most at one moment.",
               .y_unit = AxisUnit::kBytes,
               .from_zero = true};
  for (size_t tag = 0; tag < memory_.size(); ++tag) {
    if (peak_bytes_[tag] == 0) continue;
    memory.lines.push_back(
        {std::string(Name(static_cast<MemoryTag>(tag))), ChartMark::kArea, memory_[tag].MaxPoints()});
  }
  if (!memory.lines.empty())
    memory.lines.push_back({"all, at one moment", ChartMark::kTotal, total_memory_.MaxPoints()});
  charts.push_back(std::move(memory));
  if (options_.config.fp16.enabled) {
    charts.push_back({.id = "scale",
                      .title = "Loss scale",
                      .unit = "fp16",
                      .x_title = steps,
                      .from_zero = true,
                      .log_above = 8,
                      .lines = {{"loss scale", ChartMark::kLine, loss_scale_.MeanPoints()}}});
  }
  return charts;
}

void RunRecord::AddMemory(ReportPage* page) const {
  for (size_t tag = 0; tag < memory_.size(); ++tag) {
    if (peak_bytes_[tag] == 0) continue;
    page->memory.emplace_back(Capitalized(Name(static_cast<MemoryTag>(tag))), Bytes(peak_bytes_[tag]));
  }
  if (page->memory.empty()) return;
  page->memory.emplace_back("All, at one moment", Bytes(peak_total_bytes_));
  page->memory_note = "What tensors asked for; the kinds have their highest at different moments.";
}

std::vector<Row> RunRecord::Facts(RunState state) const {
  std::vector<Row> rows = {{"command", options_.full_command},
                           {"folder", folder_},
                           {"started", LocalTime(start_time_)},
                           {state == RunState::kRunning ? "written" : "ended", LocalTime(std::time(nullptr))}};
  rows.insert(rows.end(), facts_.begin(), facts_.end());
  rows.emplace_back("seed", Str(options_.seed));
  const std::vector<Row> environment = EnvironmentRows();
  rows.insert(rows.end(), environment.begin(), environment.end());
  return rows;
}

ReportPage RunRecord::Page(RunState state, const std::string& why) const {
  ReportPage page{.title = options_.model.title,
                  .kicker = Str("Tessera, run of ", LocalTime(start_time_).substr(0, 16)),
                  .state = state,
                  .state_text = StateText(state, why),
                  .numbers = Numbers(),
                  .charts = Charts(),
                  .samples = samples_,
                  .facts = Facts(state),
                  .config = ConfigRows(options_.config),
                  .notices = notices_,
                  .skipped = skipped_,
                  .skipped_count = skipped_count_};
  AddMemory(&page);
  if (samples_left_out_ > 0) {
    page.samples_note = Str(WithCommas(samples_left_out_), " between the first and the last are in metrics.jsonl.");
  }
  if (notices_left_out_ > 0) page.notices.push_back(Str("and ", WithCommas(notices_left_out_), " more"));
  return page;
}

}  // namespace tessera::examples
