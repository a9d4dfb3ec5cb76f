// SPDX-License-Identifier: Apache-2.0
// Trains one of the golden models under an engine, in any of the ways that must give the same numbers.
#pragma once

#include <string>
#include <vector>

#include "comm/ledger.h"
#include "tensor/tensor.h"
#include "zero/config.h"

namespace tessera::testing {

struct ParitySetup {
  std::string model = "gpt";  // or "llama"
  int stage = 0;
  int ranks = 1;
  bool recompute = false;
  int accumulation = 1;
  DType dtype = DType::kF64;
  zero::Reducer reducer = zero::Reducer::kFast;
  bool overlap = false;       // communication on a thread of its own
  int64_t persistence = 0;    // stage3_param_persistence_threshold
  int64_t bucket = 4096;      // small, so that units go in pieces
  int64_t sub_group = 1000;   // likewise the update
  bool copying_tier = false;  // states reached by copies, poisoned afterwards
  double dropout = 0;
  int steps = 20;

  std::string Name() const;  // "GptStage2Ranks3RecomputeA3"
};

struct ParityRun {
  struct Step {
    double loss, grad_norm, weight_norm;
  };
  std::vector<Step> steps;
  std::vector<std::string> paths;
  std::vector<Tensor> weights;  // at the end, whole
  int64_t gather_count = 0;
  std::string failure;  // of RunRanks
};

zero::Config ConfigOf(const ParitySetup& setup);
ParityRun TrainWithEngine(const ParitySetup& setup);

}  // namespace tessera::testing
