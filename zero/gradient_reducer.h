// SPDX-License-Identifier: Apache-2.0
// Where gradients are written, and how they become the sum over ranks.
//
// Ops write a unit's gradients straight into a flat buffer. Two ways, by stage:
// * whole (stages 0 and 1): one whole buffer per unit for the window of accumulation, reduced at its end;
// * per micro-step (stages 2 and 3, and every stage of the canonical reducer): a slot that is reduced as soon as backward
//   is done with the unit, and added to what this rank keeps: its slice (at stage 0 of the canonical reducer: all).
// Units are reduced in one order on every rank, that in which rank 0's first backward finished them; what no gradient
// reached is zeros, so that every rank issues the same collectives whatever branch it took.
//
// The canonical reducer sends pieces all to all and sums them in the order of ranks, in f32, rounded once to the wire's
// dtype: the bits depend on neither stage nor transport. The fast one leaves the sum to the communicator.
#pragma once

#include <span>
#include <vector>

#include "autograd/param.h"
#include "comm/communicator.h"
#include "zero/config.h"
#include "zero/partition.h"
#include "zero/slot_pool.h"

namespace tessera::zero {

struct GradientReducerOptions {
  int stage = 0;
  Reducer reducer = Reducer::kFast;
  int64_t accumulation_steps = 1;
  int64_t bucket_numel = 500'000'000;  // of one collective
  DType wire_dtype = DType::kF32;      // of what is written and sent
  DType sum_dtype = DType::kF32;       // of what is kept over several micro-steps
  int slots_per_size = 1;
  bool poison = false;
};

class GradientReducer {
 public:
  GradientReducer(const Partition& partition, comm::Communicator& comm, Stream& compute, Stream& comm_stream,
                  const GradientReducerOptions& options);

  // Before a micro-step's backward; `closes_window`: it is the last of its window.
  void BeginMicroStep(bool closes_window);

  GradTarget NextTarget(const nn::Parameter& parameter);
  void Ready(const nn::Parameter& parameter);
  void OnBackwardBegin(std::span<ParamSource* const> used);
  void OnBackwardEnd();
  // A tape broke off. In backward that spoils the whole window.
  void Discard(bool in_backward) noexcept;

  // Ends the window: reduces what is not reduced yet, zero-fills what had no gradient at all, waits.
  void FinishWindow();
  // Forgets the window without using it.
  void ClearWindow();
  // The reduced gradient that this rank updates with: its slice, or at stage 0 the whole segment. After FinishWindow.
  Tensor Gradient(int unit) const;

 private:
  struct Unit {
    Tensor whole;                  // whole: the window's buffer
    Tensor slot;                   // per micro-step: while backward writes and the sum is on its way
    Tensor kept;                   // per micro-step: this rank's sum over the window
    std::vector<uint8_t> written;  // by position in the segment: a gradient came (this window, or this micro-step)
    int pending = 0;               // used parameters that are not ready yet
    bool complete = false;         // in this backward
    bool reduced = false;          // in this micro-step, or this window
    bool has_kept = false;         // `kept` holds a sum of this window
  };
  Unit& unit(int index) { return units_[static_cast<size_t>(index)]; }
  bool is_empty(int index) const { return partition_.segment(index, Segment::kTrainable).numel == 0; }
  Tensor Buffer(int index);  // acquires the slot
  size_t PositionOf(const nn::Parameter& parameter) const;
  void FillUnwritten(int index);
  void Complete(int index);
  void ReduceInOrder();
  void AgreeOnOrder();
  void ReduceUnit(int index);
  void ReduceWhole(int index);
  void ReduceSlot(int index);
  void SumToSlice(const Tensor& all, const Tensor& one);  // one may be this rank's part of all
  void SumEverywhere(const Tensor& all);
  void CanonicalPiece(const Tensor& all, const Tensor& one, int64_t pitch);

  const Partition& partition_;
  comm::Communicator& comm_;
  Stream& compute_;
  Stream& comm_stream_;
  GradientReducerOptions options_;
  bool per_micro_step_;
  SlotPool slots_;
  SlotPool staging_;  // what an all-to-all receives
  std::vector<Unit> units_;
  std::vector<size_t> position_;     // of each parameter in its segment, in the partition's numbering
  std::vector<int> order_;           // of reducing
  std::vector<int> finished_order_;  // of the first backward
  size_t next_ = 0;                  // in order_
  bool order_is_agreed_ = false;
  bool closes_window_ = true;
};

}  // namespace tessera::zero
