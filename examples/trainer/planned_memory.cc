// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer/planned_memory.h"

#include "optim/optimizer.h"
#include "zero/partition.h"
#include "zero/step.h"

namespace tessera::examples {

RankMemory PlannedMemory(const nn::Module& model, const zero::Config& config, int ranks) {
  const zero::Partition partition(model, config.zero, ranks, config.parameter_dtype());
  const int stage = static_cast<int>(config.zero.stage);
  const bool accumulates = config.gradient_accumulation_steps > 1;
  const int64_t param_bytes = ItemSize(partition.dtype());
  const int64_t grad_bytes = ItemSize(accumulates ? config.accumulation_dtype() : config.communication_dtype());
  const bool canonical = config.tessera.reducer == zero::Reducer::kCanonical;
  // As GradientReducer keeps them: per micro-step only what this rank updates with.
  const bool per_micro_step = canonical ? stage > 0 || accumulates : stage >= 2 && ranks > 1;
  RankMemory memory;
  for (int unit = 0; unit < partition.unit_count(); ++unit) {
    const bool whole = stage < 3 || partition.unit(unit).persistent || ranks == 1;
    for (const zero::Segment segment : zero::kSegments) {
      const int64_t numel = partition.segment(unit, segment).numel;
      memory.weights += param_bytes * (whole ? numel : partition.SliceNumel(unit, segment));
    }
    const int64_t numel = partition.segment(unit, zero::Segment::kTrainable).numel;
    const bool sliced = per_micro_step && stage > 0;
    memory.gradients += grad_bytes * (sliced ? partition.SliceNumel(unit, zero::Segment::kTrainable) : numel);
  }
  const auto optimizer = optim::Optimizer::Create(config.optimizer.type, config.optimizer.params);
  const zero::TierContent content = zero::ShardedStep::Content(partition, stage, *optimizer);
  const int64_t copies = content.state_count + (content.has_master ? 1 : 0);
  for (const int64_t numel : content.unit_numel) memory.states += copies * numel * ItemSize(content.dtype);
  return memory;
}

}  // namespace tessera::examples
