// SPDX-License-Identifier: Apache-2.0
#include "zero/config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <set>
#include <utility>

#include "io/file_bytes.h"
#include "optim/lr_schedule.h"
#include "optim/optimizer.h"
#include "tensor/error.h"
#include "zero/config_keys.h"
#include "zero/config_values.h"
#include "zero/json_reader.h"

namespace tessera::zero {
namespace {

using Kind = JsonValue::Kind;

// What DeepSpeed knows and `optim` does not: "not here yet" rather than unknown.
constexpr std::string_view kOtherOptimizers[] = {"OneBitAdam", "OneBitLamb", "ZeroOneAdam", "Lamb", "Adagrad",
                                                 "Muon",       "MuAdam",     "MuAdamW",     "MuSGD"};

// Where `name` stands in `message` as a word of its own, or npos.
size_t FindWord(std::string_view message, std::string_view name) {
  const auto is_part = [](char c) { return c == '_' || std::isalnum(static_cast<unsigned char>(c)); };
  for (size_t at = message.find(name); at != std::string_view::npos; at = message.find(name, at + 1)) {
    const size_t after = at + name.size();
    if ((at == 0 || !is_part(message[at - 1])) && (after == message.size() || !is_part(message[after]))) return at;
  }
  return std::string_view::npos;
}

// Reads one document into a Config. Problems are gathered, so that one run tells them all.
class Reader {
 public:
  Reader(std::string_view name, Config* config, AutoKeys* autos) : name_(name), config_(*config), autos_(autos) {}

  void Read(const JsonDocument& document) {
    problems_ = document.duplicates;
    if (document.root.kind != Kind::kObject) {
      problems_.push_back({1, Str("got ", document.root, ", expected an object")});
      return;
    }
    Walk(document.root, "", "");
    SetFields();
    ReadOptimizer();
    ReadScheduler();
    CheckPrecision();
    if (!Has("gradient_clipping") && (autos_ == nullptr || !autos_->contains("gradient_clipping"))) {
      config_.notices.push_back(
          "gradient_clipping is absent: gradients are clipped to a norm of 1, DeepSpeed's default");
    }
  }

  absl::Status status() {
    if (problems_.empty()) return absl::OkStatus();
    std::stable_sort(problems_.begin(), problems_.end(), [](const auto& a, const auto& b) { return a.line < b.line; });
    std::string out;
    for (const JsonProblem& problem : problems_) {
      out += Str(out.empty() ? "" : "\n", name_, ":", problem.line, ": ", problem.message);
    }
    return absl::InvalidArgumentError(out);
  }

 private:
  struct Given {
    const JsonValue* value = nullptr;
    std::string written;  // the path as the file spells it
    int64_t line = 0;
  };

  // ---- Keys ---------------------------------------------------------------------------------------------------------

  void AddProblem(int64_t line, std::string_view path, std::string_view what) {
    problems_.push_back({line, Str(path, ": ", what)});
  }

  // `written` and `path` name the block as the file and as the table spell it, with a dot at the end.
  void Walk(const JsonValue& block, const std::string& written, const std::string& path) {
    for (const JsonMember& member : block.members) {
      const std::string written_path = written + Printable(member.name);
      const ConfigKey* key = FindConfigKey(path + member.name);
      if (key == nullptr || member.name.find('.') != std::string::npos) {
        const std::string_view in(path.data(), path.empty() ? 0 : path.size() - 1);
        AddProblem(member.line, written_path, Str("unknown key;", SuggestKey(in, member.name)));
        if (problems_.back().message.back() == ';') problems_.back().message.pop_back();
        continue;
      }
      if (key->kind == KeyKind::kAlias) key = FindConfigKey(key->sentence);
      Visit(*key, {&member.value, written_path, member.line});
    }
  }

  void Visit(const ConfigKey& key, const Given& given) {
    const auto [earlier, is_new] = seen_.emplace(key.path, given);
    if (!is_new) {
      AddProblem(
          given.line, given.written,
          Str("the same setting as '", earlier->second.written, "' at line ", earlier->second.line, "; give it once"));
      return;
    }
    if (key.kind == KeyKind::kRefused) {
      if (IsLegal(key.legal, *given.value)) return;
      AddProblem(given.line, given.written, Str("not supported: ", key.sentence, "; leave the key out"));
      return;
    }
    if (key.path == "zero_optimization" && given.value->kind == Kind::kBoolean) {  // as DeepSpeed once spelled it
      Keep("zero_optimization.stage", given);
      return;
    }
    if (LeftToTheProgram(key.path, given)) {
      if (key.kind == KeyKind::kWorks) {
        autos_->emplace(key.path, Str(name_, ":", given.line));
      } else {
        config_.notices.push_back(Str(given.written, " has no effect: ", key.sentence));
      }
      return;
    }
    if (!CheckValue(key.path, key.type, given)) return;
    switch (key.kind) {
      case KeyKind::kBlock:
        Walk(*given.value, given.written + ".", std::string(key.path) + ".");
        break;
      case KeyKind::kWorks:
        Keep(key.path, given);
        break;
      case KeyKind::kOneValue:
        if (!IsLegal(key.legal, *given.value)) {
          AddProblem(given.line, given.written,
                     Str("got ", *given.value, ", expected ", key.legal, ": ", key.sentence));
          break;
        }
        [[fallthrough]];
      default:
        config_.notices.push_back(Str(given.written, " has no effect: ", key.sentence));
    }
  }

