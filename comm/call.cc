// SPDX-License-Identifier: Apache-2.0
#include "comm/call.h"

#include <cstdio>

namespace tessera::comm {
namespace {

void CheckBuffer(Op op, std::string_view name, const Tensor& tensor) {
  if (!tensor.defined()) throw Error(Str(Name(op), ": ", name, " is undefined"));
  if (!tensor.device().is_cpu()) {
    throw Error(Str(Name(op), ": ", name, " is ", tensor.ToString(), "; this group's tensors are on the CPU"));
  }
  if (tensor.rank() != 1 || !tensor.layout().IsContiguous()) {
    throw Error(Str(Name(op), ": ", name, " has ", tensor.layout(), ", expected a contiguous tensor of rank 1"));
  }
}

void CheckSameDType(Op op, const Tensor& a, const Tensor& b) {
  if (a.dtype() != b.dtype()) throw Error(Str(Name(op), ": dtypes differ: ", Name(a.dtype()), ", ", Name(b.dtype())));
}

void CheckSummable(Op op, const Tensor& tensor) {
  if (!IsFloating(tensor.dtype())) {
    throw Error(Str(Name(op), ": sums need a floating dtype, got ", Name(tensor.dtype())));
  }
}

void CheckNoPitch(Op op, const Options& options) {
  if (options.pitch != 0) throw Error(Str(Name(op), ": has no pieces, so pitch must be 0, not ", options.pitch));
}

// `all` holds `size` pieces of `count`: exactly where they touch, at least where there is a pitch.
void CheckPieces(Op op, std::string_view name, const Tensor& all, int size, int64_t count, int64_t pitch) {
  if (pitch < 0 || (pitch != 0 && pitch < count)) {
    throw Error(Str(Name(op), ": pitch ", pitch, " is less than the ", count, " elements of a piece"));
  }
  const int64_t step = pitch == 0 ? count : pitch;
  int64_t needed;
  if (__builtin_mul_overflow(step, size - 1, &needed) || __builtin_add_overflow(needed, count, &needed)) {
    throw Error(Str(Name(op), ": ", size, " pieces with pitch ", step, " are more than 64 bits count"));
  }
  if (count == 0 && pitch != 0) needed = 0;
  if (pitch == 0 ? all.numel() != needed : all.numel() < needed) {
    throw Error(Str(Name(op), ": ", name, " has ", all.numel(), " elements, ", size, " pieces of ", count,
                    " with pitch ", step, " take ", needed));
  }
}

bool Overlap(const std::byte* a, int64_t a_bytes, const std::byte* b, int64_t b_bytes) {
  return a_bytes > 0 && b_bytes > 0 && a < b + b_bytes && b < a + a_bytes;
}

// Throws where `one` shares memory with a piece of `all`, unless it is the piece of `allowed`.
void CheckAliases(const Call& call, std::string_view one_name, const Tensor& one, std::string_view all_name,
                  const Tensor& all, int size, int allowed) {
  const std::byte *one_start = ReadStart(one), *all_start = ReadStart(all);
  const int64_t piece_bytes = call.count * ItemSize(call.dtype);
  for (int rank = 0; rank < size; ++rank) {
    const std::byte* piece = all_start + rank * PieceStep(call);
    if (!Overlap(one_start, one.bytes(), piece, piece_bytes)) continue;
    if (rank == allowed && piece == one_start) continue;
    throw Error(Str(Name(call.op), ": ", one_name, " shares memory with the piece of rank ", rank, " in ", all_name));
  }
}

}  // namespace

std::string_view Name(Op op) {
  static constexpr std::string_view kNames[kOpCount] = {"all_gather", "reduce_scatter",   "all_reduce", "broadcast",
                                                        "all_to_all", "all_gather_bytes", "barrier",    "split"};
  return kNames[static_cast<int>(op)];
}

std::string_view Name(Purpose purpose) {
  static constexpr std::string_view kNames[kPurposeCount] = {"params", "gradients", "control"};
  return kNames[static_cast<int>(purpose)];
}

std::string Call::ToString() const {
  std::string out(Name(op));
  if (op == Op::kAllGatherBytes || op == Op::kBarrier || op == Op::kSplit) return out;
  out += Str(" of ", count, " ", Name(dtype));
  if (pitch != 0) out += Str(" with pitch ", pitch);
  if (op == Op::kBroadcast) out += Str(" from rank ", root);
  return out;
}

std::string Disagreement(int rank, const Call& call, int other_rank, const Call& other_call) {
  std::string mine = call.ToString(), other = other_call.ToString();
  if (mine == other) {
    mine += Str(" for ", Name(call.purpose));
    other += Str(" for ", Name(other_call.purpose));
  }
  return Str("rank ", rank, " calls ", mine, ", rank ", other_rank, " calls ", other);
}

std::string RankList(const std::vector<int>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) out += Str(i == 0 ? "" : ", ", ranks[i]);
  return out;
}

