// SPDX-License-Identifier: Apache-2.0
// What a run says before it begins and after it has ended: two tables, as text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "comm/ledger.h"
#include "examples/common/format.h"
#include "examples/trainer/options.h"
#include "examples/trainer/planned_memory.h"
#include "io/text.h"
#include "tensor/allocator.h"

namespace tessera::examples {

struct StartFacts {
  int64_t parameters = 0, trained_parameters = 0;
  int64_t threads_per_rank = 1;
  std::vector<RankMemory> by_rank;
};

struct EndFacts {
  double elapsed_s = 0;
  int64_t steps = 0;
  double step_s = 0;                     // mean without the first step and validations; 0: not known
  double first_loss = 0, last_loss = 0;  // of training
  double validation_loss = 0, best_loss = 0;
  int64_t best_step = 0;
  AllocatorStats memory;            // of rank 0
  std::vector<comm::Traffic> sent;  // by rank 0 in training steps, by comm::Purpose
  std::string report_path;          // empty: none is written
  bool failed = false;              // an error ended the run
};

std::vector<Row> StartRows(const TrainerOptions& options, const io::TextDatasets& text, const StartFacts& facts);
// The config's values that are no defaults, each with where it comes from: "zero_optimization.stage 3 (--zero_stage)".
std::string ConfigLines(const zero::Config& config);
std::string StartTable(const TrainerOptions& options, std::span<const Row> rows, int columns);
std::string EndTable(const TrainerOptions& options, const io::TextDatasets& text, const EndFacts& facts, int columns);

}  // namespace tessera::examples
