// SPDX-License-Identifier: Apache-2.0
// Configs from text, for tests: "ds.json" is the file's name in messages.
//
//   EXPECT_EQ(Load("{\"steps_per_print\": 5}").steps_per_print, 5);
//   EXPECT_EQ(ErrorOf("[]"), "ds.json:1: got a list, expected an object");
#pragma once

#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tensor/error.h"
#include "zero/config.h"

namespace tessera::zero {

inline Config Load(std::string_view text) {
  absl::StatusOr<Config> config = Config::FromJson(text, "ds.json");
  EXPECT_TRUE(config.ok()) << config.status().message();
  return config.ok() ? *config : Config();
}

inline std::string ErrorOf(std::string_view text) {
  const absl::StatusOr<Config> config = Config::FromJson(text, "ds.json");
  if (config.ok()) return "accepted";
  EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(config.status().message());
}

// {"a": {"b": value}} for "a.b".
inline std::string Nested(std::string_view path, std::string_view value) {
  const size_t dot = path.find('.');
  if (dot == std::string_view::npos) return Str("{\"", path, "\": ", value, "}");
  return Str("{\"", path.substr(0, dot), "\": ", Nested(path.substr(dot + 1), value), "}");
}

// Every field as text, so that two configs can be compared.
inline std::string Digest(const Config& c) {
  const auto dtype = [](const std::optional<DType>& d) { return d.has_value() ? Name(*d) : "-"; };
  const auto params = [](const optim::Params& params) {
    std::string out;
    for (const auto& [name, value] : params) out += Str(name, "=", value, ",");
    return out;
  };
  const ZeroConfig& z = c.zero;
  return Str(c.train_batch_size, " ", c.train_micro_batch_size_per_gpu, " ", c.gradient_accumulation_steps, " ",
             c.gradient_clipping, " ", c.steps_per_print, " ", c.wall_clock_breakdown, " | ", c.fp16.enabled, " ",
             c.fp16.loss_scale, " ", c.fp16.initial_scale_power, " ", c.fp16.loss_scale_window, " ", c.fp16.hysteresis,
             " ", c.fp16.consecutive_hysteresis, " ", c.fp16.min_loss_scale, " | ", c.bf16.enabled, " ",
             c.bf16.check_grad_overflow, " | ", z.stage, " ", z.reduce_bucket_size, " ", z.allgather_bucket_size, " ",
             z.overlap_comm.has_value() ? (*z.overlap_comm ? "on" : "off") : "-", " ", z.sub_group_size, " ",
             z.prefetch_bucket_size, " ", z.param_persistence_threshold, " ", z.model_persistence_threshold, " ",
             z.max_live_parameters, " ", z.max_reuse_distance.value_or(-1), " | ", c.optimizer.type, " ",
             params(c.optimizer.params), " | ", c.scheduler.type, " ", params(c.scheduler.params), " | ",
             static_cast<int>(c.tessera.reducer), " ", c.tessera.keep_last_unit, " ", c.tessera.comm_timeout_s, " ",
             c.tessera.max_skipped_steps, " | ", dtype(c.param_dtype), " ", dtype(c.grad_accum_dtype), " ",
             dtype(c.communication_data_type));
}

}  // namespace tessera::zero
