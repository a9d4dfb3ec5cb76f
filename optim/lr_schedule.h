// SPDX-License-Identifier: Apache-2.0
// Learning-rate schedules: pure functions of one index, with DeepSpeed's names, parameters, defaults and values.
//
// The index is -1 at first and goes up by one after each applied update: update u, counted from 1, runs with index
// u - 2. Skipped steps do not count. With a warm-up from 0 the first two updates therefore have lr 0.
//
//   auto schedule = LrSchedule::Create("WarmupDecayLR", {{"warmup_num_steps", 100}, {"total_num_steps", 5000},
//                                                        {"warmup_max_lr", 2e-5}});
//   schedule->Lr(1), schedule->AtIndex(-1).lr;              // the same
//   scalars.SetSchedule(schedule->Table(1, 5000));           // or SetLr(schedule->Lr(scalars.applied_steps() + 1))
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "optim/params.h"
#include "tensor/tensor.h"

namespace tessera::optim {

enum class WarmupType : uint8_t { kLog, kLinear };

struct ConstantLrOptions {
  double lr = 1e-3;
};

struct WarmupLrOptions {
  double warmup_min_lr = 0;
  double warmup_max_lr = 1e-3;
  int64_t warmup_num_steps = 1000;  // 0 and 1 act as 2
  WarmupType warmup_type = WarmupType::kLog;
};

struct WarmupDecayLrOptions {
  int64_t total_num_steps = 0;
  double warmup_min_lr = 0;
  double warmup_max_lr = 1e-3;
  int64_t warmup_num_steps = 1000;
  WarmupType warmup_type = WarmupType::kLog;
};

struct WarmupCosineLrOptions {
  double lr = 1e-3;  // the optimizer's; what the ratios multiply
  int64_t total_num_steps = 0;
  double warmup_min_ratio = 0;
  int64_t warmup_num_steps = 1000;
  double cos_min_ratio = 1e-4;
  WarmupType warmup_type = WarmupType::kLog;
};

struct LrRangeTestOptions {
  double lr_range_test_min_lr = 1e-3;
  int64_t lr_range_test_step_size = 2000;
  double lr_range_test_step_rate = 1;
  bool lr_range_test_staircase = false;
};

struct OneCycleOptions {
  double cycle_min_lr = 0, cycle_max_lr = 0;
  double decay_lr_rate = 0;
  int64_t cycle_first_step_size = 2000;
  std::optional<int64_t> cycle_second_step_size = {};  // absent: as the first
  int64_t cycle_first_stair_count = 0;                 // 0: no stairs
  std::optional<int64_t> cycle_second_stair_count = {};
  int64_t decay_step_size = 0;  // 0: no decay after the cycle
  bool cycle_momentum = true;   // beta2 is then 0.99
  double cycle_min_mom = 0.8, cycle_max_mom = 0.9;
  double decay_mom_rate = 0;
};

// What a schedule needs to know about the optimizer.
struct ScheduledOptimizer {
  std::optional<double> lr = {};  // as the user gave it
  bool has_betas = true;          // without betas OneCycle leaves the momentum alone
};

struct ScheduledValues {
  double lr = 0;
  std::optional<double> momentum = {};  // absent: the optimizer's own
  std::optional<double> beta2 = {};
};

class LrSchedule {
 public:
  virtual ~LrSchedule() = default;

  // type: "WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle", "LRRangeTest" or "constant", in any case.
  // Throws Error for another one, an unknown parameter or an illegal value.
  static std::unique_ptr<LrSchedule> Create(std::string_view type, const Params& params = {},
                                            const ScheduledOptimizer& optimizer = {});
  static std::unique_ptr<LrSchedule> Create(const ConstantLrOptions& options);
  static std::unique_ptr<LrSchedule> Create(const WarmupLrOptions& options);
  static std::unique_ptr<LrSchedule> Create(const WarmupDecayLrOptions& options);
  static std::unique_ptr<LrSchedule> Create(const WarmupCosineLrOptions& options);
  static std::unique_ptr<LrSchedule> Create(const LrRangeTestOptions& options);
  static std::unique_ptr<LrSchedule> Create(const OneCycleOptions& options);

  virtual std::string_view name() const = 0;
  ScheduledValues AtIndex(int64_t index) const;                                   // index >= -1
  ScheduledValues AtUpdate(int64_t update) const { return AtIndex(update - 2); }  // update >= 1
  double Lr(int64_t update) const { return AtUpdate(update).lr; }

  // Rows for updates [first_update, first_update + count): lr, momentum, beta2; NaN where the schedule has no say.
  Tensor Table(int64_t first_update, int64_t count) const;  // (count, 3) f64, on the CPU

  // What the user should be told once: legal, and perhaps not meant.
  const std::vector<std::string>& notices() const { return notices_; }

 protected:
  virtual ScheduledValues Compute(int64_t index) const = 0;
  void AddNotice(std::string notice) { notices_.push_back(std::move(notice)); }

 private:
  std::vector<std::string> notices_;
};

}  // namespace tessera::optim
