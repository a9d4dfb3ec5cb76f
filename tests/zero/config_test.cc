// SPDX-License-Identifier: Apache-2.0
// What a config file means, and the exact words of every way in which one can be wrong.
#include "zero/config.h"

#include <cstdio>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/zero/load_config.h"

namespace tessera::zero {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

// ---- Whole files -------------------------------------------------------------------------------------------------------

constexpr char kStage2[] = R"({
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8,
  "gradient_clipping": 1.0,
  "bf16": { "enabled": true },
  "zero_optimization": {
    "stage": 2,
    "overlap_comm": true,
    "contiguous_gradients": true,
    "reduce_bucket_size": 5e7,
    "allgather_bucket_size": 5e7
  },
  "optimizer": {
    "type": "AdamW",
    "params": { "lr": 2e-5, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01 }
  },
  "scheduler": {
    "type": "WarmupDecayLR",
    "params": { "warmup_min_lr": 0, "warmup_max_lr": 2e-5, "warmup_num_steps": 100, "total_num_steps": 5000 }
  },
  "steps_per_print": 50,
  "wall_clock_breakdown": false
}
)";

TEST(Config, OfATutorialForStage2IsRead) {
  Config config = Load(kStage2);
  EXPECT_EQ(config.train_batch_size, 0);
  EXPECT_EQ(config.zero.stage, 2);
  EXPECT_EQ(config.zero.overlap_comm, true);
  EXPECT_EQ(config.zero.reduce_bucket_size, 50'000'000);
  EXPECT_EQ(config.zero.allgather_bucket_size, 50'000'000);
  EXPECT_EQ(config.optimizer.type, "AdamW");
  EXPECT_EQ(std::get<double>(config.optimizer.params.at("lr").get()), 2e-5);
  EXPECT_THAT(std::get<std::vector<double>>(config.optimizer.params.at("betas").get()), ElementsAre(0.9, 0.999));
  EXPECT_EQ(config.scheduler.type, "WarmupDecayLR");
  EXPECT_EQ(std::get<double>(config.scheduler.params.at("total_num_steps").get()), 5000);
  EXPECT_EQ(config.steps_per_print, 50);
  EXPECT_EQ(config.parameter_dtype(), DType::kBF16);
  EXPECT_EQ(config.communication_dtype(), DType::kBF16);
  EXPECT_EQ(config.accumulation_dtype(), DType::kF32);
  EXPECT_FALSE(config.is_dynamic_loss_scale());
  EXPECT_THAT(config.notices,
              ElementsAre("zero_optimization.contiguous_gradients has no effect: gradients are always written into the "
                          "buffer that is reduced",
                          "WarmupDecayLR: warmup_min_lr is 0, so updates 1 and 2 run with learning rate 0"));
  EXPECT_EQ(config.origins.at("zero_optimization.stage"), "ds.json:7");
  EXPECT_EQ(config.origins.at("optimizer.params.lr"), "ds.json:15");
  EXPECT_EQ(config.origins.at("wall_clock_breakdown"), "ds.json:22");
  EXPECT_EQ(config.origins.count("train_batch_size"), 0u);
  ASSERT_TRUE(config.ResolveBatch(4).ok());
  EXPECT_EQ(config.train_batch_size, 128);
  EXPECT_EQ(config.origins.at("train_batch_size"), "derived: 4 x 8 x 4 ranks");
}

TEST(Config, OfATutorialForOffloadIsRefusedByOffloadAndAuto) {
  EXPECT_EQ(
      ErrorOf(R"({
  "train_micro_batch_size_per_gpu": 4,
  "gradient_accumulation_steps": 8,
  "gradient_clipping": 1.0,
  "bf16": { "enabled": true },
  "zero_optimization": {
    "stage": 3,
    "offload_optimizer": { "device": "cpu", "pin_memory": true },
    "offload_param": { "device": "cpu", "pin_memory": true },
    "overlap_comm": true,
    "contiguous_gradients": true,
    "stage3_gather_16bit_weights_on_model_save": true
  },
  "optimizer": { "type": "AdamW", "params": { "lr": "auto", "weight_decay": "auto" } }
}
)"),
      "ds.json:8: zero_optimization.offload_optimizer: not supported: offload is not here yet, states stay on the "
      "device; leave the key out\n"
      "ds.json:9: zero_optimization.offload_param: not supported: offload is not here yet, weights stay on the "
      "device; leave the key out\n"
      "ds.json:14: optimizer.params.lr: \"auto\" needs a trainer that computes the value, and here is none; write "
      "a value\n"
      "ds.json:14: optimizer.params.weight_decay: \"auto\" needs a trainer that computes the value, and here is "
      "none; write a value");
}

