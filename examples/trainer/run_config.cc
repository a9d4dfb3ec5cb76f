// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer/run_config.h"

#include <algorithm>
#include <initializer_list>
#include <string_view>

#include "examples/trainer/auto_values.h"
#include "tensor/error.h"

namespace tessera::examples {
namespace {

constexpr std::pair<std::string_view, DType> kDTypes[] = {
    {"fp32", DType::kF32}, {"bf16", DType::kBF16}, {"fp16", DType::kF16}, {"fp64", DType::kF64}};

// Origins of what neither file nor flag gives.
constexpr char kPreset[] = "the preset", kTrainer[] = "the trainer's default";

// Where the file gives one of `keys`; empty when it gives none.
std::string PlaceOf(const zero::Config& config, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (const auto found = config.origins.find(key); found != config.origins.end()) {
      return Str(key, " at ", found->second);
    }
  }
  return "";
}

template <class T>
void RequireEqual(const char* flag, const T& given, const std::string& place, const T& in_file) {
  if (given == in_file) return;
  throw Error(Str("--", flag, " is ", given, ", but ", place, " is ", in_file, "; make them agree, or drop the flag"));
}

// The file's value, which a flag may only repeat; else the flag's; else what is there.
template <class T>
void Merge(const char* flag, const std::optional<T>& given, const char* key, zero::Config* config, T* field) {
  if (!given) return;
  if (const std::string place = PlaceOf(*config, {key}); !place.empty()) {
    RequireEqual(flag, *given, place, *field);
    return;
  }
  *field = *given;
  config->origins.emplace(key, Str("--", flag));
}

void MergeDType(const std::optional<std::string>& given, const zero::AutoKeys& autos, zero::Config* config) {
  if (!given) return;
  const auto* named =
      std::find_if(std::begin(kDTypes), std::end(kDTypes), [&](const auto& known) { return known.first == *given; });
  if (named == std::end(kDTypes)) throw Error(Str("--dtype is \"", *given, "\", expected fp32, bf16, fp16 or fp64"));
  // "auto" is for this flag to fill, whatever the other kind's key says, as long as that one is off.
  const bool is_bf16 = named->second == DType::kBF16, is_fp16 = named->second == DType::kF16;
  if (is_bf16 || is_fp16) {
    const char* key = is_bf16 ? "bf16.enabled" : "fp16.enabled";
    if (autos.contains(key) && config->parameter_dtype() == DType::kF32 && !config->param_dtype) {
      (is_bf16 ? config->bf16.enabled : config->fp16.enabled) = true;
      config->origins.emplace(key, "--dtype");
      return;
    }
  }
  const std::string place = PlaceOf(*config, {"data_types.param_dtype", "fp16.enabled", "bf16.enabled"});
  if (!place.empty()) {
    if (named->second == config->parameter_dtype()) return;
    throw Error(Str("--dtype is ", *given, ", but by ", place, " it is ", DTypeName(config->parameter_dtype()),
                    "; make them agree, or drop the flag"));
  }
  config->bf16.enabled = named->second == DType::kBF16;
  config->fp16.enabled = named->second == DType::kF16;
  if (named->second == DType::kF64) config->param_dtype = DType::kF64;
  const char* key = config->bf16.enabled ? "bf16.enabled" : config->fp16.enabled ? "fp16.enabled" : nullptr;
  if (named->second == DType::kF64) key = "data_types.param_dtype";
  if (key != nullptr) config->origins.emplace(key, "--dtype");
}

void MergeOptimizer(const ConfigFlags& flags, double fallback_lr, const zero::AutoKeys& autos, zero::Config* config) {
  zero::OptimizerConfig& optimizer = config->optimizer;
  if (optimizer.type.empty()) {
    optimizer.type = "AdamW";
    optimizer.params = {{"lr", flags.lr.value_or(fallback_lr)},
                        {"betas", {flags.adam_beta1.value_or(0.9), flags.adam_beta2.value_or(0.99)}},
                        {"weight_decay", flags.weight_decay.value_or(0.1)}};
    const auto tell = [config](const char* key, bool given, const char* flag, const char* otherwise) {
      config->origins.emplace(Str("optimizer.", key), given ? flag : otherwise);
    };
    tell("type", false, "", kTrainer);
    tell("params.lr", flags.lr.has_value(), "--lr", kPreset);
    tell("params.betas", flags.adam_beta1 || flags.adam_beta2, "--adam_beta1, --adam_beta2", kTrainer);
    tell("params.weight_decay", flags.weight_decay.has_value(), "--weight_decay", kTrainer);
    return;
  }
  const std::string place = PlaceOf(*config, {"optimizer.type"});
  const bool auto_betas = autos.contains("optimizer.params.betas");
  const bool auto_decay = autos.contains("optimizer.params.weight_decay");
  for (const auto& [flag, given] : {std::pair("weight_decay", flags.weight_decay && !auto_decay),
                                    {"adam_beta1", flags.adam_beta1 && !auto_betas},
                                    {"adam_beta2", flags.adam_beta2 && !auto_betas}}) {
    if (given) throw Error(Str("--", flag, ", but the config has ", place, "; write it in optimizer.params there"));
  }
  const auto lr = optimizer.params.find("lr");
  if (lr == optimizer.params.end()) {
    optimizer.params.emplace("lr", flags.lr.value_or(fallback_lr));
    config->origins.emplace("optimizer.params.lr", flags.lr ? "--lr" : kPreset);
  } else if (const double* in_file = std::get_if<double>(&lr->second.get()); flags.lr && in_file != nullptr) {
    RequireEqual("lr", *flags.lr, PlaceOf(*config, {"optimizer.params.lr"}), *in_file);
  }
}

}  // namespace

