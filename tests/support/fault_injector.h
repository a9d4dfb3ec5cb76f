// SPDX-License-Identifier: Apache-2.0
// A communicator that goes wrong once, at a call of one's choice. Put it in front of a ledger: the fault is the rank's.
//
//   auto gate = std::make_shared<Gate>();
//   FaultInjector comm(std::move(ledger), {.fault = Fault::kSleep, .at = 3}, gate);
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/communicator.h"

namespace tessera::comm::testing {

enum class Fault : uint8_t {
  kNone,
  kThrow,       // an Error instead of the call
  kSleep,       // until the gate opens, then the call
  kOtherCount,  // one element less in each piece; a call of 0 elements or of the host stays as it is
  kSkip,        // no call; host exchanges answer with what this rank passed
  kFlipBit,     // the lowest bit of the first byte of the result, after the call
};

struct FaultPlan {
  Fault fault = Fault::kNone;
  int64_t at = 1;  // which of this communicator's calls, from 1, with those of the host
};

// Shut until somebody opens it.
class Gate {
 public:
  void Open() {
    {
      const std::lock_guard lock(mutex_);
      open_ = true;
    }
    opened_.notify_all();
  }
  void Wait() {
    std::unique_lock lock(mutex_);
    opened_.wait(lock, [&] { return open_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable opened_;
  bool open_ = false;
};

class FaultInjector final : public Communicator {
 public:
  FaultInjector(std::unique_ptr<Communicator> base, const FaultPlan& plan, std::shared_ptr<Gate> gate = nullptr)
      : base_(std::move(base)), plan_(plan), gate_(std::move(gate)) {}

  int64_t calls() const { return calls_; }  // so far, of every kind

  int rank() const override { return base_->rank(); }
  int size() const override { return base_->size(); }
  bool sums_in_rank_order() const override { return base_->sums_in_rank_order(); }
  void AllGather(const Tensor& one, const Tensor& all, Stream& stream, const Options& options = {}) override;
  void ReduceScatter(const Tensor& all, const Tensor& one, Stream& stream, const Options& options = {}) override;
  void AllReduce(const Tensor& buffer, Stream& stream, const Options& options = {}) override;
  void Broadcast(const Tensor& buffer, int root, Stream& stream, const Options& options = {}) override;
  void AllToAll(const Tensor& send, const Tensor& receive, Stream& stream, const Options& options = {}) override;
  std::vector<std::string> AllGatherBytes(std::string_view mine) override;
  void Barrier() override;
  std::unique_ptr<Communicator> Split(int color, int key) override;  // without faults; kSkip throws
  void Abort(std::string_view reason) noexcept override { base_->Abort(reason); }

 private:
  Fault Next();  // the fault of this call, after throwing or sleeping

  std::unique_ptr<Communicator> base_;
  FaultPlan plan_;
  std::shared_ptr<Gate> gate_;
  int64_t calls_ = 0;
};

}  // namespace tessera::comm::testing
