// SPDX-License-Identifier: Apache-2.0
// The parameters at rest: for each unit and segment a whole flat buffer (stages 0 to 2, and what persists) or this rank's
// slice of one (stage 3). Born in that form: a rank of stage 3 draws the first values of its own slice and no others.
//
//   ParamStore store(partition, /*stage=*/3, rank, seed);
//   store.IsWhole(unit); store.Slice(unit, Segment::kTrainable);   // (slice) what this rank owns, wherever it lies
#pragma once

#include <array>
#include <memory>
#include <vector>

#include "nn/flat_buffer_label.h"
#include "zero/partition.h"

namespace tessera::zero {

class ParamStore {
 public:
  ParamStore(const Partition& partition, int stage, int rank, uint64_t seed);
  ~ParamStore();
  ParamStore(const ParamStore&) = delete;
  ParamStore& operator=(const ParamStore&) = delete;

  bool IsWhole(int unit) const { return units_[static_cast<size_t>(unit)].whole; }
  // (segment numel); only where IsWhole.
  const Tensor& Whole(int unit, Segment segment) const { return held(unit, segment).data; }
  Tensor Slice(int unit, Segment segment) const;  // (slice numel): this rank's
  // What the storage of a segment is called in errors; also for buffers that it is gathered into.
  const StorageLabel* label(int unit, Segment segment) const { return held(unit, segment).label.get(); }

 private:
  struct Held {
    Tensor data;
    std::unique_ptr<nn::FlatBufferLabel> label;
  };
  struct Unit {
    bool whole = true;
    std::array<Held, 2> segments;
  };
  const Held& held(int unit, Segment segment) const {
    return units_[static_cast<size_t>(unit)].segments[static_cast<size_t>(segment)];
  }
  void Draw(int unit, Segment segment, uint64_t seed);

  const Partition& partition_;
  int rank_;
  std::vector<Unit> units_;
};

// Elements [begin, begin + numel) of a flat tensor.
Tensor FlatPart(const Tensor& flat, int64_t begin, int64_t numel);

}  // namespace tessera::zero
