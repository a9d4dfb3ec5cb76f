// SPDX-License-Identifier: Apache-2.0
#include "zero/config_json.h"

#include <charconv>
#include <string_view>

#include <nlohmann/json.hpp>

#include "tensor/error.h"
#include "zero/config_values.h"

namespace tessera::zero {
namespace {

// In the order that it is written in.
using Json = nlohmann::ordered_json;

std::string Written(double value) {  // the shortest text that reads back as the same number
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, value).ptr};
}
std::string Written(int64_t value) { return std::to_string(value); }
std::string Written(bool value) { return value ? "true" : "false"; }
std::string Written(const std::string& text) { return Json(text).dump(-1, ' ', false, Json::error_handler_t::replace); }
std::string Written(DType dtype) { return Str("\"", DTypeName(dtype), "\""); }
std::string Written(Reducer reducer) { return Str("\"", ReducerName(reducer), "\""); }
std::string Written(const std::vector<double>& numbers) {
  std::string out;
  for (const double number : numbers) out += (out.empty() ? "[" : ", ") + Written(number);
  return out.empty() ? "[]" : out + "]";
}

class EntryList {
 public:
  explicit EntryList(const Config& config) : config_(config) {}

  template <class T>
  void Add(const std::string& path, const T& value) {
    const auto origin = config_.origins.find(path);
    entries_.push_back({path, Written(value), origin == config_.origins.end() ? "default" : origin->second});
  }
  template <class T>
  void Add(const std::string& path, const std::optional<T>& value) {
    if (value.has_value()) Add(path, *value);
  }
  void AddUnlessZero(const std::string& path, int64_t value) {  // 0: not resolved yet
    if (value != 0) Add(path, value);
  }
  void AddBlock(const std::string& block, const std::string& type, const optim::Params& params) {
    if (type.empty()) return;
    Add(block + ".type", type);
    for (const auto& [name, value] : params) {
      std::visit([&](const auto& typed) { Add(Str(block, ".params.", name), typed); }, value.get());
    }
  }
  std::vector<ConfigEntry> Take() { return std::move(entries_); }

 private:
  const Config& config_;
  std::vector<ConfigEntry> entries_;
};

void AddZero(const ZeroConfig& zero, EntryList* list) {
  list->Add("zero_optimization.stage", zero.stage);
  list->Add("zero_optimization.reduce_bucket_size", zero.reduce_bucket_size);
  list->Add("zero_optimization.allgather_bucket_size", zero.allgather_bucket_size);
  list->Add("zero_optimization.overlap_comm", zero.overlap_comm);
  list->Add("zero_optimization.sub_group_size", zero.sub_group_size);
  list->Add("zero_optimization.stage3_prefetch_bucket_size", zero.prefetch_bucket_size);
  list->Add("zero_optimization.stage3_param_persistence_threshold", zero.param_persistence_threshold);
  list->Add("zero_optimization.stage3_model_persistence_threshold", zero.model_persistence_threshold);
  list->Add("zero_optimization.stage3_max_live_parameters", zero.max_live_parameters);
  list->Add("zero_optimization.stage3_max_reuse_distance", zero.max_reuse_distance);
}

void AddPrecision(const Config& config, EntryList* list) {
  list->Add("fp16.enabled", config.fp16.enabled);
  list->Add("fp16.loss_scale", config.fp16.loss_scale);
  list->Add("fp16.initial_scale_power", config.fp16.initial_scale_power);
  list->Add("fp16.loss_scale_window", config.fp16.loss_scale_window);
  list->Add("fp16.hysteresis", config.fp16.hysteresis);
  list->Add("fp16.consecutive_hysteresis", config.fp16.consecutive_hysteresis);
  list->Add("fp16.min_loss_scale", config.fp16.min_loss_scale);
  list->Add("bf16.enabled", config.bf16.enabled);
  list->Add("bf16.check_grad_overflow", config.bf16.check_grad_overflow);
  list->Add("data_types.param_dtype", config.param_dtype);
  list->Add("data_types.grad_accum_dtype", config.grad_accum_dtype);
  list->Add("communication_data_type", config.communication_data_type);
}

}  // namespace

std::vector<ConfigEntry> ConfigEntries(const Config& config) {
  EntryList list(config);
  list.AddUnlessZero("train_batch_size", config.train_batch_size);
  list.AddUnlessZero("train_micro_batch_size_per_gpu", config.train_micro_batch_size_per_gpu);
  list.AddUnlessZero("gradient_accumulation_steps", config.gradient_accumulation_steps);
  list.Add("gradient_clipping", config.gradient_clipping);
  list.Add("steps_per_print", config.steps_per_print);
  list.Add("wall_clock_breakdown", config.wall_clock_breakdown);
  list.AddBlock("optimizer", config.optimizer.type, config.optimizer.params);
  list.AddBlock("scheduler", config.scheduler.type, config.scheduler.params);
  list.Add("tessera.reducer", config.tessera.reducer);
  list.Add("tessera.keep_last_unit", config.tessera.keep_last_unit);
  list.Add("tessera.comm_timeout_s", config.tessera.comm_timeout_s);
  list.Add("tessera.max_skipped_steps", config.tessera.max_skipped_steps);
  AddPrecision(config, &list);
  AddZero(config.zero, &list);
  return list.Take();
}

std::string ConfigToJson(const Config& config) {
  Json root = Json::object();
  for (const ConfigEntry& entry : ConfigEntries(config)) {
    Json* block = &root;
    std::string_view name = entry.path;
    // Names in "params" are the user's and may have dots.
    for (size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
      const bool in_params = name.starts_with("params.");
      block = &(*block)[std::string(name.substr(0, dot))];
      name.remove_prefix(dot + 1);
      if (in_params) break;
    }
    (*block)[std::string(name)] = Json::parse(entry.value);
  }
  return root.dump(2) + "\n";
}

std::string ConfigOriginsToJson(const Config& config) {
  Json root = Json::object();
  for (const ConfigEntry& entry : ConfigEntries(config)) {
    root[entry.path] = {{"value", Json::parse(entry.value)}, {"origin", entry.origin}};
  }
  return root.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace tessera::zero
