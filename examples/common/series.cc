// SPDX-License-Identifier: Apache-2.0
#include "examples/common/series.h"

#include <cmath>

namespace tessera::examples {

void Series::Add(double x, double y) {
  if (buckets_.empty() || buckets_.back().count == bucket_size_) {
    if (buckets_.size() == kMaxBuckets) Halve();
    if (buckets_.empty() || buckets_.back().count == bucket_size_) buckets_.emplace_back();
  }
  Bucket& bucket = buckets_.back();
  ++bucket.count;
  ++count_;
  bucket.last_x = x;
  if (!std::isfinite(y)) {
    ++not_finite_count_;
    return;
  }
  ++bucket.finite_count;
  bucket.sum += y;
  if (y < bucket.lowest.y) bucket.lowest = {x, y};
  if (y > bucket.highest.y) bucket.highest = {x, y};
}

void Series::Halve() {
  for (size_t i = 0; i < buckets_.size() / 2; ++i) {
    const Bucket &first = buckets_[2 * i], &second = buckets_[2 * i + 1];
    Bucket both = second;
    both.count += first.count;
    both.finite_count += first.finite_count;
    both.sum += first.sum;
    if (first.lowest.y <= second.lowest.y) both.lowest = first.lowest;
    if (first.highest.y >= second.highest.y) both.highest = first.highest;
    buckets_[i] = both;
  }
  buckets_.resize(buckets_.size() / 2);
  bucket_size_ *= 2;
}

std::vector<Point> Series::MinMaxPoints() const {
  std::vector<Point> points;
  for (const Bucket& bucket : buckets_) {
    if (bucket.finite_count == 0) {
      points.push_back({bucket.last_x, std::nan("")});
    } else if (bucket.lowest.x == bucket.highest.x) {
      points.push_back(bucket.lowest);
    } else if (bucket.lowest.x < bucket.highest.x) {
      points.insert(points.end(), {bucket.lowest, bucket.highest});
    } else {
      points.insert(points.end(), {bucket.highest, bucket.lowest});
    }
  }
  return points;
}

std::vector<Point> Series::MeanPoints() const {
  std::vector<Point> points;
  for (const Bucket& bucket : buckets_) {  // without a finite value 0 / 0: NaN, a gap
    points.push_back({bucket.last_x, bucket.sum / static_cast<double>(bucket.finite_count)});
  }
  return points;
}

std::vector<Point> Series::MaxPoints() const {
  std::vector<Point> points;
  for (const Bucket& bucket : buckets_) {
    points.push_back({bucket.last_x, bucket.finite_count > 0 ? bucket.highest.y : std::nan("")});
  }
  return points;
}

}  // namespace tessera::examples
