// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fault_injector.h"

#include "comm/call.h"

namespace tessera::comm::testing {
namespace {

// With one element less, where there is one.
Tensor Less(const Tensor& tensor, Fault fault, int64_t pieces = 1) {
  if (fault != Fault::kOtherCount || tensor.numel() < pieces) return tensor;
  return tensor.WithLayout(tensor.layout().Narrow(0, 0, tensor.numel() - pieces));
}

void FlipBit(const Tensor& result, Stream& stream, Fault fault) {
  if (fault != Fault::kFlipBit || result.numel() == 0) return;
  stream.Run([result] { WriteStart(result)[0] ^= std::byte{1}; });
}

}  // namespace

Fault FaultInjector::Next() {
  if (++calls_ != plan_.at) return Fault::kNone;
  if (plan_.fault == Fault::kThrow) throw Error(Str("injected fault at call ", calls_));
  if (plan_.fault == Fault::kSleep) gate_->Wait();
  return plan_.fault;
}

void FaultInjector::AllGather(const Tensor& one, const Tensor& all, Stream& stream, const Options& options) {
  const Fault fault = Next();
  if (fault == Fault::kSkip) return;
  base_->AllGather(Less(one, fault), options.pitch == 0 ? Less(all, fault, size()) : all, stream, options);
  FlipBit(all, stream, fault);
}

void FaultInjector::ReduceScatter(const Tensor& all, const Tensor& one, Stream& stream, const Options& options) {
  const Fault fault = Next();
  if (fault == Fault::kSkip) return;
  base_->ReduceScatter(options.pitch == 0 ? Less(all, fault, size()) : all, Less(one, fault), stream, options);
  FlipBit(one, stream, fault);
}

void FaultInjector::AllReduce(const Tensor& buffer, Stream& stream, const Options& options) {
  const Fault fault = Next();
  if (fault == Fault::kSkip) return;
  base_->AllReduce(Less(buffer, fault), stream, options);
  FlipBit(buffer, stream, fault);
}

void FaultInjector::Broadcast(const Tensor& buffer, int root, Stream& stream, const Options& options) {
  const Fault fault = Next();
  if (fault == Fault::kSkip) return;
  base_->Broadcast(Less(buffer, fault), root, stream, options);
  FlipBit(buffer, stream, fault);
}

void FaultInjector::AllToAll(const Tensor& send, const Tensor& receive, Stream& stream, const Options& options) {
  const Fault fault = Next();
  if (fault == Fault::kSkip) return;
  base_->AllToAll(options.pitch == 0 ? Less(send, fault, size()) : send, Less(receive, fault, size()), stream, options);
  FlipBit(receive, stream, fault);
}

std::vector<std::string> FaultInjector::AllGatherBytes(std::string_view mine) {
  const Fault fault = Next();
  if (fault == Fault::kSkip) return std::vector<std::string>(static_cast<size_t>(size()), std::string(mine));
  std::vector<std::string> all = base_->AllGatherBytes(mine);
  if (fault == Fault::kFlipBit && !all[0].empty()) all[0][0] = static_cast<char>(all[0][0] ^ 1);
  return all;
}

void FaultInjector::Barrier() {
  if (Next() != Fault::kSkip) base_->Barrier();
}

std::unique_ptr<Communicator> FaultInjector::Split(int color, int key) {
  if (Next() == Fault::kSkip) throw Error("fault_injector: a split cannot be skipped, the rank would have no group");
  return base_->Split(color, key);
}

}  // namespace tessera::comm::testing
