// SPDX-License-Identifier: Apache-2.0
#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace tessera::optim {
namespace {

void CheckLr(std::string_view owner, std::string_view name, double value) {
  CheckInRange(owner, name, value, 0, INFINITY);
}

void CheckCount(std::string_view owner, std::string_view name, int64_t value, int64_t low) {
  if (value < low) throw Error(Str(owner, ": ", name, " is ", value, ", expected an integer >= ", low));
}

class ConstantLr final : public LrSchedule {
 public:
  explicit ConstantLr(const ConstantLrOptions& options) : options_(options) { CheckLr(name(), "lr", options.lr); }
  std::string_view name() const override { return "constant"; }

 protected:
  ScheduledValues Compute(int64_t) const override { return {.lr = options_.lr}; }

 private:
  ConstantLrOptions options_;
};

// How far the warm-up has come at indexes [0, steps): from 0 towards 1.
class Warmup {
 public:
  Warmup(std::string_view owner, int64_t steps, WarmupType type) : steps_(std::max<int64_t>(2, steps)), type_(type) {
    CheckCount(owner, "warmup_num_steps", steps, 0);
  }
  int64_t steps() const { return steps_; }
  double At(int64_t index) const {
    const double n = static_cast<double>(steps_), i = static_cast<double>(index);
    return type_ == WarmupType::kLog ? std::log(i + 1) / std::log(n) : i / n;
  }

 private:
  int64_t steps_;
  WarmupType type_;
};

std::string ShortTotalNotice(std::string_view owner, int64_t total, int64_t warmup) {
  return Str(owner, ": total_num_steps ", total, " is less than warmup_num_steps ", warmup,
             ", so the learning rate has no room to decay");
}

std::string ZeroLrNotice(std::string_view owner, std::string_view name) {
  return Str(owner, ": ", name, " is 0, so updates 1 and 2 run with learning rate 0");
}

class WarmupLr final : public LrSchedule {
 public:
  explicit WarmupLr(const WarmupLrOptions& options)
      : options_(options), warmup_(name(), options.warmup_num_steps, options.warmup_type) {
    CheckLr(name(), "warmup_min_lr", options.warmup_min_lr);
    CheckLr(name(), "warmup_max_lr", options.warmup_max_lr);
    if (options.warmup_min_lr == 0) AddNotice(ZeroLrNotice(name(), "warmup_min_lr"));
  }
  std::string_view name() const override { return "WarmupLR"; }

 protected:
  ScheduledValues Compute(int64_t index) const override {
    const double low = options_.warmup_min_lr, high = options_.warmup_max_lr;
    if (index < 0) return {.lr = low};
    return {.lr = low + (high - low) * (index < warmup_.steps() ? warmup_.At(index) : 1)};
  }

 private:
  WarmupLrOptions options_;
  Warmup warmup_;
};

class WarmupDecayLr final : public LrSchedule {
 public:
  explicit WarmupDecayLr(const WarmupDecayLrOptions& options)
      : options_(options), warmup_(name(), options.warmup_num_steps, options.warmup_type) {
    CheckCount(name(), "total_num_steps", options.total_num_steps, 1);
    CheckLr(name(), "warmup_min_lr", options.warmup_min_lr);
    CheckLr(name(), "warmup_max_lr", options.warmup_max_lr);
    if (options.total_num_steps < warmup_.steps()) {
      AddNotice(ShortTotalNotice(name(), options.total_num_steps, warmup_.steps()));
    }
    if (options.warmup_min_lr == 0) AddNotice(ZeroLrNotice(name(), "warmup_min_lr"));
  }
  std::string_view name() const override { return "WarmupDecayLR"; }

 protected:
  ScheduledValues Compute(int64_t index) const override {
    const double low = options_.warmup_min_lr, high = options_.warmup_max_lr;
    if (index < 0) return {.lr = low};
    if (index < warmup_.steps()) return {.lr = low + (high - low) * warmup_.At(index)};
    const double left = static_cast<double>(options_.total_num_steps - index);
    const double whole = static_cast<double>(std::max<int64_t>(1, options_.total_num_steps - warmup_.steps()));
    return {.lr = low + (high - low) * std::max(0.0, left / whole)};
  }

 private:
  WarmupDecayLrOptions options_;
  Warmup warmup_;
};

class WarmupCosineLr final : public LrSchedule {
 public:
  explicit WarmupCosineLr(const WarmupCosineLrOptions& options)
      : options_(options), warmup_(name(), options.warmup_num_steps, options.warmup_type) {
    CheckCount(name(), "total_num_steps", options.total_num_steps, 1);
    CheckLr(name(), "lr", options.lr);
    CheckInRange(name(), "warmup_min_ratio", options.warmup_min_ratio, 0, 1);
    CheckInRange(name(), "cos_min_ratio", options.cos_min_ratio, 0, 1);
    if (options.total_num_steps < warmup_.steps()) {
      AddNotice(ShortTotalNotice(name(), options.total_num_steps, warmup_.steps()));
    }
    if (options.warmup_min_ratio == 0) AddNotice(ZeroLrNotice(name(), "warmup_min_ratio"));
  }
  std::string_view name() const override { return "WarmupCosineLR"; }

