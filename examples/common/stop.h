// SPDX-License-Identifier: Apache-2.0
// Ctrl-C and SIGTERM as a request: the first one asks the loop to end after this step, the second one ends the program.
//
//   StopRequest stop;
//   while (!stop.requested()) TrainOneStep();
#pragma once

#include <csignal>

namespace tessera::examples {

class StopRequest {  // at most one at a time
 public:
  StopRequest();
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;
  bool requested() const;

 private:
  struct sigaction previous_interrupt_ = {};
  struct sigaction previous_terminate_ = {};
};

}  // namespace tessera::examples
