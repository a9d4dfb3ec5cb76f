// SPDX-License-Identifier: Apache-2.0
// The trainer's flags, resolved: what a preset says, what the command line and the config file put in its place.
#pragma once

#include <cstdint>
#include <string>

#include "examples/common/budget.h"
#include "examples/trainer/model_choice.h"
#include "nn/generate.h"
#include "zero/config.h"

namespace tessera::examples {

struct TrainerOptions {
  std::string program;  // its name
  std::string command;  // as it was called, but for the flags that limit the run
  std::string full_command;
  std::string run_folder;  // where the run leaves its files; empty: nowhere
  ModelChoice model;
  zero::Config config;
  std::string config_path;  // empty: none
  int ranks = 1;
  std::string ranks_are;  // threads of this process, or whose processes
  std::string data;
  int64_t seq_len = 0;
  uint64_t seed = 0;
  Budget budget;
  bool dry_run = false;         // the start table and no more
  int64_t fast_dev_run = 0;     // more than 0: so many steps and validation batches, to see that all parts work
  int64_t overfit_batches = 0;  // more than 0: the batches of so many steps again and again
  CosineSchedule schedule;      // where the config has none

  double validation_fraction = 0.1;
  int64_t validation_tokens = 0;
  int64_t eval_every = 0;  // 0: six times in the run

  int64_t sample_every = 0;  // 0: at the end only
  std::string prompt;
  int64_t sample_tokens = 0;
  nn::SamplingOptions sampling;

  bool has_scheduler() const { return !config.scheduler.type.empty(); }
  int64_t step_tokens() const { return config.train_batch_size * seq_len; }
};

// Prints and exits on --help and on an illegal command line. Throws Error where flags, preset and config do not fit.
TrainerOptions OptionsFromFlags(int argc, char** argv, const Program& program);

}  // namespace tessera::examples