TEST(Config, OfATutorialForOneBitAdamIsRefusedByTheOptimizerAndOffload) {
  EXPECT_EQ(
      ErrorOf(R"({
  "train_micro_batch_size_per_gpu": 4,
  "fp16": { "enabled": true },
  "zero_allow_untested_optimizer": true,
  "optimizer": {
    "type": "OneBitAdam",
    "params": { "lr": 3e-5, "betas": [0.998, 0.999], "eps": 1e-5, "weight_decay": 1e-9, "cuda_aware": true }
  },
  "scheduler": { "type": "WarmupLR", "params": { "warmup_max_lr": 3e-5, "warmup_num_steps": 100 } },
  "zero_optimization": {
    "stage": 2,
    "offload_optimizer": { "device": "cpu" },
    "contiguous_gradients": true,
    "overlap_comm": true,
    "allgather_bucket_size": 2e8,
    "reduce_bucket_size": 2e8
  }
}
)"),
      "ds.json:6: optimizer.type: not here yet: \"OneBitAdam\", expected Adam, AdamW, SGD or Lion\n"
      "ds.json:12: zero_optimization.offload_optimizer: not supported: offload is not here yet, states stay on the "
      "device; leave the key out");
}

TEST(Config, OfAnEmptyObjectHasTheDefaultsAndSaysThatItClips) {
  const Config config = Load("{}");
  EXPECT_EQ(Digest(config), Digest(Config()));
  EXPECT_THAT(config.notices,
              ElementsAre("gradient_clipping is absent: gradients are clipped to a norm of 1, DeepSpeed's default"));
  EXPECT_THAT(config.origins, IsEmpty());
}

TEST(Config, MayHoldCommentsOfBothKinds) {
  const Config config = Load("// one\n{ /* two\n lines */ \"steps_per_print\": 5 // three\n}");
  EXPECT_EQ(config.steps_per_print, 5);
  EXPECT_EQ(config.origins.at("steps_per_print"), "ds.json:3");
}

TEST(Config, IsReadFromAFileAndNamesIt) {
  const std::string path = ::testing::TempDir() + "/tessera_config_test.json";
  std::ofstream(path) << "{\n\"steps_per_print\": 7}";
  absl::StatusOr<Config> config = Config::FromFile(path);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(config->steps_per_print, 7);
  EXPECT_EQ(config->origins.at("steps_per_print"), path + ":2");
  std::remove(path.c_str());
  config = Config::FromFile(path);
  ASSERT_FALSE(config.ok());
  EXPECT_THAT(std::string(config.status().message()), HasSubstr(path));
  EXPECT_EQ(config.status().code(), absl::StatusCode::kNotFound);
}

// ---- JSON --------------------------------------------------------------------------------------------------------------

TEST(Config, WithADuplicateKeyIsRefusedByItsPath) {
  EXPECT_EQ(ErrorOf("{\"zero_optimization\":{\"stage\":1},\n\"zero_optimization\":{\"stage\":3}}"),
            "ds.json:2: duplicate key 'zero_optimization', first at line 1");
  EXPECT_EQ(ErrorOf("{\"fp16\": {\"enabled\": true,\n\"hysteresis\": 2,\n\"enabled\": true}}"),
            "ds.json:3: duplicate key 'fp16.enabled', first at line 1");
  EXPECT_EQ(ErrorOf("{\"steps_per_print\": 1,\n\"steps_per_print\": 2,\n\"steps_per_print\": 3}"),
            "ds.json:2: duplicate key 'steps_per_print', first at line 1\n"
            "ds.json:3: duplicate key 'steps_per_print', first at line 1");
}