 protected:
  ScheduledValues Compute(int64_t index) const override {
    if (index < 0) return {.lr = 0};
    if (index < warmup_.steps()) {
      const double start = options_.warmup_min_ratio;
      return {.lr = options_.lr * (start + (1 - start) * warmup_.At(index))};
    }
    const double done = static_cast<double>(index - warmup_.steps() + 1);
    const double whole = static_cast<double>(std::max<int64_t>(1, options_.total_num_steps - warmup_.steps()));
    const double cosine = (1 + std::cos(std::numbers::pi * std::min(1.0, done / whole))) / 2;
    const double floor = options_.cos_min_ratio;
    return {.lr = options_.lr * (floor + (1 - floor) * cosine)};
  }

 private:
  WarmupCosineLrOptions options_;
  Warmup warmup_;
};

class LrRangeTest final : public LrSchedule {
 public:
  explicit LrRangeTest(const LrRangeTestOptions& options) : options_(options) {
    CheckLr(name(), "lr_range_test_min_lr", options.lr_range_test_min_lr);
    CheckCount(name(), "lr_range_test_step_size", options.lr_range_test_step_size, 1);
    CheckInRange(name(), "lr_range_test_step_rate", options.lr_range_test_step_rate, 0, INFINITY);
  }
  std::string_view name() const override { return "LRRangeTest"; }

 protected:
  ScheduledValues Compute(int64_t index) const override {
    double x = static_cast<double>(index + 1) / static_cast<double>(options_.lr_range_test_step_size);
    if (options_.lr_range_test_staircase) x = std::floor(x);
    return {.lr = options_.lr_range_test_min_lr * (1 + options_.lr_range_test_step_rate * x)};
  }

 private:
  LrRangeTestOptions options_;
};

class OneCycle final : public LrSchedule {
 public:
  explicit OneCycle(const OneCycleOptions& options)
      : options_(options),
        first_(options.cycle_first_step_size),
        second_(options.cycle_second_step_size.value_or(options.cycle_first_step_size)),
        first_stairs_(options.cycle_first_stair_count),
        second_stairs_(options.cycle_second_stair_count.value_or(options.cycle_first_stair_count)) {
    CheckLr(name(), "cycle_min_lr", options.cycle_min_lr);
    CheckLr(name(), "cycle_max_lr", options.cycle_max_lr);
    CheckInRange(name(), "decay_lr_rate", options.decay_lr_rate, 0, INFINITY);
    CheckCount(name(), "cycle_first_step_size", first_, 1);
    CheckCount(name(), "cycle_second_step_size", second_, 0);
    CheckCount(name(), "cycle_first_stair_count", first_stairs_, 0);
    CheckCount(name(), "cycle_second_stair_count", second_stairs_, 0);
    CheckCount(name(), "decay_step_size", options.decay_step_size, 0);
    CheckInRange(name(), "cycle_min_mom", options.cycle_min_mom, 0, 1, true);
    CheckInRange(name(), "cycle_max_mom", options.cycle_max_mom, 0, 1, true);
    CheckInRange(name(), "decay_mom_rate", options.decay_mom_rate, 0, INFINITY);
  }
  std::string_view name() const override { return "OneCycle"; }

 protected:
  ScheduledValues Compute(int64_t index) const override {
    const int64_t length = first_ + second_;
    double lr, momentum;
    if (index < length) {
      const double height = Height((index + 1) % length);
      lr = options_.cycle_min_lr + (options_.cycle_max_lr - options_.cycle_min_lr) * height;
      momentum = options_.cycle_max_mom - (options_.cycle_max_mom - options_.cycle_min_mom) * height;
    } else {
      const double steps = static_cast<double>(index - length + 1);
      const double intervals =
          options_.decay_step_size == 0 ? 0 : steps / static_cast<double>(options_.decay_step_size);
      lr = options_.cycle_min_lr / (1 + options_.decay_lr_rate * intervals);
      momentum = options_.cycle_max_mom * (1 + options_.decay_mom_rate * intervals);
    }
    if (!options_.cycle_momentum) return {.lr = lr};
    return {.lr = lr, .momentum = momentum, .beta2 = 0.99};
  }