std::string DTypeName(DType dtype) {
  for (const auto& [name, known] : kDTypes) {
    if (known == dtype) return std::string(name);
  }
  return std::string(Name(dtype));
}

zero::Config RunConfig(const std::string& path, const ConfigFlags& flags, const ConfigFallbacks& fallbacks,
                       int64_t ranks) {
  zero::Config config;
  zero::AutoKeys autos;
  if (!path.empty()) {
    absl::StatusOr<zero::Config> read = zero::Config::FromFile(path, &autos);
    if (!read.ok()) throw Error(std::string(read.status().message()));
    config = *std::move(read);
  }
  constexpr const char* kMicro = "train_micro_batch_size_per_gpu";
  constexpr const char* kThreshold = "zero_optimization.stage3_param_persistence_threshold";
  Merge(flags.stage_flag.c_str(), flags.zero_stage, "zero_optimization.stage", &config, &config.zero.stage);
  Merge("batch_size", flags.batch_size, kMicro, &config, &config.train_micro_batch_size_per_gpu);
  Merge("gradient_accumulation_steps", flags.gradient_accumulation_steps, "gradient_accumulation_steps", &config,
        &config.gradient_accumulation_steps);
  Merge("gradient_clipping", flags.gradient_clipping, "gradient_clipping", &config, &config.gradient_clipping);
  if (PlaceOf(config, {kThreshold}).empty() && !autos.contains(kThreshold))
    config.zero.param_persistence_threshold = fallbacks.persistence_threshold;
  Merge("stage3_param_persistence_threshold", flags.persistence_threshold, kThreshold, &config,
        &config.zero.param_persistence_threshold);
  if (config.zero.param_persistence_threshold != zero::ZeroConfig().param_persistence_threshold) {  // unless it has one
    config.origins.emplace(kThreshold, kPreset);
  }
  if (config.train_batch_size == 0 && config.train_micro_batch_size_per_gpu == 0) {
    config.train_micro_batch_size_per_gpu = std::max<int64_t>(fallbacks.global_batch / ranks, 1);
    config.origins.emplace(kMicro, kPreset);
  }
  MergeDType(flags.dtype, autos, &config);
  MergeOptimizer(flags, fallbacks.lr, autos, &config);
  if (flags.warmup_steps && !config.scheduler.type.empty() && !autos.contains("scheduler.params.warmup_num_steps")) {
    throw Error(Str("--warmup_steps is ", *flags.warmup_steps, ", but ", PlaceOf(config, {"scheduler.type"}), " is ",
                    config.scheduler.type, ", which has a warm-up of its own; drop the flag"));
  }
  if (flags.gradient_clipping) {  // the notice is about a clipping that nobody asked for
    std::erase_if(config.notices, [](const std::string& n) { return n.starts_with("gradient_clipping is absent"); });
  }
  if (const absl::Status status = config.ResolveBatch(ranks); !status.ok()) throw Error(std::string(status.message()));
  ResolveAutoValues(autos, flags, fallbacks, &config);
  return config;
}

}  // namespace tessera::examples