TEST(Config, WithOneSettingUnderTwoNamesIsRefused) {
  EXPECT_EQ(ErrorOf("{\"bf16\": {\"enabled\": true},\n\"bfloat16\": {\"enabled\": false}}"),
            "ds.json:2: bfloat16: the same setting as 'bf16' at line 1; give it once");
  EXPECT_EQ(ErrorOf("{\"zero_optimization\": {\"max_live_parameters\": 1,\n\"stage3_max_live_parameters\": 1}}"),
            "ds.json:2: zero_optimization.stage3_max_live_parameters: the same setting as "
            "'zero_optimization.max_live_parameters' at line 1; give it once");
}

TEST(Config, WithASyntaxErrorIsRefusedByLineAndColumn) {
  EXPECT_EQ(ErrorOf("{\n  \"steps_per_print\": 5,\n}"),
            "ds.json:3:1: JSON syntax error: trailing comma before '}'; JSON has none, remove it");
  EXPECT_EQ(ErrorOf("{\"optimizer\": {\"params\": {\"betas\": [0.9, 0.99, /* last */ ]}}}"),
            "ds.json:1:59: JSON syntax error: trailing comma before ']'; JSON has none, remove it");
  // The rest of these is the JSON library's wording.
  EXPECT_THAT(ErrorOf("{\"gradient_clipping\":\n NaN}"), StartsWith("ds.json:2:2: JSON syntax error: "));
  EXPECT_THAT(ErrorOf("{\"gradient_clipping\":\n 0x10}"), StartsWith("ds.json:2:3: JSON syntax error: "));
  EXPECT_THAT(ErrorOf("{'steps_per_print': 5}"), StartsWith("ds.json:1:2: JSON syntax error: "));
  EXPECT_THAT(ErrorOf("{\"steps_per_print\": 5"), StartsWith("ds.json:1:"));
  EXPECT_THAT(ErrorOf("{\"steps_per_print\": True}"), StartsWith("ds.json:1:21: JSON syntax error: "));
  EXPECT_THAT(ErrorOf("{\"gradient_clipping\": 1e400}"), HasSubstr("1e400"));
  EXPECT_THAT(ErrorOf("{} {}"), StartsWith("ds.json:1:4: JSON syntax error: "));
  EXPECT_THAT(ErrorOf(""), StartsWith("ds.json:1:1: JSON syntax error: "));
  EXPECT_THAT(ErrorOf("{\"steps_per_print\": \"\xff\"}"), StartsWith("ds.json:1:22: JSON syntax error: "));
}

TEST(Config, ThatIsNoObjectIsRefused) {
  EXPECT_EQ(ErrorOf("[1]"), "ds.json:1: got a list, expected an object");
  EXPECT_EQ(ErrorOf("\"e30=\""), "ds.json:1: got \"e30=\", expected an object");
}