std::string NoSignOf(const std::vector<int>& ranks, double seconds) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f", seconds);
  return Str("no sign of ", RankList(ranks), " for ", std::string_view(text), " s");
}

Call CheckAllGather(int rank, int size, const Tensor& one, const Tensor& all, const Options& options) {
  CheckBuffer(Op::kAllGather, "one", one);
  CheckBuffer(Op::kAllGather, "all", all);
  CheckSameDType(Op::kAllGather, one, all);
  CheckPieces(Op::kAllGather, "all", all, size, one.numel(), options.pitch);
  const Call call{Op::kAllGather, one.numel(), one.dtype(), options.pitch, -1, options.purpose};
  CheckAliases(call, "one", one, "all", all, size, rank);
  return call;
}

Call CheckReduceScatter(int rank, int size, const Tensor& all, const Tensor& one, const Options& options) {
  CheckBuffer(Op::kReduceScatter, "all", all);
  CheckBuffer(Op::kReduceScatter, "one", one);
  CheckSameDType(Op::kReduceScatter, all, one);
  CheckSummable(Op::kReduceScatter, all);
  CheckPieces(Op::kReduceScatter, "all", all, size, one.numel(), options.pitch);
  const Call call{Op::kReduceScatter, one.numel(), one.dtype(), options.pitch, -1, options.purpose};
  CheckAliases(call, "one", one, "all", all, size, rank);
  return call;
}

Call CheckAllReduce(const Tensor& buffer, const Options& options) {
  CheckBuffer(Op::kAllReduce, "buffer", buffer);
  CheckSummable(Op::kAllReduce, buffer);
  CheckNoPitch(Op::kAllReduce, options);
  return {Op::kAllReduce, buffer.numel(), buffer.dtype(), 0, -1, options.purpose};
}

Call CheckBroadcast(int size, const Tensor& buffer, int root, const Options& options) {
  CheckBuffer(Op::kBroadcast, "buffer", buffer);
  CheckNoPitch(Op::kBroadcast, options);
  if (root < 0 || root >= size) throw Error(Str("broadcast: root ", root, " is outside a group of ", size));
  return {Op::kBroadcast, buffer.numel(), buffer.dtype(), 0, root, options.purpose};
}

Call CheckAllToAll(int size, const Tensor& send, const Tensor& receive, const Options& options) {
  CheckBuffer(Op::kAllToAll, "send", send);
  CheckBuffer(Op::kAllToAll, "receive", receive);
  CheckSameDType(Op::kAllToAll, send, receive);
  if (receive.numel() % size != 0) {
    throw Error(Str("all_to_all: receive has ", receive.numel(), " elements, which are not ", size, " equal pieces"));
  }
  const int64_t count = receive.numel() / size;
  CheckPieces(Op::kAllToAll, "send", send, size, count, options.pitch);
  const Call call{Op::kAllToAll, count, send.dtype(), options.pitch, -1, options.purpose};
  CheckAliases(call, "receive", receive, "send", send, size, -1);
  return call;
}

const std::byte* ReadStart(const Tensor& tensor) {
  return static_cast<const std::byte*>(tensor.Read().data) + tensor.layout().offset() * ItemSize(tensor.dtype());
}
std::byte* WriteStart(const Tensor& tensor) {
  return static_cast<std::byte*>(tensor.Write().data) + tensor.layout().offset() * ItemSize(tensor.dtype());
}

}  // namespace tessera::comm
