// SPDX-License-Identifier: Apache-2.0
// A long series in bounded memory, for drawing: neighbours share a bucket that keeps the lowest and the highest of them,
// so that a spike of one step out of 100,000 still shows.
//
//   Series loss;
//   loss.Add(step, value);
//   loss.MinMaxPoints()       // at most 2 * kMaxBuckets of them
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace tessera::examples {

struct Point {
  double x = 0, y = 0;  // y NaN: a gap
};

class Series {
 public:
  static constexpr size_t kMaxBuckets = 512;

  void Add(double x, double y);  // x rises
  int64_t count() const { return count_; }
  int64_t not_finite_count() const { return not_finite_count_; }

  // Of each bucket the lowest and the highest in the order in which they came; a bucket without a finite value is a gap.
  std::vector<Point> MinMaxPoints() const;
  std::vector<Point> MeanPoints() const;  // of each bucket the mean, where its last value is
  std::vector<Point> MaxPoints() const;   // of each bucket the highest, where its last value is

 private:
  struct Bucket {
    int64_t count = 0, finite_count = 0;
    double last_x = 0, sum = 0;
    Point lowest = {0, std::numeric_limits<double>::infinity()};
    Point highest = {0, -std::numeric_limits<double>::infinity()};
  };
  void Halve();

  std::vector<Bucket> buckets_;
  int64_t bucket_size_ = 1;  // values that a full bucket has
  int64_t count_ = 0, not_finite_count_ = 0;
};

}  // namespace tessera::examples
