// SPDX-License-Identifier: Apache-2.0
#include "examples/common/stop.h"

namespace tessera::examples {
namespace {

volatile std::sig_atomic_t g_requested = 0;

}  // namespace

StopRequest::StopRequest() {
  g_requested = 0;
  struct sigaction action = {};
  action.sa_handler = [](int) { g_requested = 1; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);  // the second one acts as if nobody listened
  sigaction(SIGINT, &action, &previous_interrupt_);
  sigaction(SIGTERM, &action, &previous_terminate_);
}

StopRequest::~StopRequest() {
  sigaction(SIGINT, &previous_interrupt_, nullptr);
  sigaction(SIGTERM, &previous_terminate_, nullptr);
}

bool StopRequest::requested() const { return g_requested != 0; }

}  // namespace tessera::examples
