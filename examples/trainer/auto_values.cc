// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer/auto_values.h"

#include <algorithm>
#include <string_view>

#include "optim/optimizer.h"
#include "tensor/error.h"

namespace tessera::examples {
namespace {

class AutoResolver {
 public:
  AutoResolver(const ConfigFlags& flags, const ConfigFallbacks& fallbacks, zero::Config* config)
      : flags_(flags), fallbacks_(fallbacks), config_(*config) {}

  // The rule by which the key's value came about; the value is in the config. Empty: there is none.
  std::string Resolve(std::string_view key, const std::string& place) {
    if (const auto filled = config_.origins.find(std::string(key)); filled != config_.origins.end()) {
      return filled->second;  // by a flag, the preset or the batch's arithmetic
    }
    if (key.starts_with("zero_optimization.")) return ResolveZero(key.substr(18));
    if (key.starts_with("optimizer.params.")) return ResolveOptimizer(key.substr(17));
    if (key.starts_with("scheduler.params.")) return ResolveScheduler(key.substr(17), place);
    if (key == "fp16.enabled" || key == "bf16.enabled") return "off: --dtype does not ask for it";
    if (key == "gradient_clipping") return "the trainer's default";
    return "";
  }

 private:
  std::string ResolveZero(std::string_view name) {
    const int64_t h = fallbacks_.hidden_size;
    zero::ZeroConfig& zero = config_.zero;
    if (name == "reduce_bucket_size") {
      zero.reduce_bucket_size = h * h;
      return Str("hidden size ", h, " squared");
    }
    if (name == "stage3_prefetch_bucket_size") {
      zero.prefetch_bucket_size = h * h * 9 / 10;
      return Str("0.9 x hidden size ", h, " squared, rounded down");
    }
    if (name == "stage3_param_persistence_threshold") {
      zero.param_persistence_threshold = 10 * h;
      return Str("10 x hidden size ", h);
    }
    return "";
  }

  std::string ResolveOptimizer(std::string_view name) {
    optim::Params& params = config_.optimizer.params;
    if (name == "betas") {
      params.emplace(name, optim::ParamValue{flags_.adam_beta1.value_or(0.9), flags_.adam_beta2.value_or(0.99)});
      return flags_.adam_beta1 || flags_.adam_beta2 ? "--adam_beta1, --adam_beta2" : "the trainer's default";
    }
    if (name == "weight_decay") {
      params.emplace(name, flags_.weight_decay.value_or(0.1));
      return flags_.weight_decay ? "--weight_decay" : "the trainer's default";
    }
    if (name == "eps") {
      params.emplace(name, 1e-8);
      return "the trainer's default";
    }
    return "";
  }

  std::string ResolveScheduler(std::string_view name, const std::string& place) {
    optim::Params& params = config_.scheduler.params;
    if (name == "total_num_steps") {
      RequireSteps(name, place);
      params.emplace(name, fallbacks_.max_steps);
      return "--max_steps";
    }
    if (name == "warmup_num_steps") {
      if (!flags_.warmup_steps) RequireSteps(name, place);
      params.emplace(name, flags_.warmup_steps.value_or(std::max<int64_t>(fallbacks_.max_steps / 20, 1)));
      return flags_.warmup_steps ? "--warmup_steps" : "5 % of --max_steps";
    }
    if (name == "warmup_min_lr") {
      params.emplace(name, 0.0);
      return "0";
    }
    if (name == "warmup_max_lr") {
      params.emplace(name, OptimizerLr());
      return "the optimizer's lr";
    }
    return "";
  }

  double OptimizerLr() const {
    return optim::Optimizer::Create(config_.optimizer.type, config_.optimizer.params)->start_values().lr;
  }
  void RequireSteps(std::string_view name, const std::string& place) const {
    if (fallbacks_.max_steps > 0) return;
    const bool is_warmup = name == "warmup_num_steps";
    throw Error(Str(place, ": scheduler.params.", name, ": \"auto\" follows --max_steps, which is not given; set ",
                    is_warmup ? "it, or --warmup_steps" : "it", ", or write a whole number"));
  }

  const ConfigFlags& flags_;
  const ConfigFallbacks& fallbacks_;
  zero::Config& config_;
};

}  // namespace

void ResolveAutoValues(const zero::AutoKeys& autos, const ConfigFlags& flags, const ConfigFallbacks& fallbacks,
                       zero::Config* config) {
  AutoResolver resolver(flags, fallbacks, config);
  // In the order of names the optimizer is complete before the schedule, which may follow its lr.
  for (const auto& [key, place] : autos) {
    const std::string rule = resolver.Resolve(key, place);
    if (rule.empty()) throw Error(Str(place, ": ", key, ": this trainer has no rule for \"auto\" here; write a value"));
    config->origins[key] = Str("\"auto\" at ", place, ": ", rule);
  }
}

}  // namespace tessera::examples
