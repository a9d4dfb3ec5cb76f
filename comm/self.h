// SPDX-License-Identifier: Apache-2.0
// The group of a lone rank: copies where the contract needs one, no threads.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "comm/communicator.h"

namespace tessera::comm {

class Self final : public Communicator {
 public:
  Self();
  int rank() const override { return 0; }
  int size() const override { return 1; }
  void AllGather(const Tensor& one, const Tensor& all, Stream& stream, const Options& options = {}) override;
  void ReduceScatter(const Tensor& all, const Tensor& one, Stream& stream, const Options& options = {}) override;
  void AllReduce(const Tensor& buffer, Stream& stream, const Options& options = {}) override;
  void Broadcast(const Tensor& buffer, int root, Stream& stream, const Options& options = {}) override;
  void AllToAll(const Tensor& send, const Tensor& receive, Stream& stream, const Options& options = {}) override;
  std::vector<std::string> AllGatherBytes(std::string_view mine) override;
  void Barrier() override;
  std::unique_ptr<Communicator> Split(int color, int key) override;
  void Abort(std::string_view reason) noexcept override;

 private:
  // Shared with queued work and with the groups split off, which fail as one.
  struct Failure;
  explicit Self(std::shared_ptr<Failure> failure) : failure_(std::move(failure)) {}
  void Copy(const Tensor& from, const Tensor& to, Stream& stream);

  std::shared_ptr<Failure> failure_;
};

}  // namespace tessera::comm
