// SPDX-License-Identifier: Apache-2.0
// In which order units come into use, learnt from the last cycle (forward and backward of one micro-step): what to gather
// ahead, and what to keep. Pure logic.
//
//   schedule.Begin();
//   schedule.Demand(3);                       // unit 3 comes into use
//   for (int unit : schedule.Ahead()) ...     // what the last cycle used after it
//   schedule.End();
//
// A cycle that takes another branch than the last one is followed as far as it agrees: units that it leaves out are
// passed over, units that are new are no prediction's fault. Every rank takes the same branches, so every rank decides alike.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera::zero {

class GatherSchedule {
 public:
  void Begin();
  void Demand(int unit);
  void End();      // what was demanded since Begin becomes the prediction
  void Abandon();  // the cycle broke off: the old prediction stays
  bool active() const { return active_; }
  // While paused (an evaluation between forward and backward) nothing is recorded and nothing predicted.
  void SetPaused(bool paused) { paused_ = paused; }

  // The demands predicted after the last one, nearest first; empty outside a cycle and in the first.
  std::span<const int> Ahead() const;
  // Elements of the other units demanded before `unit` is demanded again; absent when it is not predicted.
  std::optional<int64_t> ReuseDistance(int unit, std::span<const int64_t> unit_numel) const;

 private:
  std::vector<int> predicted_, seen_;
  size_t cursor_ = 0;  // in predicted_: the next one expected
  bool active_ = false;
  bool paused_ = false;
};

}  // namespace tessera::zero
