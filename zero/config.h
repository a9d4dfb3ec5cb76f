// SPDX-License-Identifier: Apache-2.0
// The configuration of a run: DeepSpeed's JSON keys, names, defaults and meanings, as a typed struct.
//
//   absl::StatusOr<Config> config = Config::FromFile("ds_config.json");
//   if (!config.ok()) { std::cerr << config.status().message() << '\n'; return 1; }
//   absl::Status batch = config->ResolveBatch(world_size);
//
// Buckets and thresholds count elements. Every error is one line: file, line, key path, what came, what is legal.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "optim/params.h"
#include "tensor/dtype.h"

namespace tessera::zero {

struct Fp16Config {
  bool enabled = false;
  double loss_scale = 0;  // 0: dynamic; else fixed
  int64_t initial_scale_power = 16;
  int64_t loss_scale_window = 1000;
  int64_t hysteresis = 2;
  bool consecutive_hysteresis = false;
  double min_loss_scale = 1;
};

struct Bf16Config {
  bool enabled = false;
  bool check_grad_overflow = true;  // skip a step whose gradients are not finite
};

struct ZeroConfig {
  int64_t stage = 0;
  int64_t reduce_bucket_size = 500'000'000;     // elements per collective; a larger unit goes in pieces
  int64_t allgather_bucket_size = 500'000'000;  // the same for refreshing parameters after the update
  std::optional<bool> overlap_comm = {};        // absent: the engine decides
  int64_t sub_group_size = 1'000'000'000;       // elements that one piece of the update works on
  int64_t prefetch_bucket_size = 50'000'000;    // elements gathered ahead; 0: none
  int64_t param_persistence_threshold = 100'000;
  int64_t model_persistence_threshold = std::numeric_limits<int64_t>::max();
  int64_t max_live_parameters = 1'000'000'000;
  std::optional<int64_t> max_reuse_distance = {};  // absent: only what is needed again at once is kept
};

struct OptimizerConfig {
  std::string type;  // empty: the config names none
  optim::Params params;
};

struct SchedulerConfig {
  std::string type;  // empty: the optimizer's lr throughout
  optim::Params params;
};

enum class Reducer : uint8_t {
  kFast,       // the communicator's own reduce-scatter or all-reduce
  kCanonical,  // per micro-step, an all-to-all and one sum in rank order: the same bits at every stage
};

// The block "tessera": what DeepSpeed has no key for.
struct TesseraConfig {
  Reducer reducer = Reducer::kFast;
  bool keep_last_unit = true;      // the last unit of forward stays gathered for backward
  double comm_timeout_s = 600;     // silence of a rank that ends the run
  int64_t max_skipped_steps = 20;  // consecutive ones, at a fixed loss scale, that end the run
};

// Keys whose value a file leaves to the program with "auto", and the place of each: "optimizer.params.lr" ->
// "ds_config.json:7".
using AutoKeys = std::map<std::string, std::string>;

struct Config {
  // Of the batch triple those absent are 0 until ResolveBatch.
  int64_t train_batch_size = 0;
  int64_t train_micro_batch_size_per_gpu = 0;
  int64_t gradient_accumulation_steps = 0;
  double gradient_clipping = 1.0;  // DeepSpeed's present default; 0: none
  int64_t steps_per_print = 0;     // 0: never
  bool wall_clock_breakdown = false;

  Fp16Config fp16;
  Bf16Config bf16;
  ZeroConfig zero;
  OptimizerConfig optimizer;
  SchedulerConfig scheduler;
  TesseraConfig tessera;

  // Absent: follow fp16/bf16, else f32.
  std::optional<DType> param_dtype = {};              // data_types.param_dtype, fp64 too
  std::optional<DType> grad_accum_dtype = {};         // data_types.grad_accum_dtype; absent: f32
  std::optional<DType> communication_data_type = {};  // absent: the parameters' dtype

  // What was accepted without effect, and what may surprise: one sentence each, to print once.
  std::vector<std::string> notices;
  // Where each value that is not a default came from: key path -> "ds_config.json:12", "derived: 4 x 8 x 2", ...
  std::map<std::string, std::string> origins;

  DType parameter_dtype() const;      // of weights and computing
  DType communication_dtype() const;  // of gradients on the wire
  DType accumulation_dtype() const;   // of gradients over several micro-steps
  bool is_dynamic_loss_scale() const { return fp16.enabled && fp16.loss_scale == 0; }

  // Completes the batch triple for `world_size` data ranks: train_batch_size = micro x accumulation x ranks.
  absl::Status ResolveBatch(int64_t world_size);

  // `name` is the file's name in messages. With `autos`, "auto" is legal where integrations of DeepSpeed compute a value:
  // the field stays as it is without the key, the key is listed, and the program fills it. Without, it is an error.
  static absl::StatusOr<Config> FromJson(std::string_view text, std::string_view name = "config",
                                         AutoKeys* autos = nullptr);
  static absl::StatusOr<Config> FromFile(const std::string& path, AutoKeys* autos = nullptr);
};

}  // namespace tessera::zero
