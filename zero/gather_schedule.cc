// SPDX-License-Identifier: Apache-2.0
#include "zero/gather_schedule.h"

#include <algorithm>

namespace tessera::zero {

void GatherSchedule::Begin() {
  seen_.clear();
  cursor_ = 0;
  active_ = true;
}

void GatherSchedule::Demand(int unit) {
  if (!active_ || paused_) return;
  seen_.push_back(unit);
  const auto at = std::find(predicted_.begin() + static_cast<std::ptrdiff_t>(cursor_), predicted_.end(), unit);
  if (at != predicted_.end()) cursor_ = static_cast<size_t>(at - predicted_.begin()) + 1;
}

void GatherSchedule::End() {
  if (active_) predicted_.swap(seen_);
  active_ = false;
}

void GatherSchedule::Abandon() { active_ = false; }

std::span<const int> GatherSchedule::Ahead() const {
  if (!active_ || paused_) return {};
  return std::span(predicted_).subspan(cursor_);
}

std::optional<int64_t> GatherSchedule::ReuseDistance(int unit, std::span<const int64_t> unit_numel) const {
  int64_t distance = 0;
  std::vector<int> between;
  for (int next : Ahead()) {
    if (next == unit) return distance;
    if (std::find(between.begin(), between.end(), next) != between.end()) continue;
    between.push_back(next);
    distance += unit_numel[static_cast<size_t>(next)];
  }
  return std::nullopt;
}

}  // namespace tessera::zero