  static bool IsAuto(const JsonValue& value) { return value.kind == Kind::kText && value.text == "auto"; }
  bool LeftToTheProgram(std::string_view path, const Given& given) const {
    return autos_ != nullptr && IsAuto(*given.value) && IsAutoElsewhere(path);
  }

  bool CheckValue(std::string_view path, ValueType type, const Given& given) {
    if (IsAuto(*given.value)) {
      AddProblem(given.line, given.written,
                 Str(IsAutoElsewhere(path) ? "\"auto\" needs a trainer that computes the value, and here is none"
                                           : "\"auto\" is never allowed here",
                     "; write ", Expected(type)));
      return false;
    }
    if (Matches(type, *given.value)) return true;
    AddProblem(given.line, given.written, Str("got ", *given.value, ", expected ", Expected(type)));
    return false;
  }

  void Keep(std::string_view path, const Given& given) {
    values_.emplace(path, given);
    config_.origins.emplace(path, Str(name_, ":", given.line));
  }
  bool Has(std::string_view path) const { return values_.find(path) != values_.end(); }
  int64_t LineOf(std::string_view path) const {
    const auto found = values_.find(path);
    return found == values_.end() ? 1 : found->second.line;
  }

  // ---- Fields -------------------------------------------------------------------------------------------------------

  static void Assign(const JsonValue& value, bool* field) { *field = value.boolean; }
  static void Assign(const JsonValue& value, double* field) { *field = value.number; }
  static void Assign(const JsonValue& value, std::string* field) { *field = value.text; }
  static void Assign(const JsonValue& value, DType* field) { *field = *DTypeFrom(value); }
  static void Assign(const JsonValue& value, Reducer* field) { *field = *ReducerFrom(value); }
  static void Assign(const JsonValue& value, int64_t* field) {  // the boolean: "stage": true
    *field = value.kind == Kind::kBoolean ? (value.boolean ? 1 : 0) : *value.whole;
  }
  template <class T>
  static void Assign(const JsonValue& value, std::optional<T>* field) {
    Assign(value, &field->emplace());
  }
  template <class T>
  void Set(std::string_view path, T* field) {
    const auto found = values_.find(path);
    if (found != values_.end()) Assign(*found->second.value, field);
  }

  void SetFields() {
    Set("train_batch_size", &config_.train_batch_size);
    Set("train_micro_batch_size_per_gpu", &config_.train_micro_batch_size_per_gpu);
    Set("gradient_accumulation_steps", &config_.gradient_accumulation_steps);
    Set("gradient_clipping", &config_.gradient_clipping);
    Set("steps_per_print", &config_.steps_per_print);
    Set("wall_clock_breakdown", &config_.wall_clock_breakdown);
    Set("communication_data_type", &config_.communication_data_type);
    Set("data_types.param_dtype", &config_.param_dtype);
    Set("data_types.grad_accum_dtype", &config_.grad_accum_dtype);

    Set("fp16.enabled", &config_.fp16.enabled);
    Set("fp16.loss_scale", &config_.fp16.loss_scale);
    Set("fp16.initial_scale_power", &config_.fp16.initial_scale_power);
    Set("fp16.loss_scale_window", &config_.fp16.loss_scale_window);
    Set("fp16.hysteresis", &config_.fp16.hysteresis);
    Set("fp16.consecutive_hysteresis", &config_.fp16.consecutive_hysteresis);
    Set("fp16.min_loss_scale", &config_.fp16.min_loss_scale);
    Set("bf16.enabled", &config_.bf16.enabled);
    Set("bf16.check_grad_overflow", &config_.bf16.check_grad_overflow);

    ZeroConfig& zero = config_.zero;
    Set("zero_optimization.stage", &zero.stage);
    Set("zero_optimization.reduce_bucket_size", &zero.reduce_bucket_size);
    Set("zero_optimization.allgather_bucket_size", &zero.allgather_bucket_size);
    Set("zero_optimization.overlap_comm", &zero.overlap_comm);
    Set("zero_optimization.sub_group_size", &zero.sub_group_size);
    Set("zero_optimization.stage3_prefetch_bucket_size", &zero.prefetch_bucket_size);
    Set("zero_optimization.stage3_param_persistence_threshold", &zero.param_persistence_threshold);
    Set("zero_optimization.stage3_model_persistence_threshold", &zero.model_persistence_threshold);
    Set("zero_optimization.stage3_max_live_parameters", &zero.max_live_parameters);
    Set("zero_optimization.stage3_max_reuse_distance", &zero.max_reuse_distance);

    Set("optimizer.type", &config_.optimizer.type);
    Set("scheduler.type", &config_.scheduler.type);
    Set("tessera.reducer", &config_.tessera.reducer);
    Set("tessera.keep_last_unit", &config_.tessera.keep_last_unit);
    Set("tessera.comm_timeout_s", &config_.tessera.comm_timeout_s);
    Set("tessera.max_skipped_steps", &config_.tessera.max_skipped_steps);
  }

