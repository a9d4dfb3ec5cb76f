// SPDX-License-Identifier: Apache-2.0
// One collective as data: what a rank asks for, told and compared across ranks; and the checks of its arguments, which are
// the same for every implementation.
//
//   const Call call = CheckAllGather(rank, size, one, all, options);   // throws Error when the arguments are not legal
//   call.ToString() -> "all_gather of 1024 f32 with pitch 4096"
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace tessera::comm {

enum class Op : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kAllToAll,
  kAllGatherBytes,
  kBarrier,
  kSplit,
};
inline constexpr int kOpCount = 8;

std::string_view Name(Op op);
std::string_view Name(Purpose purpose);

struct Call {
  Op op = Op::kBarrier;
  int64_t count = 0;  // elements of a piece, or of the whole buffer where there are no pieces
  DType dtype = DType::kF32;
  int64_t pitch = 0;
  int root = -1;
  Purpose purpose = Purpose::kControl;

  bool operator==(const Call&) const = default;
  std::string ToString() const;
};

// "rank 1 calls all_reduce of 200 f32, rank 0 calls all_reduce of 100 f32"; the purposes too where only they differ.
std::string Disagreement(int rank, const Call& call, int other_rank, const Call& other_call);
// "rank 2" or "ranks 0, 1, 3".
std::string RankList(const std::vector<int>& ranks);
// "no sign of rank 2 for 5.0 s"
std::string NoSignOf(const std::vector<int>& ranks, double seconds);

Call CheckAllGather(int rank, int size, const Tensor& one, const Tensor& all, const Options& options);
Call CheckReduceScatter(int rank, int size, const Tensor& all, const Tensor& one, const Options& options);
Call CheckAllReduce(const Tensor& buffer, const Options& options);
Call CheckBroadcast(int size, const Tensor& buffer, int root, const Options& options);
Call CheckAllToAll(int size, const Tensor& send, const Tensor& receive, const Options& options);

// The memory of a checked tensor. WriteStart counts as a write.
const std::byte* ReadStart(const Tensor& tensor);
std::byte* WriteStart(const Tensor& tensor);

// Bytes from one rank's piece to the next.
inline int64_t PieceStep(const Call& call) {
  return (call.pitch == 0 ? call.count : call.pitch) * ItemSize(call.dtype);
}

// The piece of `count` elements that rank `rank` of `size` sums in an AllReduce: sizes differ by one at most, the larger
// ones come first.
struct Piece {
  int64_t begin;
  int64_t count;
};
inline Piece PieceOf(int64_t count, int rank, int size) {
  const int64_t base = count / size, larger = count % size;
  return {rank * base + (rank < larger ? rank : larger), base + (rank < larger ? 1 : 0)};
}

}  // namespace tessera::comm
