// SPDX-License-Identifier: Apache-2.0
// The optimizer step over shards: one reproducible norm, one decision to clip or skip, the update in pieces through a
// tier, and the refresh of the parameters that other ranks hold too.
//
//   step.Run({.loss_sum = ..., .loss_weight = ...});
//   step.scalars().was_step_applied(), step.Totals().weight
//
// The norm is S_0 + S_1 + ... in the order of ranks, where S_r goes over the slices of rank r in the order of units, in the
// written order of tensor/ops/sum_squares.h: the same bits at every stage.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "comm/communicator.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "zero/coordinator.h"
#include "zero/gradient_reducer.h"
#include "zero/param_store.h"
#include "zero/partition.h"
#include "zero/tier.h"

namespace tessera::zero {

struct StepOptions {
  int stage = 0;
  double max_norm = 0;  // 0: no clipping
  bool skip_non_finite = true;
  double expected_weight = 1;           // of the loss, over all micro-steps and ranks
  int64_t piece_numel = 1'000'000'000;  // of one update: sub_group_size
  int64_t bucket_numel = 500'000'000;   // of one refreshing all-gather
};

// Sums over the window and over all ranks.
struct WindowTotals {
  double loss_sum = 0, weight = 0;
};

// What was wrong with a gradient, and whose it was.
struct NonFinite {
  std::string parameter;
  bool is_nan = false;  // else infinite
};

class ShardedStep final : public MasterWriter {
 public:
  ShardedStep(const Partition& partition, ParamStore& store, Coordinator& coordinator, GradientReducer& reducer,
              comm::Communicator& comm, Stream& compute, Stream& comm_stream, const optim::Optimizer& optimizer,
              std::unique_ptr<Tier> tier, const StepOptions& options);

  // `window` (2), f64: this rank's loss sum and loss weight. Collective.
  void Run(const Tensor& window);

  optim::StepScalars& scalars() { return scalars_; }
  const optim::StepScalars& scalars() const { return scalars_; }
  WindowTotals Totals() const;  // of the last Run; waits for the device
  // The first parameter, in the partition's order, whose reduced gradient is not finite. Collective; after Run, before the
  // window is cleared.
  std::optional<NonFinite> FindNonFinite() const;

  void WriteMaster(int unit, int64_t begin, const Tensor& values) override;

  // What a tier must hold for this rank.
  static TierContent Content(const Partition& partition, int stage, const optim::Optimizer& optimizer);

 private:
  int64_t UpdatedBegin(int unit) const;  // in the segment
  int64_t UpdatedNumel(int unit) const;
  Tensor UpdatedParams(int unit) const;
  void Measure(const Tensor& window);
  void UpdateUnit(int unit);
  void Refresh(int unit);

  const Partition& partition_;
  ParamStore& store_;
  Coordinator& coordinator_;
  GradientReducer& reducer_;
  comm::Communicator& comm_;
  Stream& compute_;
  Stream& comm_stream_;
  const optim::Optimizer& optimizer_;
  std::unique_ptr<Tier> tier_;
  StepOptions options_;
  bool has_master_;
  optim::StepScalars scalars_;
  optim::GradientNorm norm_;
  Tensor by_rank_;  // (ranks, 3) f64: sum of squares, loss sum, loss weight
};

}  // namespace tessera::zero
