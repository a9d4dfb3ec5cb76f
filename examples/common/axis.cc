// SPDX-License-Identifier: Apache-2.0
#include "examples/common/axis.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>

#include "examples/common/format.h"

namespace tessera::examples {
namespace {

// 1, 10, 100; where there are few of these 2 and 5 in between; where even so, more.
std::vector<double> LogTicks(double low, double high, int about) {
  const double decades = std::log10(high / low);
  const int every = std::max(1, static_cast<int>(decades / std::max(about, 1)));
  const std::vector<double> digits = decades > 3     ? std::vector<double>{1}
                                     : decades > 1.2 ? std::vector<double>{1, 2, 5}
                                                     : std::vector<double>{1, 1.5, 2, 3, 4, 5, 7};
  std::vector<double> ticks;
  for (int decade = static_cast<int>(std::floor(std::log10(low))); std::pow(10.0, decade) <= high; decade += every) {
    for (const double digit : digits) {
      const double tick = digit * std::pow(10.0, decade);
      if (tick >= low * (1 - 1e-9) && tick <= high * (1 + 1e-9)) ticks.push_back(tick);
    }
  }
  return ticks;
}

}  // namespace

double RoundStep(double value) {
  const double decade = std::pow(10.0, std::floor(std::log10(value)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * decade >= value * (1 - 1e-9)) return digit * decade;
  }
  return 10 * decade;
}

Axis Axis::Over(double low, double high, const AxisOptions& options) {
  Axis axis;
  axis.unit_ = options.unit;
  if (!std::isfinite(low) || !std::isfinite(high) || low > high) low = 0, high = 1;
  if (options.log && low > 0) {
    axis.log_ = true;
    if (high / low < 1.01) low /= 2, high *= 2;
    const double room = std::pow(high / low, 0.04);
    axis.low_ = low / room;
    axis.high_ = high * room;
    axis.ticks_ = LogTicks(axis.low_, axis.high_, options.ticks);
    return axis;
  }
  if (options.from_zero) low = std::min(low, 0.0), high = std::max(high, 0.0);
  if (high - low <= 1e-9 * std::max(std::abs(low), std::abs(high))) {  // constant, or next to it
    const double room = high == 0 ? 1 : 0.5 * std::abs(high);
    if (!options.from_zero || high == 0) low -= options.from_zero ? 0 : room;
    high += room;
  }
  axis.step_ = RoundStep((high - low) / std::max(options.ticks, 1));
  if (options.whole) axis.step_ = std::max(axis.step_, 1.0);
  const double first = std::floor(low / axis.step_ + 1e-9), last = std::ceil(high / axis.step_ - 1e-9);
  axis.low_ = options.exact ? low : first * axis.step_;
  axis.high_ = options.exact ? high : last * axis.step_;
  for (double i = first; i <= last; ++i) {
    const double tick = i * axis.step_;
    const double slack = 1e-9 * axis.step_;
    if (tick >= axis.low_ - slack && tick <= axis.high_ + slack) axis.ticks_.push_back(tick);
  }
  return axis;
}

double Axis::Place(double value) const {
  if (log_) return std::log(value / low_) / std::log(high_ / low_);
  return (value - low_) / (high_ - low_);
}

std::string Axis::Label(double tick) const {
  if (unit_ == AxisUnit::kBytes) {
    std::string text = tick < 1e18 ? Bytes(static_cast<int64_t>(std::llround(tick))) : "";
    if (const size_t zero = text.find(".0 "); zero != std::string::npos) text.erase(zero, 2);
    return text;
  }
  if (tick == 0) return "0";
  const double size = std::abs(tick);
  if (size >= 1e12) return Short(tick);
  if (size >= 10000 || (size >= 1000 && log_)) {
    const double scale = size >= 1e9 ? 1e9 : size >= 1e6 ? 1e6 : 1e3;
    const int digits = log_ ? 0 : std::clamp(static_cast<int>(std::ceil(-std::log10(step_ / scale) - 1e-9)), 0, 3);
    return Fixed(tick / scale, digits) + (scale == 1e9 ? "G" : scale == 1e6 ? "M" : "k");
  }
  if (log_ ? size < 1e-3 : step_ < 1e-5) return Short(tick);
  if (log_ && size >= 1) return Fixed(tick, tick == std::floor(tick) ? 0 : 1);
  if (log_) return Short(tick);
  if (size >= 1000 && step_ >= 1) return WithCommas(std::llround(tick));
  return Fixed(tick, std::clamp(static_cast<int>(std::ceil(-std::log10(step_) - 1e-9)), 0, 6));
}

}  // namespace tessera::examples