TEST(Config, NestedWithoutEndIsRefused) {
  EXPECT_EQ(ErrorOf(std::string(100'000, '[')), "ds.json:1: more than 64 objects or lists inside each other");
}

// ---- Keys --------------------------------------------------------------------------------------------------------------

TEST(Config, WithAnUnknownKeyIsRefusedWithTheNearestName) {
  EXPECT_EQ(ErrorOf("{\"train_batch_size\":8,\n\"zero_optimization\":{\"stge\":2}}"),
            "ds.json:2: zero_optimization.stge: unknown key; did you mean 'stage'?");
  EXPECT_EQ(ErrorOf("{\"trainmicrobatchsizepergpu\": 4, \"zerooptimization\": {\"stage\": 2}}"),
            "ds.json:1: trainmicrobatchsizepergpu: unknown key; did you mean 'train_micro_batch_size_per_gpu'?\n"
            "ds.json:1: zerooptimization: unknown key; did you mean 'zero_optimization'?");
  EXPECT_EQ(ErrorOf("{\"gradient_cliping\": 1}"),
            "ds.json:1: gradient_cliping: unknown key; did you mean 'gradient_clipping'?");
  EXPECT_EQ(ErrorOf("{\"overlapcomm\": true}"),
            "ds.json:1: overlapcomm: unknown key; did you mean 'zero_optimization.overlap_comm'?");
  EXPECT_EQ(ErrorOf("{\"colour_of_the_bicycle_shed\": 1}"), "ds.json:1: colour_of_the_bicycle_shed: unknown key");
  EXPECT_EQ(ErrorOf("{\"zero_optimization.stage\": 2}"),
            "ds.json:1: zero_optimization.stage: unknown key; did you mean 'zero_optimization'?");
  EXPECT_EQ(ErrorOf("{\"a\\nb\": 2}"), "ds.json:1: a\\x0ab: unknown key");
}

TEST(Config, TellsAllProblemsAtOnceInTheOrderOfTheFile) {
  EXPECT_EQ(ErrorOf("{\"steps_per_print\": -1,\n\"steps_per_print\": 2,\n\"fp16\": {\"enable\": true},\n\"amp\": "
                    "{\"enabled\": true},\n\"optimizer\": {\"type\": \"SGD\",\n\"params\": {\"nesterov\": true}}}"),
            "ds.json:1: steps_per_print: got -1, expected a whole number from 0 to 2^63 - 1\n"
            "ds.json:2: duplicate key 'steps_per_print', first at line 1\n"
            "ds.json:3: fp16.enable: unknown key; did you mean 'enabled'?\n"
            "ds.json:4: amp: not supported: NVIDIA Apex has no counterpart here; use fp16 or bf16; leave the key out\n"
            "ds.json:6: optimizer.params.nesterov: SGD: nesterov is true and momentum 0; nesterov needs a momentum in "
            "(0, 1]");
}

// ---- Values ------------------------------------------------------------------------------------------------------------

std::string BucketError(std::string_view value) {
  return ErrorOf(Nested("zero_optimization.reduce_bucket_size", value));
}

TEST(Config, TakesAnyWholeNumberForAnInteger) {
  for (const char* value : {"500000000", "5e8", "500000000.0", "5E+8"}) {
    EXPECT_EQ(Load(Nested("zero_optimization.reduce_bucket_size", value)).zero.reduce_bucket_size, 500'000'000);
  }
  const char* exact = "9007199254740993";  // not a double
  EXPECT_EQ(Load(Nested("zero_optimization.reduce_bucket_size", exact)).zero.reduce_bucket_size, 9007199254740993);
  EXPECT_EQ(Load(Nested("zero_optimization.stage3_model_persistence_threshold", "9223372036854775807"))
                .zero.model_persistence_threshold,
            INT64_MAX);
}

TEST(Config, RefusesAnythingElseForAnInteger) {
  for (const char* value : {"5.5", "\"5e8\"", "1e30", "-1", "0", "true", "null", "9223372036854775808", "1e19"}) {
    EXPECT_EQ(BucketError(value), Str("ds.json:1: zero_optimization.reduce_bucket_size: got ", value,
                                      ", expected a whole number from 1 to 2^63 - 1"));
  }
  EXPECT_EQ(BucketError("[5]"),
            "ds.json:1: zero_optimization.reduce_bucket_size: got a list, expected a whole number from 1 to 2^63 - 1");
}

TEST(Config, RefusesAValueOfAnotherType) {
  EXPECT_EQ(ErrorOf("{\"wall_clock_breakdown\": 1}"), "ds.json:1: wall_clock_breakdown: got 1, expected true or false");
  EXPECT_EQ(ErrorOf("{\"wall_clock_breakdown\": \"true\"}"),
            "ds.json:1: wall_clock_breakdown: got \"true\", expected true or false");
  EXPECT_EQ(ErrorOf("{\"gradient_clipping\": -0.5}"), "ds.json:1: gradient_clipping: got -0.5, expected a number >= 0");
  EXPECT_EQ(ErrorOf("{\"tessera\": {\"comm_timeout_s\": 0}}"),
            "ds.json:1: tessera.comm_timeout_s: got 0, expected a number > 0");
  EXPECT_EQ(ErrorOf("{\"fp16\": true}"), "ds.json:1: fp16: got true, expected an object");
  EXPECT_EQ(ErrorOf("{\"fp16\": {\"initial_scale_power\": 128}}"),
            "ds.json:1: fp16.initial_scale_power: got 128, expected a whole number from 0 to 127");
  EXPECT_EQ(ErrorOf("{\"optimizer\": {\"type\": 5}}"), "ds.json:1: optimizer.type: got 5, expected a text");
  EXPECT_EQ(ErrorOf("{\"tessera\": {\"reducer\": \"slow\"}}"),
            "ds.json:1: tessera.reducer: got \"slow\", expected \"fast\" or \"canonical\"");
  EXPECT_EQ(ErrorOf("{\"zero_optimization\": {\"contiguous_gradients\": \"yes\"}}"),
            "ds.json:1: zero_optimization.contiguous_gradients: got \"yes\", expected true or false");
  EXPECT_EQ(
      ErrorOf(Nested("tessera.reducer", "\"" + std::string(200, 'x') + "\"")),
      Str("ds.json:1: tessera.reducer: got \"", std::string(60, 'x'), "...\", expected \"fast\" or \"canonical\""));
}

TEST(Config, RefusesAutoByName) {
  EXPECT_EQ(ErrorOf("{\"train_batch_size\":8,\"gradient_clipping\":\"auto\"}"),
            "ds.json:1: gradient_clipping: \"auto\" needs a trainer that computes the value, and here is none; write a "
            "number >= 0");
  EXPECT_EQ(ErrorOf("{\"steps_per_print\":\"auto\"}"),
            "ds.json:1: steps_per_print: \"auto\" is never allowed here; write a whole number from 0 to 2^63 - 1");
  EXPECT_EQ(ErrorOf("{\"gradient_clipping\":\"Auto\"}"),
            "ds.json:1: gradient_clipping: got \"Auto\", expected a number >= 0");
  EXPECT_EQ(ErrorOf("{\"optimizer\": {\"type\": \"auto\"}}"),
            "ds.json:1: optimizer.type: \"auto\" is never allowed here; write a text");
  // A required parameter that is "auto" is not called absent as well.
  EXPECT_EQ(
      ErrorOf(R"({"scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": "auto"}}})"),
      "ds.json:1: scheduler.params.total_num_steps: \"auto\" needs a trainer that computes the value, and here is "
      "none; write a value");
}

TEST(Config, TakesStagesZeroToThreeAndTrueForOne) {
  for (const int64_t stage : {0, 1, 2, 3}) {
    EXPECT_EQ(Load(Nested("zero_optimization.stage", std::to_string(stage))).zero.stage, stage);
  }
  EXPECT_EQ(Load("{\"zero_optimization\": {\"stage\": true}}").zero.stage, 1);
  EXPECT_EQ(Load("{\"zero_optimization\": true}").zero.stage, 1);
  EXPECT_EQ(Load("{\"zero_optimization\": false}").zero.stage, 0);
  for (const char* value : {"4", "-1", "1.5", "\"2\"", "false"}) {
    EXPECT_EQ(ErrorOf(Nested("zero_optimization.stage", value)),
              Str("ds.json:1: zero_optimization.stage: got ", value, ", expected a stage from 0 to 3"));
  }
}

TEST(Config, WithFp16AndBf16IsRefused) {
  EXPECT_EQ(ErrorOf("{\"fp16\": {\"enabled\": true},\n\"bf16\": {\"enabled\": true}}"),
            "ds.json:2: fp16.enabled, bf16.enabled: both are true; enable one of them");
  EXPECT_TRUE(Load("{\"fp16\": {\"enabled\": false}, \"bf16\": {\"enabled\": true}}").bf16.enabled);
}

TEST(Config, WithAScaleThatStartsBelowItsMinimumIsRefused) {
  EXPECT_EQ(ErrorOf("{\"fp16\": {\"initial_scale_power\": 2,\n\"min_loss_scale\": 8}}"),
            "ds.json:2: fp16.min_loss_scale: got 8, expected at most 2^initial_scale_power = 4");
}

TEST(Config, DTypesFollowThePrecisionUnlessTheyAreSet) {
  const auto dtypes = [](const char* text) {
    const Config config = Load(text);
    return Str(Name(config.parameter_dtype()), " ", Name(config.communication_dtype()), " ",
               Name(config.accumulation_dtype()));
  };
  EXPECT_EQ(dtypes("{}"), "f32 f32 f32");
  EXPECT_EQ(dtypes("{\"fp16\": {\"enabled\": true}}"), "f16 f16 f32");
  EXPECT_EQ(dtypes("{\"bf16\": {\"enabled\": true}}"), "bf16 bf16 f32");
  EXPECT_EQ(dtypes("{\"bf16\": {\"enabled\": true}, \"communication_data_type\": \"fp32\"}"), "bf16 f32 f32");
  EXPECT_EQ(dtypes("{\"bf16\": {\"enabled\": true}, \"data_types\": {\"grad_accum_dtype\": \"bf16\"}}"),
            "bf16 bf16 bf16");
  EXPECT_EQ(dtypes("{\"bf16\": {\"enabled\": true}, \"data_types\": {\"param_dtype\": \"fp32\"}}"), "f32 f32 f32");
  EXPECT_EQ(dtypes("{\"data_types\": {\"param_dtype\": \"fp64\"}}"), "f64 f64 f64");
  EXPECT_EQ(dtypes("{\"data_types\": {\"param_dtype\": \"fp64\", \"grad_accum_dtype\": \"fp32\"}, "
                   "\"communication_data_type\": \"fp32\"}"),
            "f64 f64 f64");
  EXPECT_EQ(ErrorOf("{\"data_types\": {\"grad_accum_dtype\": \"fp64\"}}"),
            "ds.json:1: data_types.grad_accum_dtype: got \"fp64\", expected \"fp32\", \"fp16\" or \"bf16\"");
  EXPECT_EQ(ErrorOf("{\"communication_data_type\": \"float32\"}"),
            "ds.json:1: communication_data_type: got \"float32\", expected \"fp32\", \"fp16\", \"bf16\" or \"fp64\"");
}

TEST(Config, SaysWhereOneDTypeOverridesAnother) {
  EXPECT_THAT(Load("{\"fp16\": {\"enabled\": true}, \"data_types\": {\"param_dtype\": \"fp64\"}}").notices,
              Contains("data_types.param_dtype wins over fp16.enabled: weights are f64, and the loss is scaled"));
  EXPECT_THAT(Load("{\"data_types\": {\"param_dtype\": \"fp64\"}, \"communication_data_type\": \"fp32\"}").notices,
              Contains("communication_data_type has no effect: gradients of fp64 weights are fp64 throughout"));
}

// ---- Optimizer and schedule --------------------------------------------------------------------------------------------

TEST(Config, TellsEachBadParameterOfTheOptimizerOnItsLine) {
  EXPECT_EQ(ErrorOf(R"({"optimizer": {
    "type": "AdamW",
    "params": {
      "lr": "x",
      "betas": [0.9, 2],
      "epsilon": 1e-8,
      "weight_decay": {"all": 0.1},
      "max_grad_norm": 1.0
    }}})"),
            "ds.json:4: optimizer.params.lr: AdamW: lr is \"x\", expected a number\n"
            "ds.json:5: optimizer.params.betas: AdamW: betas[1] is 2, expected a number in [0, 1)\n"
            "ds.json:6: optimizer.params.epsilon: AdamW: unknown parameter epsilon (1e-08); known: lr, betas, eps, "
            "weight_decay, bias_correction, adam_w_mode, torch_adam, amsgrad, fp32_optimizer_states\n"
            "ds.json:7: optimizer.params.weight_decay: got an object, expected a number, true, false, a text or a list "
            "of numbers\n"
            "ds.json:8: optimizer.params.max_grad_norm: AdamW: 'max_grad_norm' is not supported as an optimizer "
            "parameter, please switch to the parameter 'gradient_clipping'");
}

TEST(Config, RefusesAnUnknownOptimizerOrSchedule) {
  EXPECT_EQ(ErrorOf("{\"optimizer\": {\n\"type\": \"Adamm\"}, \"scheduler\": {\n\"type\": \"Warmup\"}}"),
            "ds.json:2: optimizer.type: got \"Adamm\", expected Adam, AdamW, SGD or Lion\n"
            "ds.json:3: scheduler.type: got \"Warmup\", expected WarmupLR, WarmupDecayLR, WarmupCosineLR, OneCycle, "
            "LRRangeTest or constant");
  for (const char* type : {"Lamb", "lamb", "Adagrad", "Muon", "ZeroOneAdam", "OneBitLamb"}) {
    EXPECT_EQ(ErrorOf(Nested("optimizer.type", Str("\"", type, "\""))),
              Str("ds.json:1: optimizer.type: not here yet: \"", type, "\", expected Adam, AdamW, SGD or Lion"));
  }
}

TEST(Config, RefusesABlockWithoutItsType) {
  EXPECT_EQ(ErrorOf("{\"optimizer\": {\"params\": {\"lr\": 1}},\n\"scheduler\": {}}"),
            "ds.json:1: optimizer: has no type; name one, or leave the block out\n"
            "ds.json:2: scheduler: has no type; name one, or leave the block out");
}

TEST(Config, TellsEachBadParameterOfTheSchedule) {
  EXPECT_EQ(ErrorOf("{\"scheduler\": {\"type\": \"WarmupDecayLR\",\n\"params\": {\"warmup_num_steps\": 1}}}"),
            "ds.json:1: scheduler: WarmupDecayLR: parameter total_num_steps is required and absent");
  EXPECT_EQ(ErrorOf("{\"scheduler\": {\"type\": \"WarmupLR\",\n\"params\": {\"warmup_num_steps\": -1,\n"
                    "\"warmup_type\": \"cubic\"}}}"),
            "ds.json:2: scheduler.params.warmup_num_steps: WarmupLR: warmup_num_steps is -1, expected an integer >= 0\n"
            "ds.json:3: scheduler.params.warmup_type: WarmupLR: warmup_type is \"cubic\", expected log or linear");
}

TEST(Config, TellsTheScheduleAboutTheOptimizer) {
  const Config config = Load(R"({
    "optimizer": {"type": "SGD", "params": {"lr": 0.5}},
    "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 0.1, "cycle_max_lr": 0.2}}})");
  EXPECT_THAT(config.notices, Contains("OneCycle: cycle_max_lr 0.2 wins over the optimizer's lr 0.5"));
  EXPECT_THAT(config.notices, Contains("OneCycle: cycle_momentum is off, the optimizer has no betas"));
}

TEST(ConfigAuto, IsListedForAProgramThatFillsItIn) {
  AutoKeys autos;
  const auto config = Config::FromJson(R"({
    "train_batch_size": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
    "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": [0.9, 0.95]}},
    "scheduler": {"type": "WarmupDecayLR",
      "params": {"total_num_steps": "auto"}},
    "zero_optimization": {"stage": 3, "prefetch_bucket_size": "auto",
      "stage3_gather_16bit_weights_on_model_save": "auto"}})",
                                       "ds.json", &autos);
  ASSERT_TRUE(config.ok()) << config.status().message();
  EXPECT_EQ(autos, (AutoKeys{{"train_batch_size", "ds.json:2"},
                             {"gradient_clipping", "ds.json:2"},
                             {"bf16.enabled", "ds.json:2"},
                             {"optimizer.params.lr", "ds.json:3"},
                             {"scheduler.params.total_num_steps", "ds.json:5"},
                             {"zero_optimization.stage3_prefetch_bucket_size", "ds.json:6"}}));
  // The fields are as without the keys, but nothing is called absent.
  EXPECT_EQ(config->train_batch_size, 0);
  EXPECT_FALSE(config->bf16.enabled);
  EXPECT_EQ(config->optimizer.params.count("lr"), 0u);
  EXPECT_EQ(config->origins.count("gradient_clipping"), 0u);
  EXPECT_THAT(config->notices, ElementsAre(HasSubstr("saving needs no switch")));
}

TEST(ConfigAuto, StaysAnErrorWhereNothingCouldFillIt) {
  AutoKeys autos;
  const auto config =
      Config::FromJson(R"({"steps_per_print": "auto", "zero_optimization": {"stage": "auto"}})", "ds.json", &autos);
  EXPECT_THAT(config.status().message(), HasSubstr("steps_per_print: \"auto\" is never allowed here"));
  EXPECT_THAT(config.status().message(), HasSubstr("zero_optimization.stage: \"auto\" is never allowed here"));
  EXPECT_TRUE(autos.empty());
}

}  // namespace
}  // namespace tessera::zero
