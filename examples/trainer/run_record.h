// SPDX-License-Identifier: Apache-2.0
// What a run leaves in its folder: metrics.jsonl and metrics.csv as it goes, config.resolved.json and config.origins.json
// at its start, report.html every ten seconds and at its end. On rank 0; nothing here is a collective.
//
//   RunRecord record(options, StartRows(...));     // throws where the folder cannot be written
//   record.Step(metrics); record.Validation({.step = 100, .loss = 2.1}); record.Notice("...");
//   record.Finish(RunState::kFinished, "");
#pragma once

#include <array>
#include <chrono>
#include <ctime>
#include <string>
#include <vector>

#include "examples/common/metrics_writer.h"
#include "examples/common/report_page.h"
#include "examples/common/series.h"
#include "examples/trainer/options.h"

namespace tessera::examples {

class RunRecord {
 public:
  // `facts` become the page's table of the run. The folder is options.run_folder, or one with a counter behind it.
  RunRecord(const TrainerOptions& options, std::vector<Row> facts);

  const std::string& folder() const { return folder_; }
  std::string report_path() const { return folder_ + "/report.html"; }

  void Step(const StepMetrics& metrics);
  void Validation(const ValidationMetrics& metrics);
  void Sample(const SampleMetrics& metrics);
  // A line for the page; of a step that is skipped next, the reason.
  void Notice(const std::string& line);
  void SetStart(double elapsed_s);  // the clock of elapsed_s began so long ago
  // Writes what is not written yet. `why` is the sentence of an error. May be called again with more to say.
  void Finish(RunState state, const std::string& why);
  // What went wrong with a file since the last call; the run goes on without it.
  std::string TakeProblem();

 private:
  using Clock = std::chrono::steady_clock;

  void WriteReport(RunState state, const std::string& why);
  void WriteReportNowAndThen();
  ReportPage Page(RunState state, const std::string& why) const;
  std::string StateText(RunState state, const std::string& why) const;
  std::vector<HeadlineNumber> Numbers() const;
  std::vector<Chart> Charts() const;
  void AddMemory(ReportPage* page) const;
  std::vector<Row> Facts(RunState state) const;

  const TrainerOptions& options_;
  std::vector<Row> facts_;
  std::string folder_;
  MetricsWriter metrics_;
  std::time_t start_time_;
  Clock::time_point start_ = Clock::now();
  Clock::time_point last_report_ = Clock::now();
  Clock::duration report_cost_ = {};  // of the last one
  std::string problem_;

  StepMetrics last_;
  double training_ms_ = 0;  // without the first step
  double smooth_sum_ = 0, smooth_weight_ = 0;
  Series loss_, smooth_loss_, validation_loss_, lr_, tokens_per_s_, grad_norm_, clip_factor_, loss_scale_,
      total_memory_;
  std::array<Series, kMemoryTagCount> memory_;
  std::array<int64_t, kMemoryTagCount> peak_bytes_{};
  int64_t peak_total_bytes_ = 0;
  ValidationMetrics best_, last_validation_;
  bool has_validation_ = false;
  std::vector<SampleText> samples_;
  int64_t samples_left_out_ = 0;
  std::vector<std::string> notices_;
  int64_t notices_left_out_ = 0;
  std::string last_notice_;
  std::vector<SkippedStep> skipped_;
  int64_t skipped_count_ = 0;
};

}  // namespace tessera::examples