  // ---- Optimizer and schedule ---------------------------------------------------------------------------------------

  struct GivenParams {
    optim::Params params;
    std::map<std::string, int64_t, std::less<>> lines;  // of all that were given
    std::set<std::string, std::less<>> set_aside;       // those of them that have a problem already
  };

  static std::optional<optim::ParamValue> ToParam(const JsonValue& value) {
    if (value.kind == Kind::kBoolean) return optim::ParamValue(value.boolean);
    if (value.kind == Kind::kNumber) return optim::ParamValue(value.number);
    if (value.kind == Kind::kText) return optim::ParamValue(value.text);
    if (value.kind != Kind::kList) return std::nullopt;
    std::vector<double> numbers;
    for (const JsonValue& item : value.items) {
      if (item.kind != Kind::kNumber) return std::nullopt;
      numbers.push_back(item.number);
    }
    return optim::ParamValue(std::move(numbers));
  }

  GivenParams ReadParams(const std::string& path) {
    GivenParams out;
    const auto block = values_.find(path);
    if (block == values_.end()) return out;
    for (const JsonMember& member : block->second.value->members) {
      const std::string full = path + "." + Printable(member.name);
      const std::optional<optim::ParamValue> param = ToParam(member.value);
      out.lines.emplace(member.name, member.line);
      if (LeftToTheProgram(full, {&member.value, full, member.line})) {
        autos_->emplace(full, Str(name_, ":", member.line));
        out.set_aside.insert(member.name);
      } else if (IsAuto(member.value)) {
        CheckValue(full, ValueType::kAny, {&member.value, full, member.line});
        out.set_aside.insert(member.name);
      } else if (!param.has_value()) {
        AddProblem(member.line, full,
                   Str("got ", member.value, ", expected a number, true, false, a text or a list of numbers"));
        out.set_aside.insert(member.name);
      } else {
        out.params.emplace(member.name, *param);
        config_.origins.emplace(full, Str(name_, ":", member.line));
      }
    }
    return out;
  }

  // Creates what the block describes, to find its errors: one that names a parameter sets it aside for the next try.
  template <class Create>
  void TryCreate(const std::string& block, GivenParams given, const Create& create) {
    while (true) {
      try {
        create(given.params);
        return;
      } catch (const Error& error) {
        const std::string_view message = error.what();
        auto named = given.lines.end();
        for (auto it = given.lines.begin(); it != given.lines.end(); ++it) {
          if (named == given.lines.end() || FindWord(message, it->first) < FindWord(message, named->first)) named = it;
        }
        if (named == given.lines.end() || FindWord(message, named->first) == std::string_view::npos) {
          AddTypeProblem(block, message);
          return;
        }
        if (!given.set_aside.insert(named->first).second) return;  // it is told already
        AddProblem(named->second, Str(block, ".params.", Printable(named->first)), Printable(message, 400));
        given.params.erase(named->first);
      }
    }
  }

  void AddTypeProblem(const std::string& block, std::string_view message) {
    const std::string path = block + ".type", start = block + ": type is ";
    if (!message.starts_with(start)) {
      AddProblem(LineOf(path), block, message);
      return;
    }
    message.remove_prefix(start.size());  // "X", expected A, B or C
    const std::string& type = block == "optimizer" ? config_.optimizer.type : config_.scheduler.type;
    const bool is_known = block == "optimizer" &&
                          std::any_of(std::begin(kOtherOptimizers), std::end(kOtherOptimizers),
                                      [&](std::string_view other) { return optim::EqualIgnoringCase(type, other); });
    message.remove_prefix(std::min(message.rfind(", expected "), message.size()));
    AddProblem(LineOf(path), path, Str(is_known ? "not here yet: \"" : "got \"", Printable(type), "\"", message));
  }