 private:
  // 0 at the cycle's ends and 1 at its peak. In whole steps, so that no stair is lost to rounding.
  double Height(int64_t position) const {
    const bool up = position <= first_;
    const int64_t part = up ? position : first_ + second_ - position;
    const int64_t whole = up ? first_ : second_;
    const int64_t stairs = up ? first_stairs_ : second_stairs_;
    if (stairs == 0) return static_cast<double>(part) / static_cast<double>(whole);
    return static_cast<double>(part * stairs / whole) / static_cast<double>(stairs);
  }

  OneCycleOptions options_;
  int64_t first_, second_, first_stairs_, second_stairs_;
};

// From a config's parameters --------------------------------------------------------------------------------------

class Reader : public ParamReader {
 public:
  Reader(std::string_view owner, const Params& params) : ParamReader(owner, params), owner_(owner) {
    const int64_t last = Integer("last_batch_iteration", -1);
    if (last != -1) {
      throw Error(Str(owner, ": last_batch_iteration is ", last, ", expected -1; a checkpoint restores the index"));
    }
  }
  WarmupType Type() {
    const std::string type = Text("warmup_type", "log");
    if (type == "log") return WarmupType::kLog;
    if (type == "linear") return WarmupType::kLinear;
    throw Error(Str(owner_, ": warmup_type is \"", type, "\", expected log or linear"));
  }

 private:
  std::string_view owner_;
};

template <class Options>
void ReadWarmup(Reader& reader, Options* options) {
  options->warmup_min_lr = reader.Number("warmup_min_lr", options->warmup_min_lr);
  options->warmup_max_lr = reader.Number("warmup_max_lr", options->warmup_max_lr);
  options->warmup_num_steps = reader.Integer("warmup_num_steps", options->warmup_num_steps);
  options->warmup_type = reader.Type();
}

WarmupLrOptions ReadWarmupLr(const Params& params, const ScheduledOptimizer& optimizer) {
  WarmupLrOptions options;
  options.warmup_max_lr = optimizer.lr.value_or(options.warmup_max_lr);
  Reader reader("WarmupLR", params);
  ReadWarmup(reader, &options);
  reader.RefuseUnknown();
  return options;
}

WarmupDecayLrOptions ReadWarmupDecayLr(const Params& params) {
  WarmupDecayLrOptions options;
  Reader reader("WarmupDecayLR", params);
  reader.Require("total_num_steps");
  options.total_num_steps = reader.Integer("total_num_steps", 0);
  ReadWarmup(reader, &options);
  reader.RefuseUnknown();
  return options;
}

WarmupCosineLrOptions ReadWarmupCosineLr(const Params& params, const ScheduledOptimizer& optimizer) {
  WarmupCosineLrOptions options;
  options.lr = optimizer.lr.value_or(options.lr);
  Reader reader("WarmupCosineLR", params);
  reader.Require("total_num_steps");
  options.total_num_steps = reader.Integer("total_num_steps", 0);
  options.warmup_min_ratio = reader.Number("warmup_min_ratio", options.warmup_min_ratio);
  options.warmup_num_steps = reader.Integer("warmup_num_steps", options.warmup_num_steps);
  options.cos_min_ratio = reader.Number("cos_min_ratio", options.cos_min_ratio);
  options.warmup_type = reader.Type();
  reader.RefuseUnknown();
  return options;
}

LrRangeTestOptions ReadLrRangeTest(const Params& params) {
  LrRangeTestOptions options;
  Reader reader("LRRangeTest", params);
  options.lr_range_test_min_lr = reader.Number("lr_range_test_min_lr", options.lr_range_test_min_lr);
  options.lr_range_test_step_size = reader.Integer("lr_range_test_step_size", options.lr_range_test_step_size);
  options.lr_range_test_step_rate = reader.Number("lr_range_test_step_rate", options.lr_range_test_step_rate);
  options.lr_range_test_staircase = reader.Flag("lr_range_test_staircase", options.lr_range_test_staircase);
  reader.RefuseUnknown();
  return options;
}

OneCycleOptions ReadOneCycle(const Params& params) {
  OneCycleOptions options;
  Reader reader("OneCycle", params);
  reader.Require("cycle_min_lr");
  reader.Require("cycle_max_lr");
  options.cycle_min_lr = reader.Number("cycle_min_lr", 0);
  options.cycle_max_lr = reader.Number("cycle_max_lr", 0);
  options.decay_lr_rate = reader.Number("decay_lr_rate", options.decay_lr_rate);
  options.cycle_first_step_size = reader.Integer("cycle_first_step_size", options.cycle_first_step_size);
  options.cycle_second_step_size = reader.Integer("cycle_second_step_size", options.cycle_first_step_size);
  options.cycle_first_stair_count = reader.Integer("cycle_first_stair_count", options.cycle_first_stair_count);
  options.cycle_second_stair_count = reader.Integer("cycle_second_stair_count", options.cycle_first_stair_count);
  options.decay_step_size = reader.Integer("decay_step_size", options.decay_step_size);
  options.cycle_momentum = reader.Flag("cycle_momentum", options.cycle_momentum);
  options.cycle_min_mom = reader.Number("cycle_min_mom", options.cycle_min_mom);
  options.cycle_max_mom = reader.Number("cycle_max_mom", options.cycle_max_mom);
  options.decay_mom_rate = reader.Number("decay_mom_rate", options.decay_mom_rate);
  reader.RefuseUnknown();
  return options;
}

}  // namespace

