// SPDX-License-Identifier: Apache-2.0
#include "zero/gradient_reducer.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "nn/parameter.h"
#include "tensor/ops/copy.h"
#include "tensor/ops/fill.h"
#include "zero/param_store.h"

namespace tessera::zero {

GradientReducer::GradientReducer(const Partition& partition, comm::Communicator& comm, Stream& compute,
                                 Stream& comm_stream, const GradientReducerOptions& options)
    : partition_(partition),
      comm_(comm),
      compute_(compute),
      comm_stream_(comm_stream),
      options_(options),
      // One rank alone has nothing to reduce: its buffer is the sum.
      per_micro_step_(options.reducer == Reducer::kCanonical ? options.stage > 0 || options.accumulation_steps > 1
                                                             : options.stage >= 2 && comm.size() > 1),
      slots_({.tag = MemoryTag::kGradSlots, .keep_per_class = options.slots_per_size, .poison = options.poison}),
      staging_({.tag = MemoryTag::kGradSlots}),
      units_(static_cast<size_t>(partition.unit_count())),
      position_(partition.parameters().size()),
      order_(units_.size()) {
  // Until the first backward has shown better: the last unit first, and what persists after all, for it is small
  // parameters of every unit.
  std::iota(order_.rbegin(), order_.rend(), 0);
  std::stable_partition(order_.begin(), order_.end(), [&](int index) { return !partition.unit(index).persistent; });
  const DType kept_dtype = options.accumulation_steps > 1 ? options.sum_dtype : options.wire_dtype;
  for (int index = 0; index < partition.unit_count(); ++index) {
    const nn::FlatSegment& segment = partition.segment(index, Segment::kTrainable);
    for (size_t i = 0; i < segment.params.size(); ++i) position_[static_cast<size_t>(segment.params[i].param)] = i;
    Unit& entry = unit(index);
    entry.written.assign(segment.params.size(), 0);
    const int64_t kept = options.stage == 0 ? segment.numel : partition.SliceNumel(index, Segment::kTrainable);
    (per_micro_step_ ? entry.kept : entry.whole) =
        Zeros({per_micro_step_ ? kept : segment.numel}, kept_dtype, MemoryTag::kGrads);  // gaps stay zeros
  }
}

size_t GradientReducer::PositionOf(const nn::Parameter& parameter) const {
  return position_[static_cast<size_t>(partition_.place(parameter).index)];
}

Tensor GradientReducer::Buffer(int index) {
  Unit& entry = unit(index);
  if (!per_micro_step_) return entry.whole;
  if (!entry.slot.defined()) {
    const nn::FlatSegment& segment = partition_.segment(index, Segment::kTrainable);
    entry.slot = slots_.Acquire(segment.numel, options_.wire_dtype);
    int64_t end = 0;  // the gaps are summed and measured too
    for (const nn::FlatParam& param : segment.params) {
      ops::Fill({.out = FlatPart(entry.slot, end, param.offset - end).Write(), .value = 0});
      end = param.offset + param.numel;
    }
    ops::Fill({.out = FlatPart(entry.slot, end, segment.numel - end).Write(), .value = 0});
  }
  return entry.slot;
}

void GradientReducer::BeginMicroStep(bool closes_window) { closes_window_ = closes_window; }

// ---- backward ----

GradTarget GradientReducer::NextTarget(const nn::Parameter& parameter) {
  const ParamPlace& place = partition_.place(parameter);
  if (place.segment == Segment::kFrozen) {
    throw Error(Str("parameter '", parameter.path(), "' is frozen and was asked for a gradient target"));
  }
  const Tensor buffer = Buffer(place.unit);
  uint8_t& written = unit(place.unit).written[PositionOf(parameter)];
  const bool accumulate = written != 0;
  written = 1;
  return {buffer.WithLayout(Layout::Contiguous(parameter.shape(), buffer.layout().offset() + place.offset)),
          accumulate};
}

void GradientReducer::OnBackwardBegin(std::span<ParamSource* const> used) {
  next_ = 0;
  finished_order_.clear();
  for (Unit& entry : units_) {
    entry.pending = 0;
    entry.complete = false;
  }
  for (const ParamSource* source : used) {
    // Parameters of another model may be on the same tape.
    const auto* parameter = dynamic_cast<const nn::Parameter*>(source);
    if (parameter != nullptr && partition_.Holds(*parameter)) ++unit(partition_.place(*parameter).unit).pending;
  }
}

void GradientReducer::Ready(const nn::Parameter& parameter) {
  const int index = partition_.place(parameter).unit;
  if (--unit(index).pending == 0) Complete(index);
}

void GradientReducer::Complete(int index) {
  unit(index).complete = true;
  finished_order_.push_back(index);
  ReduceInOrder();
}

void GradientReducer::ReduceInOrder() {
  if (!per_micro_step_ && !closes_window_) return;
  while (next_ < order_.size() && unit(order_[next_]).complete) ReduceUnit(order_[next_++]);
}

void GradientReducer::OnBackwardEnd() {
  for (int index : order_) {
    if (!unit(index).complete) Complete(index);
  }
  if (!order_is_agreed_) AgreeOnOrder();
}

void GradientReducer::AgreeOnOrder() {
  std::string mine(finished_order_.size() * sizeof(int), '\0');
  std::memcpy(mine.data(), finished_order_.data(), mine.size());
  const std::string agreed = comm_.AllGatherBytes(mine)[0];
  std::memcpy(order_.data(), agreed.data(), agreed.size());
  order_is_agreed_ = true;
}

void GradientReducer::FillUnwritten(int index) {
  Unit& entry = unit(index);
  const nn::FlatSegment& segment = partition_.segment(index, Segment::kTrainable);
  for (size_t i = 0; i < entry.written.size(); ++i) {
    if (entry.written[i] != 0) continue;
    const nn::FlatParam& param = segment.params[i];
    ops::Fill({.out = FlatPart(Buffer(index), param.offset, param.numel).Write(), .value = 0});
  }
}

// ---- reducing ----

void GradientReducer::ReduceUnit(int index) {
  if (is_empty(index)) return;
  FillUnwritten(index);
  Event written;
  const Tensor buffer = Buffer(index);
  written.Record(compute_);
  comm_stream_.Wait(written);
  if (per_micro_step_) {
    ReduceSlot(index);
  } else {
    ReduceWhole(index);
  }
}

void GradientReducer::ReduceWhole(int index) {
  Unit& entry = unit(index);
  entry.reduced = true;
  if (comm_.size() == 1) return;
  if (options_.stage == 0) {
    SumEverywhere(entry.whole);
  } else {
    const int64_t slice = partition_.SliceNumel(index, Segment::kTrainable);
    SumToSlice(entry.whole, FlatPart(entry.whole, comm_.rank() * slice, slice));
  }
}

void GradientReducer::ReduceSlot(int index) {
  Unit& entry = unit(index);
  const Tensor slot = std::move(entry.slot), kept = entry.kept;
  entry.slot = Tensor();
  std::fill(entry.written.begin(), entry.written.end(), 0);
  Tensor sum = slot;
  if (options_.stage == 0) {
    SumEverywhere(slot);
  } else {
    const int64_t slice = partition_.SliceNumel(index, Segment::kTrainable);
    sum = FlatPart(slot, comm_.rank() * slice, slice);
    SumToSlice(slot, sum);
  }
  const bool accumulate = entry.has_kept;
  comm_stream_.Run(
      [sum, kept, accumulate] { ops::Copy({.x = sum.Read(), .out = kept.Write(), .accumulate = accumulate}); });
  entry.has_kept = true;
  Event done;
  done.Record(comm_stream_);
  slots_.Release(slot, done);
}

void GradientReducer::SumToSlice(const Tensor& all, const Tensor& one) {
  const int64_t slice = one.numel(), ranks = comm_.size();
  const int64_t piece = std::clamp<int64_t>(options_.bucket_numel / ranks, 1, std::max<int64_t>(slice, 1));
  for (int64_t begin = 0; begin < slice; begin += piece) {
    const int64_t count = std::min(piece, slice - begin);
    const Tensor pieces = FlatPart(all, begin, (ranks - 1) * slice + count);
    const Tensor part = FlatPart(one, begin, count);
    if (options_.reducer == Reducer::kCanonical) {
      CanonicalPiece(pieces, part, slice);
    } else {
      comm_.ReduceScatter(pieces, part, comm_stream_, {.pitch = slice, .purpose = comm::Purpose::kGradients});
    }
  }
}

void GradientReducer::SumEverywhere(const Tensor& all) {
  const int64_t ranks = comm_.size(), slice = all.numel() / ranks;
  if (options_.reducer == Reducer::kCanonical) {
    const Tensor mine = FlatPart(all, comm_.rank() * slice, slice);
    SumToSlice(all, mine);
    comm_.AllGather(mine, all, comm_stream_, {.purpose = comm::Purpose::kGradients});
    return;
  }
  for (int64_t begin = 0; begin < all.numel(); begin += options_.bucket_numel) {
    const int64_t count = std::min(options_.bucket_numel, all.numel() - begin);
    comm_.AllReduce(FlatPart(all, begin, count), comm_stream_, {.purpose = comm::Purpose::kGradients});
  }
}

void GradientReducer::CanonicalPiece(const Tensor& all, const Tensor& one, int64_t pitch) {
  const int64_t count = one.numel(), ranks = comm_.size();
  const Tensor received = staging_.Acquire(ranks * count, one.dtype());
  const DType exact = AccumulationType(one.dtype());
  const Tensor sum = exact == one.dtype() ? one : staging_.Acquire(count, exact);
  comm_.AllToAll(all, received, comm_stream_, {.pitch = pitch, .purpose = comm::Purpose::kGradients});
  comm_stream_.Run([received, sum, one, count, ranks] {
    for (int64_t rank = 0; rank < ranks; ++rank) {
      ops::Copy({.x = FlatPart(received, rank * count, count).Read(), .out = sum.Write(), .accumulate = rank > 0});
    }
    if (sum.dtype() != one.dtype()) ops::Copy({.x = sum.Read(), .out = one.Write()});
  });
  Event done;
  done.Record(comm_stream_);
  staging_.Release(received, done);
  if (sum.dtype() != one.dtype()) staging_.Release(sum, done);
}

// ---- the window ----

void GradientReducer::FinishWindow() {
  if (!per_micro_step_) {
    for (int index : order_) {
      if (!unit(index).reduced) ReduceUnit(index);
    }
  } else {
    for (Unit& entry : units_) {
      if (!entry.has_kept) ops::Fill({.out = entry.kept.Write(), .value = 0});
    }
  }
  Event done;
  done.Record(comm_stream_);
  compute_.Wait(done);
}

void GradientReducer::ClearWindow() {
  for (Unit& entry : units_) {
    std::fill(entry.written.begin(), entry.written.end(), 0);
    entry.reduced = false;
    entry.has_kept = false;
    if (entry.slot.defined()) slots_.Release(std::move(entry.slot));
    entry.slot = Tensor();
  }
}

void GradientReducer::Discard(bool in_backward) noexcept {
  if (!in_backward) return;
  // Sums may be under way in buffers that the next window writes to at once.
  Event done;
  done.Record(comm_stream_);
  try {
    compute_.Wait(done);
  } catch (...) {
    // The group has failed; the next call that uses it says so.
  }
  ClearWindow();
}

Tensor GradientReducer::Gradient(int index) const {
  const Unit& entry = units_[static_cast<size_t>(index)];
  if (per_micro_step_) return entry.kept;
  if (options_.stage == 0) return entry.whole;
  const int64_t slice = partition_.SliceNumel(index, Segment::kTrainable);
  return FlatPart(entry.whole, comm_.rank() * slice, slice);
}

}  // namespace tessera::zero