  // A block without a usable type cannot be tried.
  bool HasType(const std::string& block) {
    if (Has(block + ".type")) return true;
    const auto seen = seen_.find(block);
    if (seen != seen_.end() && seen_.find(block + ".type") == seen_.end() &&
        seen->second.value->kind == Kind::kObject) {
      AddProblem(seen->second.line, block, "has no type; name one, or leave the block out");
    }
    return false;
  }

  void ReadOptimizer() {
    const GivenParams given = ReadParams("optimizer.params");
    config_.optimizer.params = given.params;
    if (!HasType("optimizer")) return;
    TryCreate("optimizer", given, [&](const optim::Params& params) {
      scheduled_.has_betas = optim::Optimizer::Create(config_.optimizer.type, params)->has_betas();
    });
    const auto lr = given.params.find("lr");
    if (lr != given.params.end() && std::holds_alternative<double>(lr->second.get())) {
      scheduled_.lr = std::get<double>(lr->second.get());
    }
  }

  void ReadScheduler() {
    const GivenParams given = ReadParams("scheduler.params");
    config_.scheduler.params = given.params;
    if (!HasType("scheduler")) return;
    TryCreate("scheduler", given, [&](const optim::Params& params) {
      const auto schedule = optim::LrSchedule::Create(config_.scheduler.type, params, scheduled_);
      config_.notices.insert(config_.notices.end(), schedule->notices().begin(), schedule->notices().end());
    });
  }

  // ---- What spans several keys --------------------------------------------------------------------------------------

  void CheckPrecision() {
    const Fp16Config& fp16 = config_.fp16;
    if (fp16.enabled && config_.bf16.enabled) {
      AddProblem(std::max(LineOf("fp16.enabled"), LineOf("bf16.enabled")), "fp16.enabled, bf16.enabled",
                 "both are true; enable one of them");
    }
    const double first_scale = std::ldexp(1.0, static_cast<int>(fp16.initial_scale_power));
    if (fp16.loss_scale == 0 && first_scale < fp16.min_loss_scale) {
      AddProblem(std::max(LineOf("fp16.min_loss_scale"), LineOf("fp16.initial_scale_power")), "fp16.min_loss_scale",
                 Str("got ", fp16.min_loss_scale, ", expected at most 2^initial_scale_power = ", first_scale));
    }
    if (config_.param_dtype.has_value() && (fp16.enabled || config_.bf16.enabled)) {
      const DType enabled = fp16.enabled ? DType::kF16 : DType::kBF16;
      if (*config_.param_dtype != enabled) {
        config_.notices.push_back(Str("data_types.param_dtype wins over ", fp16.enabled ? "fp16" : "bf16",
                                      ".enabled: weights are ", Name(*config_.param_dtype),
                                      fp16.enabled ? ", and the loss is scaled" : ""));
      }
    }
    if (config_.parameter_dtype() != DType::kF64) return;
    for (const char* path : {"data_types.grad_accum_dtype", "communication_data_type"}) {
      const auto given = values_.find(path);
      if (given == values_.end() || given->second.value->text == "fp64") continue;
      config_.notices.push_back(Str(path, " has no effect: gradients of fp64 weights are fp64 throughout"));
    }
  }

  const std::string name_;
  Config& config_;
  AutoKeys* const autos_;
  std::vector<JsonProblem> problems_;
  std::map<std::string, Given, std::less<>> seen_;    // every key of the table that came, by the table's path
  std::map<std::string, Given, std::less<>> values_;  // those of them that work and have a legal value
  optim::ScheduledOptimizer scheduled_;
};

}  // namespace

DType Config::parameter_dtype() const {
  if (param_dtype.has_value()) return *param_dtype;
  if (fp16.enabled) return DType::kF16;
  return bf16.enabled ? DType::kBF16 : DType::kF32;
}

DType Config::communication_dtype() const {
  if (parameter_dtype() == DType::kF64) return DType::kF64;
  return communication_data_type.value_or(parameter_dtype());
}

DType Config::accumulation_dtype() const {
  if (parameter_dtype() == DType::kF64) return DType::kF64;
  return grad_accum_dtype.value_or(DType::kF32);
}

absl::StatusOr<Config> Config::FromJson(std::string_view text, std::string_view name, AutoKeys* autos) {
  const absl::StatusOr<JsonDocument> document = ReadJson(text, name);
  if (!document.ok()) return document.status();
  Config config;
  Reader reader(name, &config, autos);
  reader.Read(*document);
  if (const absl::Status status = reader.status(); !status.ok()) return status;
  return config;
}

absl::StatusOr<Config> Config::FromFile(const std::string& path, AutoKeys* autos) {
  const auto file = io::FileBytes::Open(path);
  if (!file.ok()) return file.status();
  const auto bytes = (*file)->bytes();
  return FromJson({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path, autos);
}

}  // namespace tessera::zero
