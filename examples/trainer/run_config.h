// SPDX-License-Identifier: Apache-2.0
// The config of a run from two sources, the command line and a DeepSpeed config file. Where both speak they must agree;
// where one is silent the other counts; where both are, the preset does. "auto" in the file leaves a value to the flags,
// the preset and the rules of DeepSpeed's integrations.
//
//   zero::Config config = RunConfig("ds_config.json", {.zero_stage = 3}, {.global_batch = 16}, /*ranks=*/2);
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "zero/config.h"

namespace tessera::examples {

// Flags that a config file has a key for. Absent: not on the command line.
struct ConfigFlags {
  std::optional<int64_t> zero_stage = {};
  std::string stage_flag = "zero_stage";   // which flag gave it, for messages
  std::optional<int64_t> batch_size = {};  // of one rank's micro-batch
  std::optional<int64_t> gradient_accumulation_steps = {};
  std::optional<double> gradient_clipping = {};
  std::optional<int64_t> persistence_threshold = {};
  std::optional<std::string> dtype = {};
  std::optional<double> lr = {};
  // Of the AdamW that is made when the file names no optimizer.
  std::optional<double> weight_decay = {}, adam_beta1 = {}, adam_beta2 = {};
  // Of the schedule that is used when the file names none.
  std::optional<int64_t> warmup_steps = {};
};

struct ConfigFallbacks {
  int64_t global_batch = 16;
  double lr = 1e-3;
  int64_t persistence_threshold = 100'000;
  // For "auto".
  int64_t hidden_size = 0;
  int64_t max_steps = 0;  // 0: the time decides
};

// An empty path: no file. The batch triple is resolved. Throws Error, in one line for each mistake.
zero::Config RunConfig(const std::string& path, const ConfigFlags& flags, const ConfigFallbacks& fallbacks,
                       int64_t ranks);

// fp32, bf16, fp16, fp64: as DeepSpeed writes them.
std::string DTypeName(DType dtype);

}  // namespace tessera::examples
