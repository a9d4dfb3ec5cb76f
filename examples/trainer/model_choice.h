// SPDX-License-Identifier: Apache-2.0
// What a program hands to the shared trainer: its name, its own flags, and the model that they choose.
//
//   int main(int argc, char** argv) {
//     return TrainerMain(argc, argv, {.name = "gpt", .usage = kUsage, .model_flags = {"preset"}, .choose = Choose});
//   }
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "autograd/loss.h"
#include "nn/module.h"

namespace tessera::examples {

struct TrainedModel {
  std::unique_ptr<nn::Module> module;
  std::function<Loss(const Tensor& ids, const Tensor& targets)> loss;  // both (B, T)
  std::function<Tensor(const Tensor& ids)> logits;                     // (B, T) -> (B, T, V)
};

// Of a model that is called with ids for logits, and with ids and targets for the loss.
template <class Model, class Config>
TrainedModel MakeTrained(const Config& config) {
  auto owned = std::make_unique<Model>(config);
  Model& model = *owned;
  return {std::move(owned), [&model](const Tensor& ids, const Tensor& targets) { return model(ids, targets); },
          [&model](const Tensor& ids) { return model(ids); }};
}

struct ModelChoice {
  std::string name;         // "gpt-tiny", of the run's folder
  std::string title;        // "GPT-2, preset tiny"
  std::string description;  // a line of sizes
  int64_t positions = 0;    // the longest context
  int64_t hidden_size = 0;  // "auto" values of a config follow it
  // What the preset says where neither a flag nor the config does.
  int64_t global_batch = 16;
  double lr = 1e-3;
  int64_t persistence_threshold = 100'000;
  std::function<TrainedModel()> make;  // once on each rank
};

// The vocabulary that --vocab_size or a preset asks for, if bytes fit into it.
inline int64_t VocabularySize(int64_t wanted) {
  if (wanted < 256) throw Error(Str("--vocab_size is ", wanted, ", expected at least 256: tokens are bytes"));
  return wanted;
}

struct Program {
  const char* name;
  const char* usage;
  std::vector<const char*> model_flags;
  std::function<ModelChoice(int64_t seq_len)> choose;  // after the flags are parsed
};

}  // namespace tessera::examples