std::unique_ptr<LrSchedule> LrSchedule::Create(const ConstantLrOptions& options) {
  return std::make_unique<ConstantLr>(options);
}
std::unique_ptr<LrSchedule> LrSchedule::Create(const WarmupLrOptions& options) {
  return std::make_unique<WarmupLr>(options);
}
std::unique_ptr<LrSchedule> LrSchedule::Create(const WarmupDecayLrOptions& options) {
  return std::make_unique<WarmupDecayLr>(options);
}
std::unique_ptr<LrSchedule> LrSchedule::Create(const WarmupCosineLrOptions& options) {
  return std::make_unique<WarmupCosineLr>(options);
}
std::unique_ptr<LrSchedule> LrSchedule::Create(const LrRangeTestOptions& options) {
  return std::make_unique<LrRangeTest>(options);
}
std::unique_ptr<LrSchedule> LrSchedule::Create(const OneCycleOptions& options) {
  return std::make_unique<OneCycle>(options);
}

std::unique_ptr<LrSchedule> LrSchedule::Create(std::string_view type, const Params& params,
                                               const ScheduledOptimizer& optimizer) {
  std::unique_ptr<LrSchedule> schedule;
  const char* own_lr = "";  // the parameter that overrides the optimizer's lr
  if (EqualIgnoringCase(type, "WarmupLR")) {
    schedule = Create(ReadWarmupLr(params, optimizer));
    own_lr = "warmup_max_lr";
  } else if (EqualIgnoringCase(type, "WarmupDecayLR")) {
    schedule = Create(ReadWarmupDecayLr(params));
    own_lr = "warmup_max_lr";
  } else if (EqualIgnoringCase(type, "WarmupCosineLR")) {
    schedule = Create(ReadWarmupCosineLr(params, optimizer));
  } else if (EqualIgnoringCase(type, "LRRangeTest")) {
    schedule = Create(ReadLrRangeTest(params));
    own_lr = "lr_range_test_min_lr";
  } else if (EqualIgnoringCase(type, "OneCycle")) {
    OneCycleOptions options = ReadOneCycle(params);
    const bool drops_momentum = options.cycle_momentum && !optimizer.has_betas;
    if (drops_momentum) options.cycle_momentum = false;
    schedule = Create(options);
    own_lr = "cycle_max_lr";
    if (drops_momentum) schedule->AddNotice("OneCycle: cycle_momentum is off, the optimizer has no betas");
  } else if (EqualIgnoringCase(type, "constant")) {
    ParamReader("constant", params).RefuseUnknown();
    schedule = Create(ConstantLrOptions{.lr = optimizer.lr.value_or(ConstantLrOptions{}.lr)});
  } else {
    throw Error(Str("scheduler: type is \"", type,
                    "\", expected WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, LRRangeTest or constant"));
  }
  const auto given = params.find(own_lr);
  if (given != params.end() && optimizer.lr.has_value()) {
    const double scheduled = std::get<double>(given->second.get());
    if (scheduled != *optimizer.lr) {
      schedule->AddNotice(
          Str(schedule->name(), ": ", own_lr, " ", scheduled, " wins over the optimizer's lr ", *optimizer.lr));
    }
  }
  return schedule;
}

ScheduledValues LrSchedule::AtIndex(int64_t index) const {
  if (index < -1) {
    throw Error(Str(name(), ": index is ", index, " (update ", index + 2, "), expected >= -1 (update >= 1)"));
  }
  return Compute(index);
}

Tensor LrSchedule::Table(int64_t first_update, int64_t count) const {
  if (first_update < 1 || count < 1) {
    throw Error(Str(name(), ": a table of ", count, " updates from ", first_update, "; both must be >= 1"));
  }
  std::vector<double> rows;
  rows.reserve(static_cast<size_t>(3 * count));
  for (int64_t update = first_update; update < first_update + count; ++update) {
    const ScheduledValues values = AtUpdate(update);
    rows.insert(rows.end(), {values.lr, values.momentum.value_or(NAN), values.beta2.value_or(NAN)});
  }
  return Tensor::From<double>(rows, {count, 3});
}

}  // namespace tessera::optim
