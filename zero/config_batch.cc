// SPDX-License-Identifier: Apache-2.0
// The batch triple: train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x ranks.
#include <limits>
#include <optional>

#include "tensor/error.h"
#include "zero/config.h"

namespace tessera::zero {
namespace {

constexpr char kTotal[] = "train_batch_size";
constexpr char kMicro[] = "train_micro_batch_size_per_gpu";
constexpr char kSteps[] = "gradient_accumulation_steps";

std::optional<int64_t> Product(int64_t a, int64_t b, int64_t c) {
  int64_t out = 0;
  if (__builtin_mul_overflow(a, b, &out) || __builtin_mul_overflow(out, c, &out)) return std::nullopt;
  return out;
}

std::string Ranks(int64_t count) { return Str(count, count == 1 ? " rank" : " ranks"); }

struct Batch {
  int64_t total = 0, micro = 0, steps = 0;  // 0: absent
  int64_t ranks = 1;
};

// DeepSpeed's completion, floors included: whether the result holds is for the caller to check. Overflow: null.
std::optional<Batch> Complete(Batch batch) {
  if (batch.total == 0) {
    if (batch.steps == 0) batch.steps = 1;
    const std::optional<int64_t> total = Product(batch.micro, batch.steps, batch.ranks);
    if (!total.has_value()) return std::nullopt;
    batch.total = *total;
  } else if (batch.micro == 0) {
    if (batch.steps == 0) batch.steps = 1;
    batch.micro = batch.total / batch.ranks / batch.steps;
  } else if (batch.steps == 0) {
    batch.steps = batch.total / batch.micro / batch.ranks;
  }
  return batch;
}

// What would have been right, nearest first: " train_batch_size 8 or 12".
std::string NearestValid(const Batch& given, int64_t product) {
  std::string out;
  const auto offer = [&out](const char* field, int64_t value) {
    out += Str(out.empty() ? " " : ", or ", field, " ", value);
  };
  if (given.micro != 0 && given.steps != 0) {
    offer(kTotal, product);
    if (const int64_t part = given.micro * given.ranks; given.total % part == 0) offer(kSteps, given.total / part);
    if (const int64_t part = given.steps * given.ranks; given.total % part == 0) offer(kMicro, given.total / part);
    return out;
  }
  const std::optional<int64_t> step =
      Product(given.micro == 0 ? 1 : given.micro, given.steps == 0 ? 1 : given.steps, given.ranks);
  if (!step.has_value()) return out;
  const int64_t below = given.total / *step * *step;
  if (below > 0) offer(kTotal, below);
  if (below > std::numeric_limits<int64_t>::max() - *step) return out;
  if (below > 0) return out + Str(" or ", below + *step);
  offer(kTotal, *step);
  return out;
}

// The three factors and both products, with what is legal.
std::string Mismatch(const Batch& given, const Batch& complete, const std::optional<int64_t>& product) {
  const auto field = [](const char* name, int64_t value, int64_t given_value) {
    return Str(name, " ", value, given_value == 0 ? " (derived)" : "");
  };
  const std::string factors = Str(field(kMicro, complete.micro, given.micro), " x ",
                                  field(kSteps, complete.steps, given.steps), " x ", Ranks(given.ranks));
  if (!product.has_value()) return Str(factors, ", their product ", kTotal, " exceeds 2^63 - 1");
  return Str(kTotal, " ", given.total, " is not ", factors, " = ", *product,
             "; nearest valid:", NearestValid(given, *product));
}

std::string TooLittleGiven(const Batch& given) {
  const std::string rule = Str("(", kTotal, " = ", kMicro, " x ", kSteps, " x ", Ranks(given.ranks), ")");
  if (given.steps == 0) {
    return Str("none of ", kTotal, ", ", kMicro, " and ", kSteps, " is given; set one of the first two ", rule);
  }
  return Str(kSteps, " ", given.steps, " alone does not tell the batch; set ", kMicro, " or ", kTotal, " too ", rule);
}

}  // namespace

absl::Status Config::ResolveBatch(int64_t world_size) {
  const Batch given{train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps, world_size};
  std::string place = "config";  // of the first field that came from a file
  for (const char* field : {kSteps, kMicro, kTotal}) {
    const auto origin = origins.find(field);
    if (origin != origins.end() && origin->second.find(": ") == std::string::npos) place = origin->second;
  }
  const auto error = [&place](const std::string& what) { return absl::InvalidArgumentError(Str(place, ": ", what)); };
  if (world_size < 1) return error(Str("the number of ranks is ", world_size, ", expected at least 1"));
  for (const auto& [name, value] : {std::pair(kTotal, given.total), {kMicro, given.micro}, {kSteps, given.steps}}) {
    if (value < 0) return error(Str(name, " is ", value, ", expected a whole number >= 1, or 0 for absent"));
  }
  if (given.total == 0 && given.micro == 0) return error(TooLittleGiven(given));

  const std::optional<Batch> complete = Complete(given);
  if (!complete.has_value()) {
    return error(Mismatch(given, {0, given.micro, given.steps == 0 ? 1 : given.steps, world_size}, std::nullopt));
  }
  const std::optional<int64_t> product = Product(complete->micro, complete->steps, complete->ranks);
  if (product != complete->total) return error(Mismatch(given, *complete, product));

  const auto& [total, micro, steps, ranks] = *complete;
  if (given.total == 0) origins[kTotal] = Str("derived: ", micro, " x ", steps, " x ", Ranks(ranks));
  if (given.micro == 0) origins[kMicro] = Str("derived: ", total, " / ", steps, " / ", Ranks(ranks));
  if (given.steps == 0) {
    const bool is_default = given.total == 0 || given.micro == 0;
    origins[kSteps] = is_default ? "derived: 1 by default" : Str("derived: ", total, " / ", micro, " / ", Ranks(ranks));
  }
  train_batch_size = total;
  train_micro_batch_size_per_gpu = micro;
  gradient_accumulation_steps = steps;
  return absl::OkStatus();
}

}  // namespace tessera::zero
