// SPDX-License-Identifier: Apache-2.0
// The trainer's flags, resolved: a preset's values, and what the command line puts in their place.
#pragma once

#include <cstdint>
#include <string>

#include "examples/common/budget.h"
#include "nn/generate.h"
#include "nn/models/gpt.h"
#include "optim/optimizer.h"

namespace tessera::examples {

struct GptOptions {
  std::string program;  // as it was called
  std::string preset, data;
  nn::GptConfig model;
  DType dtype = DType::kF32;
  uint64_t seed = 0;

  int64_t batch_size = 0, accumulation_steps = 1, seq_len = 0;
  Budget budget;
  CosineSchedule schedule;
  optim::AdamOptions adam;
  double gradient_clipping = 0;

  double validation_fraction = 0.1;
  int64_t validation_tokens = 0;
  int64_t eval_every = 0;  // 0: six times in the run

  std::string prompt;
  int64_t sample_tokens = 0;
  nn::SamplingOptions sampling;

  int64_t step_tokens() const { return batch_size * accumulation_steps * seq_len; }
};

// Prints and exits on --help and on an illegal command line.
GptOptions OptionsFromFlags(int argc, char** argv);

}  // namespace tessera::examples
