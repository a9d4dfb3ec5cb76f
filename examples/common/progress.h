// SPDX-License-Identifier: Apache-2.0
// What a running training shows: on a terminal a step line and a bar that are drawn over, elsewhere a plain step line
// every few seconds.
//
//   Progress progress(stdout, Terminal::Of(stdout));
//   progress.Step(report);                       // as often as you like
//   progress.Print(ValidationLine(...));         // a line that stays
//   progress.Finish();                           // the last step line stays
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "examples/common/terminal.h"

namespace tessera::examples {

struct StepReport {
  int64_t step = 0;       // finished ones
  int64_t max_steps = 0;  // 0: the time decides
  double loss = 0;
  double grad_norm = 0;  // before clipping
  double lr = 0;
  double tokens_per_s = 0;  // NaN: not known yet
  double step_ms = 0;
  double elapsed_s = 0;
  double fraction = 0;  // of the whole run that is done, in [0, 1]
};

// step 120/1000 | loss 3.412 | gnorm 0.87 | lr 2.9e-4 | 41.2k tok/s | 124 ms | ETA 1:48
// What does not fit is left out, the time of a step first. 0 columns: all of it.
std::string StepLine(const StepReport& report, int columns);

// [==========>          ] 42 %  0:50 of about 2:00
std::string Bar(double fraction, double elapsed_s, int columns);

// The mean loss of a byte-level model is in nats per byte.
std::string ValidationLine(int64_t step, double loss, bool is_best, const char* unit = "nats/byte");

class Progress {
 public:
  Progress(std::FILE* out, const Terminal& terminal, double plain_interval_s = 10)
      : out_(out), terminal_(terminal), plain_interval_s_(plain_interval_s) {}
  ~Progress() { Finish(); }
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void Step(const StepReport& report);
  void Print(const std::string& line);
  void Finish();

 private:
  void Draw();
  void Erase();

  std::FILE* out_;
  Terminal terminal_;
  double plain_interval_s_;
  double last_shown_s_ = -1;  // elapsed_s of the step line that was last shown
  StepReport last_;
  bool has_step_ = false;
  bool is_last_shown_ = true;
  bool drawn_ = false;  // two lines are on the screen, the cursor at the end of the second
};

}  // namespace tessera::examples
