// SPDX-License-Identifier: Apache-2.0
#include "zero/coordinator.h"

#include <algorithm>
#include <cstring>

#include "tensor/ops/copy.h"

namespace tessera::zero {
namespace {

bool Contains(const std::vector<const nn::Module*>& list, const nn::Module* module) {
  return std::find(list.begin(), list.end(), module) != list.end();
}

Tensor Shaped(const Tensor& flat, int64_t offset, const Shape& shape) {
  return flat.WithLayout(Layout::Contiguous(shape, flat.layout().offset() + offset));
}

}  // namespace

Coordinator::Coordinator(nn::Module& root, const Partition& partition, ParamStore& store, GradientReducer& reducer,
                         comm::Communicator& comm, Stream& compute, Stream& comm_stream,
                         const CoordinatorOptions& options)
    : root_(root),
      partition_(partition),
      store_(store),
      reducer_(reducer),
      comm_(comm),
      compute_(compute),
      comm_stream_(comm_stream),
      options_(options),
      slots_({.tag = MemoryTag::kGatherSlots,
              .keep_per_class = options.prefetch_numel > 0 ? 2 : 1,
              .poison = options.poison}),
      units_(static_cast<size_t>(partition.unit_count())) {
  for (int index = 0; index < partition.unit_count(); ++index) {
    Unit& entry = unit(index);
    unit_numel_.push_back(partition.UnitNumel(index));
    entry.whole = store.IsWhole(index);
    if (!entry.whole) continue;
    entry.state = State::kAvailable;
    for (Segment which : kSegments) entry.data[static_cast<size_t>(which)] = store.Whole(index, which);
  }
  nn::Adopt(root, this);
}

Coordinator::~Coordinator() { nn::Adopt(root_, nullptr); }

// ---- leases ----

void Coordinator::Lease(int index) {
  Unit& entry = unit(index);
  if (entry.leases++ > 0 || entry.whole) return;
  schedule_.Demand(index);
  try {
    if (entry.state == State::kNotAvailable) {
      MakeRoomFor(unit_numel_[static_cast<size_t>(index)]);
      StartGather(index);
    }
    GatherAhead();
  } catch (...) {
    --entry.leases;  // whoever asked never had it
    throw;
  }
}

void Coordinator::Drop(int index, const nn::Module* leaving, Phase phase) noexcept {
  Unit& entry = unit(index);
  if (--entry.leases > 0 || entry.whole) return;
  if (!WantsToStay(index, leaving, phase)) Free(index);
}

bool Coordinator::WantsToStay(int index, const nn::Module* leaving, Phase phase) const {
  // A unit of several merged modules stays until the last of them has run.
  const std::vector<const nn::Module*>& members = partition_.unit(index).modules;
  if (leaving != nullptr && members.size() > 1 && Contains(members, leaving) &&
      leaving != (phase == Phase::kBackward ? members.front() : members.back())) {
    return true;
  }
  if (options_.max_reuse_distance < 0 || live_numel_ > options_.max_live_numel) return false;
  const std::optional<int64_t> distance = schedule_.ReuseDistance(index, unit_numel_);
  return distance.has_value() && *distance <= options_.max_reuse_distance;
}

void Coordinator::StartGather(int index) {
  Unit& entry = unit(index);
  ++gather_count_;
  live_numel_ += unit_numel_[static_cast<size_t>(index)];
  peak_live_numel_ = std::max(peak_live_numel_, live_numel_);
  Event updated;  // slices are written by the compute stream, and slots were read by it
  updated.Record(compute_);
  comm_stream_.Wait(updated);
  for (Segment which : kSegments) {
    const int64_t numel = partition_.segment(index, which).numel;
    Tensor& slot = entry.data[static_cast<size_t>(which)];
    slot = slots_.Acquire(numel, partition_.dtype());
    slot.storage()->SetLabel(store_.label(index, which));
    if (numel == 0) continue;
    comm_.AllGather(store_.Slice(index, which), slot, comm_stream_, {.purpose = comm::Purpose::kParams});
  }
  entry.ready.Record(comm_stream_);
  entry.state = State::kInflight;
}

void Coordinator::GatherAhead() {
  if (options_.prefetch_numel <= 0) return;
  int64_t ahead = 0;
  for (size_t i = 0; i < units_.size(); ++i) {
    const Unit& entry = units_[i];
    if (!entry.whole && entry.state != State::kNotAvailable && entry.leases == 0) ahead += unit_numel_[i];
  }
  for (int next : schedule_.Ahead()) {
    Unit& entry = unit(next);
    if (entry.state != State::kNotAvailable) continue;
    const int64_t numel = unit_numel_[static_cast<size_t>(next)];
    if (ahead >= options_.prefetch_numel || live_numel_ + numel > options_.max_live_numel) return;
    for (Segment which : kSegments) {
      if (!slots_.HasRoom(partition_.segment(next, which).numel, partition_.dtype())) return;
    }
    StartGather(next);
    ahead += numel;
  }
}

void Coordinator::MakeRoomFor(int64_t numel) {
  for (size_t i = units_.size(); i-- > 0 && live_numel_ + numel > options_.max_live_numel;) {
    const Unit& entry = units_[i];
    if (!entry.whole && entry.leases == 0 && entry.state != State::kNotAvailable) Free(static_cast<int>(i));
  }
  slots_.Shrink(options_.max_live_numel);  // free slots of other sizes count too
}

void Coordinator::Free(int index) noexcept {
  Unit& entry = unit(index);
  try {
    if (entry.state == State::kInflight) entry.ready.Synchronize();  // gathered ahead, and not used
  } catch (...) {
    // The group has failed; the next call that uses it says so. The slot is not written to any more.
  }
  Event read;
  read.Record(compute_);
  for (Tensor& data : entry.data) {
    slots_.Release(std::move(data), read);
    data = Tensor();
  }
  entry.state = State::kNotAvailable;
  live_numel_ -= unit_numel_[static_cast<size_t>(index)];
}

void Coordinator::WaitReady(Unit& entry) {
  compute_.Wait(entry.ready);
  entry.ready = Event();
  entry.state = State::kAvailable;
}

void Coordinator::ReleaseIdle() {
  for (size_t i = 0; i < units_.size(); ++i) {
    const Unit& entry = units_[i];
    if (!entry.whole && entry.leases == 0 && entry.state != State::kNotAvailable) Free(static_cast<int>(i));
  }
}

void Coordinator::CheckNothingLeased(const char* where) const {
  if (leased_.empty()) return;
  throw Error(Str(where, ": parameter '", leased_[0]->path(), "' is still gathered; let its lease go before it"));
}

void Coordinator::SetRefresh(int index, const Event& done) { unit(index).ready = done; }

// ---- what parameters ask ----

Tensor Coordinator::Data(nn::Parameter& parameter) {
  const ParamPlace& place = partition_.place(parameter);
  Unit& entry = unit(place.unit);
  if (entry.leases == 0) {
    if (!in_backward_) {
      throw Error(Str("parameter '", parameter.path(), "' is not gathered: read it in its module's forward, let the ",
                      "module that uses it say Uses(), or hold a lease (auto w = p.Gather())"));
    }
    Lease(place.unit);
    FrameFor(place.unit).leased.push_back(place.unit);
  }
  WaitReady(entry);
  return Shaped(entry.data[static_cast<size_t>(place.segment)], place.offset, parameter.shape());
}

// Whose exit ends a lease that backward took: the outermost scope of the unit's own modules, or, where a foreign module
// asks, the innermost scope.
Coordinator::Frame& Coordinator::FrameFor(int index) {
  for (size_t i = 1; i < frames_.size(); ++i) {
    if (Contains(partition_.unit(index).modules, frames_[i].module)) return frames_[i];
  }
  return frames_.back();
}

void Coordinator::Acquire(nn::Parameter& parameter) {
  Lease(partition_.place(parameter).unit);
  leased_.push_back(&parameter);
}
void Coordinator::Release(nn::Parameter& parameter) noexcept {
  leased_.erase(std::find(leased_.begin(), leased_.end(), &parameter));
  Drop(partition_.place(parameter).unit, nullptr, Phase::kForward);
}

// ---- scopes ----

void Coordinator::OnEnter(ScopeOwner& scope, Phase phase) {
  const auto& module = static_cast<const nn::Module&>(scope);
  if (phase == Phase::kBackward) {
    frames_.push_back({.module = &module, .leased = {}});
    return;
  }
  const std::vector<int>& needed = partition_.UnitsOfScope(module);
  for (size_t i = 0; i < needed.size(); ++i) {
    try {
      Lease(needed[i]);
    } catch (...) {
      for (size_t taken = 0; taken < i; ++taken) Drop(needed[taken], &module, phase);
      throw;
    }
  }
}

void Coordinator::OnExit(ScopeOwner& scope, Phase phase) noexcept {
  const auto& module = static_cast<const nn::Module&>(scope);
  if (phase == Phase::kBackward) {
    const Frame frame = std::move(frames_.back());
    frames_.pop_back();
    for (int index : frame.leased) Drop(index, &module, phase);
    return;
  }
  for (int index : partition_.UnitsOfScope(module)) {
    if (phase == Phase::kRecompute) {
      recomputes_.back().push_back(index);  // stays until its backward is over
    } else {
      Drop(index, &module, phase);
    }
  }
}

void Coordinator::OnRecomputeBegin() { recomputes_.emplace_back(); }

void Coordinator::OnRecomputeEnd() noexcept {
  const std::vector<int> leased = std::move(recomputes_.back());
  recomputes_.pop_back();
  for (int index : leased) Drop(index, nullptr, Phase::kBackward);
}

void Coordinator::BeginCycle() { schedule_.Begin(); }

void Coordinator::OnBackwardBegin(std::span<ParamSource* const> used) {
  in_backward_ = true;
  reducer_.OnBackwardBegin(used);
}

void Coordinator::OnBackwardEnd() {
  in_backward_ = false;
  DropFrames();
  schedule_.End();
  ReleaseIdle();
  reducer_.OnBackwardEnd();
}

void Coordinator::OnDiscard(bool in_backward) noexcept {
  in_backward_ = false;
  DropFrames();
  schedule_.Abandon();
  ReleaseIdle();
  reducer_.Discard(in_backward);
}

void Coordinator::DropFrames() noexcept {
  for (const Frame& frame : frames_) {
    for (int index : frame.leased) Drop(index, nullptr, Phase::kBackward);
  }
  frames_.assign(1, {});
}

// ---- edits ----

int Coordinator::AgreeOnEdit(const nn::Parameter& parameter, const Tensor& before, const Tensor& after) {
  struct Vote {
    bool changed = false;
    uint64_t hash = 0;
  };
  const auto* bytes =
      static_cast<const unsigned char*>(after.Read().data) + after.layout().offset() * ItemSize(after.dtype());
  Vote mine;
  mine.changed = std::memcmp(before.Read().data, bytes, static_cast<size_t>(after.bytes())) != 0;
  mine.hash = 1469598103934665603u;  // FNV-1a
  for (int64_t i = 0; i < after.bytes(); ++i) mine.hash = (mine.hash ^ bytes[i]) * 1099511628211u;
  std::string message(sizeof mine, '\0');
  std::memcpy(message.data(), &mine, sizeof mine);
  const std::vector<std::string> votes = comm_.AllGatherBytes(message);
  int winner = -1;
  uint64_t winning_hash = 0;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    Vote vote;
    std::memcpy(&vote, votes[static_cast<size_t>(rank)].data(), sizeof vote);
    if (!vote.changed) continue;
    if (winner < 0) {
      winner = rank;
      winning_hash = vote.hash;
    } else if (vote.hash != winning_hash) {
      throw Error(Str("edit: ranks ", winner, " and ", rank, " wrote different values to parameter '", parameter.path(),
                      "'; write the same on all ranks, or on one"));
    }
  }
  return winner;
}

