// SPDX-License-Identifier: Apache-2.0
// The numbers of a run as files for other programs: metrics.jsonl with one object a step, validation and sample, and
// metrics.csv with the steps alone. Names are the same: "memory_bytes.states" of the table is the member "states" of
// "memory_bytes", as pandas.json_normalize writes it.
//
// Lines are kept for at most a second before they are written, and only whole ones are: a run that is killed leaves legal
// files that lack its last moment.
//
//   MetricsWriter metrics(folder);
//   metrics.Step({.step = 1, .loss = 5.5});
//   metrics.Validation({.step = 1, .loss = 5.4});
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "tensor/allocator.h"

namespace tessera::examples {

struct StepMetrics {
  int64_t step = 0, micro_steps = 0;  // finished ones
  double loss = 0;
  double grad_norm_before_clip = 0, clip_factor = 0;  // the norm -1: not finite
  double lr = 0, loss_scale = 0;
  bool skipped = false;
  int64_t tokens = 0;  // since the beginning
  double tokens_per_s = 0, step_ms = 0, elapsed_s = 0;
  std::array<int64_t, kMemoryTagCount> memory_bytes{};       // after the step
  std::array<int64_t, kMemoryTagCount> memory_peak_bytes{};  // each tag's highest since the line before
  int64_t memory_peak_total_bytes = 0;                       // their sum at one moment, the highest since then
};

struct ValidationMetrics {
  int64_t step = 0;
  double loss = 0, elapsed_s = 0;
};

struct SampleMetrics {
  int64_t step = 0;
  double elapsed_s = 0;
  std::string prompt, text;
};

std::string CsvHeader();
std::string CsvLine(const StepMetrics& metrics);  // an empty field: not a finite number
std::string JsonLineOf(const StepMetrics& metrics);
std::string JsonLineOf(const ValidationMetrics& metrics);
std::string JsonLineOf(const SampleMetrics& metrics);

class MetricsWriter {
 public:
  explicit MetricsWriter(const std::string& folder);  // throws Error
  ~MetricsWriter();
  MetricsWriter(const MetricsWriter&) = delete;
  MetricsWriter& operator=(const MetricsWriter&) = delete;

  void Step(const StepMetrics& metrics);
  void Validation(const ValidationMetrics& metrics);
  void Sample(const SampleMetrics& metrics);
  void Flush();

  // What went wrong with a file, such as a full disk; nothing is written to it from there on, and the run goes on.
  const std::string& problem() const { return problem_; }

 private:
  struct File {
    std::string path;
    int descriptor = -1;
    std::string waiting;  // whole lines
  };
  File Open(const std::string& path) const;
  void FlushFile(File* file);

  File jsonl_, csv_;
  std::string problem_;
  std::chrono::steady_clock::time_point last_flush_;
};

}  // namespace tessera::examples
