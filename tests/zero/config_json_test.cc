// SPDX-License-Identifier: Apache-2.0
#include "zero/config_json.h"

#include <algorithm>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "tests/zero/load_config.h"
#include "zero/config_keys.h"

namespace tessera::zero {
namespace {

constexpr char kFull[] = R"({
  "train_batch_size": 32, "gradient_accumulation_steps": 2, "gradient_clipping": 0.1, "steps_per_print": 7,
  "wall_clock_breakdown": true, "communication_data_type": "fp32",
  "data_types": {"grad_accum_dtype": "bf16"},
  "bf16": {"enabled": true, "check_grad_overflow": false},
  "fp16": {"initial_scale_power": 12, "hysteresis": 3, "consecutive_hysteresis": true, "min_loss_scale": 0.5,
           "loss_scale_window": 77},
  "zero_optimization": {"stage": 3, "reduce_bucket_size": 1000, "allgather_bucket_size": 2000, "overlap_comm": true,
    "sub_group_size": 3000, "stage3_prefetch_bucket_size": 4000, "stage3_param_persistence_threshold": 5000,
    "stage3_model_persistence_threshold": 6000, "stage3_max_live_parameters": 7000, "stage3_max_reuse_distance": 8000},
  "optimizer": {"type": "AdamW", "params": {"lr": 0.00030000000000000003, "betas": [0.9, 0.95], "adam_w_mode": true}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10, "warmup_type": "linear"}},
  "tessera": {"reducer": "canonical", "keep_last_unit": false, "comm_timeout_s": 9.5, "max_skipped_steps": 4}
})";

TEST(ConfigJson, ReadsBackAsTheSameValues) {
  for (const char* text : {"{}", kFull, R"({"fp16": {"enabled": true, "loss_scale": 128}})",
                           R"({"data_types": {"param_dtype": "fp64"}, "train_micro_batch_size_per_gpu": 3})"}) {
    Config config = Load(text);
    if (config.train_batch_size + config.train_micro_batch_size_per_gpu > 0) {
      ASSERT_TRUE(config.ResolveBatch(2).ok());
    }
    const std::string written = ConfigToJson(config);
    EXPECT_EQ(ConfigToJson(Load(written)), written);
    const auto param = config.optimizer.params.find("lr");
    if (param != config.optimizer.params.end()) {
      EXPECT_EQ(Load(written).optimizer.params.find("lr")->second.get(), param->second.get());
    }
  }
  EXPECT_EQ(Load(ConfigToJson(Config())).zero.model_persistence_threshold, ZeroConfig().model_persistence_threshold);
}

TEST(ConfigJson, WritesEveryKeyThatWorks) {
  Config config = Load(kFull);
  config.param_dtype = DType::kBF16;
  ASSERT_TRUE(config.ResolveBatch(2).ok());
  const std::vector<ConfigEntry> entries = ConfigEntries(config);
  for (const ConfigKey& key : ConfigKeys()) {
    if (key.kind != KeyKind::kWorks || key.path.ends_with(".params")) continue;
    EXPECT_TRUE(std::any_of(entries.begin(), entries.end(), [&](const ConfigEntry& e) { return e.path == key.path; }))
        << key.path;
  }
}

TEST(ConfigJson, SaysWhereEachValueComesFrom) {
  Config config = Load(R"({"train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "SGD",
      "params": {"lr": 0.5}}})");
  ASSERT_TRUE(config.ResolveBatch(2).ok());
  const nlohmann::json origins = nlohmann::json::parse(ConfigOriginsToJson(config));
  EXPECT_EQ(origins["train_micro_batch_size_per_gpu"]["origin"], "ds.json:1");
  EXPECT_EQ(origins["train_batch_size"]["origin"], "derived: 4 x 1 x 2 ranks");
  EXPECT_EQ(origins["train_batch_size"]["value"], 8);
  EXPECT_EQ(origins["optimizer.params.lr"]["origin"], "ds.json:3");
  EXPECT_EQ(origins["zero_optimization.stage"]["origin"], "default");
  EXPECT_FALSE(origins.contains("zero_optimization.overlap_comm"));  // absent: the engine decides
}

}  // namespace
}  // namespace tessera::zero
