// SPDX-License-Identifier: Apache-2.0
// Where each parameter lies in its unit's flat buffer, and which part of it each rank owns: integers only.
//
// A unit is two segments, trainable and frozen. Parameters lie in order at 128-byte aligned offsets; a segment is padded so
// that it cuts into N equal, aligned slices. The layout is one function of the parameters, the dtype's size and N, the same
// at every stage, and any rank can compute it for any other.
//
//   FlatLayout layout(units, /*world_size=*/4, /*item_size=*/2);
//   for (const FlatOverlap& o : layout.Overlaps(unit, Segment::kTrainable, rank)) ...   // parameter ∩ slice
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace tessera::nn {

struct FlatParamSpec {
  std::string path;
  int64_t numel = 0;
  bool trainable = true;
};

enum class Segment : uint8_t { kTrainable, kFrozen };

struct FlatParam {
  int64_t param = 0;   // index into the list of all parameters, in the order given
  int64_t offset = 0;  // elements from the start of the segment
  int64_t numel = 0;
};

struct FlatSegment {
  std::vector<FlatParam> params;
  int64_t numel = 0;          // with padding; a multiple of world_size * alignment
  int64_t payload_numel = 0;  // without
};

struct FlatUnit {
  FlatSegment trainable, frozen;
  const FlatSegment& segment(Segment which) const { return which == Segment::kTrainable ? trainable : frozen; }
};

// The part of one parameter that lies in one rank's slice.
struct FlatOverlap {
  int64_t param = 0;
  int64_t param_begin = 0;  // elements from the parameter's start
  int64_t slice_begin = 0;  // elements from the slice's start
  int64_t numel = 0;
};

class FlatLayout {
 public:
  // units[u] lists the parameters of unit u. Parameters are numbered across units in order.
  FlatLayout(const std::vector<std::vector<FlatParamSpec>>& units, int64_t world_size, int64_t item_size);

  int64_t world_size() const { return world_size_; }
  int64_t alignment() const { return alignment_; }  // in elements: 128 bytes
  const std::vector<FlatUnit>& units() const { return units_; }
  int64_t SliceNumel(int64_t unit, Segment segment) const;
  std::vector<FlatOverlap> Overlaps(int64_t unit, Segment segment, int64_t rank) const;
  int64_t TotalNumel(Segment segment) const;  // over all units, with padding

 private:
  int64_t world_size_;
  int64_t alignment_;
  std::vector<FlatUnit> units_;
};

}  // namespace tessera::nn
