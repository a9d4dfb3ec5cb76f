// SPDX-License-Identifier: Apache-2.0
// What ranks say to each other: collectives over the tensors of a group, in one order on every rank.
//
//   comm.AllGather(my_slice, whole, stream);              // whole = all ranks' slices, by rank
//   comm.ReduceScatter(whole, my_slice, stream);          // my_slice = sum over ranks of their whole[rank]
//
// Contract, the same for every implementation
// * Collectives are queued on `stream`; tensors are kept alive until they are done. Every rank of the group calls the
//   same ones, in the same order, with the same counts, dtypes and pitches.
// * Tensors are contiguous, of rank 1, on the group's kind of device. Counts of 0 are legal and still a collective.
// * A piece is `count` elements. In a buffer of size() pieces, that of rank p starts at p * pitch (pitch 0: count), so
//   that a bucket of a larger unit can be sent without a copy. The elements between pieces are not touched.
// * In place is legal where noted: `one` may be this rank's own piece of `all`.
// * Sums are taken in f32 (f64 for f64) in the order of ranks and rounded once to the tensors' dtype; AllReduce gives the
//   bits of ReduceScatter followed by AllGather. An implementation that cannot promise it says so (`sums_in_rank_order`).
// * A rank that breaks this, dies or stays away makes every rank's pending and later calls throw AbortedError, which
//   names the rank and the calls.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/stream.h"
#include "tensor/tensor.h"

namespace tessera::comm {

// What an exchange is for: traffic is counted by it.
enum class Purpose : uint8_t { kParams, kGradients, kControl };
inline constexpr int kPurposeCount = 3;

struct Options {
  int64_t pitch = 0;  // elements from one rank's piece to the next; 0: the pieces touch
  Purpose purpose = Purpose::kControl;
};

// The group has failed, on this rank or on another.
class AbortedError : public Error {
 public:
  using Error::Error;
};

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual bool sums_in_rank_order() const { return true; }

  // one (count) of every rank -> all, a buffer of pieces. In place allowed.
  virtual void AllGather(const Tensor& one, const Tensor& all, Stream& stream, const Options& options = {}) = 0;
  // all, a buffer of pieces, summed over ranks -> one (count): this rank's piece. In place allowed; then the other pieces
  // of `all` keep what this rank had there.
  virtual void ReduceScatter(const Tensor& all, const Tensor& one, Stream& stream, const Options& options = {}) = 0;
  // buffer (count): every rank ends with the sum.
  virtual void AllReduce(const Tensor& buffer, Stream& stream, const Options& options = {}) = 0;
  virtual void Broadcast(const Tensor& buffer, int root, Stream& stream, const Options& options = {}) = 0;
  // Piece q of `send` goes to rank q; piece p of `receive` comes from rank p. `options.pitch` is that of `send`; the
  // pieces of `receive` touch. Not in place.
  virtual void AllToAll(const Tensor& send, const Tensor& receive, Stream& stream, const Options& options = {}) = 0;

  // On the host, now. Small messages: what each rank passed, by rank.
  virtual std::vector<std::string> AllGatherBytes(std::string_view mine) = 0;
  virtual void Barrier() = 0;

  // A group of the ranks with the same color, ordered by (key, rank). Collective over this group.
  virtual std::unique_ptr<Communicator> Split(int color, int key) = 0;
  // Makes every rank's pending and later calls throw AbortedError with this reason (the first one counts).
  virtual void Abort(std::string_view reason) noexcept = 0;
};

}  // namespace tessera::comm
