// SPDX-License-Identifier: Apache-2.0
#include "zero/step.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tensor/ops/copy.h"

namespace tessera::zero {
namespace {

constexpr int kColumns = 3;
enum : int { kSquares, kLossSum, kLossWeight };

}  // namespace

ShardedStep::ShardedStep(const Partition& partition, ParamStore& store, Coordinator& coordinator,
                         GradientReducer& reducer, comm::Communicator& comm, Stream& compute, Stream& comm_stream,
                         const optim::Optimizer& optimizer, std::unique_ptr<Tier> tier, const StepOptions& options)
    : partition_(partition),
      store_(store),
      coordinator_(coordinator),
      reducer_(reducer),
      comm_(comm),
      compute_(compute),
      comm_stream_(comm_stream),
      optimizer_(optimizer),
      tier_(std::move(tier)),
      options_(options),
      has_master_(IsLowPrecision(partition.dtype())),
      scalars_(optimizer.start_values()),
      by_rank_(Zeros({comm.size(), kColumns}, DType::kF64, MemoryTag::kWorkspace)) {
  if (!has_master_) return;
  for (int unit = 0; unit < partition.unit_count(); ++unit) {
    WriteMaster(unit, UpdatedBegin(unit), UpdatedParams(unit));
  }
}

TierContent ShardedStep::Content(const Partition& partition, int stage, const optim::Optimizer& optimizer) {
  TierContent content{.dtype = AccumulationType(partition.dtype()),
                      .has_master = IsLowPrecision(partition.dtype()),
                      .state_count = optimizer.state_count()};
  for (int unit = 0; unit < partition.unit_count(); ++unit) {
    content.unit_numel.push_back(stage == 0 ? partition.segment(unit, Segment::kTrainable).numel
                                            : partition.SliceNumel(unit, Segment::kTrainable));
  }
  return content;
}

int64_t ShardedStep::UpdatedNumel(int unit) const {
  return options_.stage == 0 ? partition_.segment(unit, Segment::kTrainable).numel
                             : partition_.SliceNumel(unit, Segment::kTrainable);
}

int64_t ShardedStep::UpdatedBegin(int unit) const {
  return options_.stage == 0 ? 0 : comm_.rank() * UpdatedNumel(unit);
}

Tensor ShardedStep::UpdatedParams(int unit) const {
  return options_.stage == 0 ? store_.Whole(unit, Segment::kTrainable) : store_.Slice(unit, Segment::kTrainable);
}

void ShardedStep::WriteMaster(int unit, int64_t begin, const Tensor& values) {
  if (!has_master_) return;
  const int64_t own = UpdatedBegin(unit);
  const int64_t first = std::max(begin, own), last = std::min(begin + values.numel(), own + UpdatedNumel(unit));
  if (first >= last) return;
  TierRange range = tier_->Fetch(unit, first - own, last - first);
  ops::Copy({.x = FlatPart(values, first - begin, last - first).Read(), .out = range.master.Write()});
  tier_->Store(unit, first - own, range);
}

// ---- the step ----

void ShardedStep::Run(const Tensor& window) {
  Measure(window);
  const auto column = [this](int index) {
    return by_rank_.WithLayout(Layout({comm_.size()}, {kColumns}, by_rank_.layout().offset() + index));
  };
  optim::BeginStep(scalars_, {.sum_squares = column(kSquares),
                              .loss_weight = column(kLossWeight),
                              .expected_weight = options_.expected_weight,
                              .max_norm = options_.max_norm,
                              .skip_non_finite = options_.skip_non_finite});
  for (int unit = 0; unit < partition_.unit_count(); ++unit) {
    if (partition_.segment(unit, Segment::kTrainable).numel == 0) continue;
    UpdateUnit(unit);
    Refresh(unit);
  }
}

void ShardedStep::Measure(const Tensor& window) {
  norm_.Clear();
  const int64_t rank = comm_.rank();
  for (int unit = 0; unit < partition_.unit_count(); ++unit) {
    const Tensor gradient = reducer_.Gradient(unit);
    const int64_t slice = partition_.SliceNumel(unit, Segment::kTrainable);
    norm_.Add(FlatPart(gradient, options_.stage == 0 ? rank * slice : 0, slice).Read());
  }
  const Tensor flat = by_rank_.WithLayout(Layout::Contiguous({by_rank_.numel()}));
  const Tensor mine = FlatPart(flat, rank * kColumns, kColumns);
  ops::Copy({.x = norm_.sum_squares().Read(), .out = FlatPart(mine, kSquares, 1).Write()});
  ops::Copy({.x = window.Read(), .out = FlatPart(mine, kLossSum, 2).Write()});
  if (comm_.size() == 1) return;
  Event measured, exchanged;
  measured.Record(compute_);
  comm_stream_.Wait(measured);
  comm_.AllGather(mine, flat, comm_stream_, {.purpose = comm::Purpose::kControl});
  exchanged.Record(comm_stream_);
  compute_.Wait(exchanged);
}

void ShardedStep::UpdateUnit(int unit) {
  const int64_t own = UpdatedBegin(unit), numel = UpdatedNumel(unit);
  const Tensor params = UpdatedParams(unit), gradient = reducer_.Gradient(unit);
  for (const DecayRun& run : partition_.DecayRuns(unit, own, numel)) {
    for (int64_t begin = run.begin; begin < run.begin + run.numel; begin += options_.piece_numel) {
      const int64_t count = std::min(options_.piece_numel, run.begin + run.numel - begin), at = begin - own;
      TierRange range = tier_->Fetch(unit, at, count);
      const Tensor piece = FlatPart(params, at, count);
      optim::FlatSpan span{.master = has_master_ ? range.master.Write() : piece.Write(),
                           .gradient = FlatPart(gradient, at, count).Read(),
                           .decay = run.decay};
      if (has_master_) span.low_precision = piece.Write();
      for (int i = 0; i < optimizer_.state_count(); ++i) {
        span.states[static_cast<size_t>(i)] = range.states[static_cast<size_t>(i)].Write();
      }
      optimizer_.Update(span, scalars_);
      tier_->Store(unit, at, range);
    }
  }
}

// What other ranks hold too gets their slices; whoever reads the unit next waits for it.
void ShardedStep::Refresh(int unit) {
  if (options_.stage == 0 || !store_.IsWhole(unit) || comm_.size() == 1) return;
  const int64_t ranks = comm_.size(), slice = partition_.SliceNumel(unit, Segment::kTrainable);
  const int64_t piece = std::clamp<int64_t>(options_.bucket_numel / ranks, 1, slice);
  const Tensor whole = store_.Whole(unit, Segment::kTrainable), mine = store_.Slice(unit, Segment::kTrainable);
  Event updated, refreshed;
  updated.Record(compute_);
  comm_stream_.Wait(updated);
  for (int64_t begin = 0; begin < slice; begin += piece) {
    const int64_t count = std::min(piece, slice - begin);
    comm_.AllGather(FlatPart(mine, begin, count), FlatPart(whole, begin, (ranks - 1) * slice + count), comm_stream_,
                    {.pitch = slice, .purpose = comm::Purpose::kParams});
  }
  refreshed.Record(comm_stream_);
  coordinator_.SetRefresh(unit, refreshed);
}

// ---- what was wrong, and how much there was ----

WindowTotals ShardedStep::Totals() const {
  WindowTotals totals;
  for (int rank = 0; rank < comm_.size(); ++rank) {
    totals.loss_sum += by_rank_.At(rank, kLossSum);
    totals.weight += by_rank_.At(rank, kLossWeight);
  }
  return totals;
}

std::optional<NonFinite> ShardedStep::FindNonFinite() const {
  struct Finding {
    int parameter = -1;
    bool is_nan = false;
  };
  Finding mine;
  for (int unit = 0; unit < partition_.unit_count(); ++unit) {
    const int64_t own = UpdatedBegin(unit);
    const std::vector<double> values = reducer_.Gradient(unit).ToVector();
    for (size_t i = 0; i < values.size(); ++i) {
      if (std::isfinite(values[i])) continue;
      const nn::Parameter* parameter = partition_.ParameterAt(unit, own + static_cast<int64_t>(i));
      if (parameter == nullptr) continue;
      const int index = partition_.place(*parameter).index;
      if (mine.parameter < 0 || index < mine.parameter) mine = {index, std::isnan(values[i])};
    }
  }
  std::string message(sizeof mine, '\0');
  std::memcpy(message.data(), &mine, sizeof mine);
  Finding first;
  for (const std::string& each : comm_.AllGatherBytes(message)) {
    Finding theirs;
    std::memcpy(&theirs, each.data(), sizeof theirs);
    if (theirs.parameter >= 0 && (first.parameter < 0 || theirs.parameter < first.parameter)) first = theirs;
  }
  if (first.parameter < 0) return std::nullopt;
  return NonFinite{partition_.parameters()[static_cast<size_t>(first.parameter)]->path(), first.is_nan};
}

}  // namespace tessera::zero
