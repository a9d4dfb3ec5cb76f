// SPDX-License-Identifier: Apache-2.0
// The report of a run as one HTML page that needs nothing else: no network, no other file, no script to be complete.
// For light and dark screens, telephones, paper and screen readers.
//
//   WriteFileAtomically(path, ReportHtml(page));
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "examples/common/format.h"
#include "examples/common/svg_chart.h"

namespace tessera::examples {

enum class RunState { kRunning, kFinished, kStopped, kFailed };

struct HeadlineNumber {
  std::string label, value, note;
};

struct SampleText {
  int64_t step = 0;
  std::string prompt, text;
};

struct ConfigRow {
  std::string key, value, origin;
  bool is_default = false;
};

struct SkippedStep {
  int64_t step = 0;
  std::string reason;
};

struct ReportPage {
  std::string title;   // the model
  std::string kicker;  // a line above it
  RunState state = RunState::kRunning;
  std::string state_text;  // a sentence
  std::vector<HeadlineNumber> numbers;
  std::vector<Chart> charts;
  std::vector<Row> memory;  // kind and its highest bytes; beside the chart "memory"
  std::string memory_note;
  std::vector<SampleText> samples;
  std::string samples_note;  // which are left out; may be empty
  std::vector<Row> facts;
  std::vector<ConfigRow> config;
  std::vector<std::string> notices;
  std::vector<SkippedStep> skipped;
  int64_t skipped_count = 0;  // those that are not listed too
};

std::string ReportHtml(const ReportPage& page);

}  // namespace tessera::examples
