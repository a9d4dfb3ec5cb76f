// SPDX-License-Identifier: Apache-2.0
// The axis of a chart: which values it spans, where its ticks are, and how they are written.
//
//   Axis y = Axis::Over(0.2, 5.6, {.ticks = 5});
//   y.Place(3.0)                                  // share of the way, in [0, 1] for values inside
//   for (double tick : y.ticks()) y.Label(tick)   // "1", "2", ...
#pragma once

#include <string>
#include <vector>

namespace tessera::examples {

enum class AxisUnit { kPlain, kBytes };

struct AxisOptions {
  int ticks = 5;           // about so many
  bool from_zero = false;  // the axis of values that are never negative begins at 0
  bool exact = false;      // spans the values and no more, wherever the ticks are
  bool log = false;        // asks for values above 0
  bool whole = false;      // ticks at whole numbers only
  AxisUnit unit = AxisUnit::kPlain;
};

class Axis {
 public:
  // Any values: equal or not finite ones give an axis too.
  static Axis Over(double low, double high, const AxisOptions& options);

  double low() const { return low_; }
  double high() const { return high_; }
  bool is_log() const { return log_; }
  const std::vector<double>& ticks() const { return ticks_; }
  double Place(double value) const;
  std::string Label(double tick) const;

 private:
  double low_ = 0, high_ = 1, step_ = 1;
  bool log_ = false;
  AxisUnit unit_ = AxisUnit::kPlain;
  std::vector<double> ticks_;
};

// The nearest of 1, 2, 5, 10, ... that is not below `value` > 0.
double RoundStep(double value);

}  // namespace tessera::examples