void Coordinator::Edit(nn::Parameter& parameter, FunctionRef<void(Tensor&)> edit) {
  const ParamPlace& place = partition_.place(parameter);
  const nn::ParamLease lease(parameter);
  const Tensor data = lease.data();
  Tensor edited = CopyTo(data, data.dtype(), MemoryTag::kWorkspace);  // a failing edit leaves everything as it was
  edit(edited);
  if (edited.shape() != data.shape() || edited.dtype() != data.dtype() || !edited.layout().IsContiguous()) {
    throw Error(
        Str("edit: parameter '", parameter.path(), "' is ", data, ", the edit left ", edited, "; write into it"));
  }
  const int winner = parameter.numel() == 0 ? -1 : AgreeOnEdit(parameter, data, edited);
  if (winner < 0) return;
  const Tensor flat = Shaped(edited, 0, {parameter.numel()});
  comm_.Broadcast(flat, winner, comm_stream_);
  comm_stream_.Synchronize();

  ops::Copy({.x = edited.Read(), .out = data.Write()});
  const Tensor slice = store_.Slice(place.unit, place.segment);
  const int64_t begin = comm_.rank() * slice.numel();  // in the segment
  const int64_t first = std::max(begin, place.offset);
  const int64_t last = std::min(begin + slice.numel(), place.offset + parameter.numel());
  if (first < last) {
    ops::Copy({.x = FlatPart(flat, first - place.offset, last - first).Read(),
               .out = FlatPart(slice, first - begin, last - first).Write()});
  }
  if (master_writer_ != nullptr && place.segment == Segment::kTrainable) {
    master_writer_->WriteMaster(place.unit, place.offset, flat);
  }
}

}  // namespace tessera::zero
