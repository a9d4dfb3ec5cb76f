// SPDX-License-Identifier: Apache-2.0
// Trains a GPT-2 on the bytes of a text. All but the choice of the model is the shared trainer's.
#include "nn/models/gpt.h"

#include <algorithm>
#include <optional>

#include "absl/flags/flag.h"
#include "examples/trainer/trainer.h"
#include "tensor/error.h"

template <class T>
using OptionalFlag = std::optional<T>;  // unset: the preset's value

ABSL_FLAG(std::string, preset, "tiny", "tiny (0.8 M parameters, learns in two minutes) or gpt2-124m");
ABSL_FLAG(OptionalFlag<int64_t>, n_layer, std::nullopt, "blocks; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, n_embd, std::nullopt, "width; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, n_head, std::nullopt, "attention heads, a divisor of n_embd; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, vocab_size, std::nullopt,
          "rows of the embedding, at least the 256 that bytes need; default: the preset's");
ABSL_FLAG(double, dropout, 0, "share of activations set to 0 in training");
ABSL_FLAG(bool, recompute, false, "keep one block's activations at a time and compute the others again");

namespace tessera::examples {
namespace {

constexpr const char* kUsage =
    "trains a GPT-2 on the bytes of a text, shows how well it predicts text that it has not seen, and lets it write.\n"
    "For example: gpt --data book.txt --num_gpus 2 --zero_stage 3 --max_minutes 10";

ModelChoice Choose(int64_t seq_len) {
  const std::string preset = absl::GetFlag(FLAGS_preset);
  nn::GptConfig config;
  ModelChoice choice;
  if (preset == "tiny") {
    config = nn::GptConfig::Tiny();
    choice = {.global_batch = 16, .lr = 3.5e-3, .persistence_threshold = 0};
  } else if (preset == "gpt2-124m") {
    config = nn::GptConfig::Gpt2_124M();
    choice = {.global_batch = 4, .lr = 6e-4};
  } else {
    throw Error(Str("--preset is \"", preset, "\", expected tiny or gpt2-124m"));
  }
  config.n_positions = std::max(config.n_positions, seq_len);
  config.n_layer = absl::GetFlag(FLAGS_n_layer).value_or(config.n_layer);
  config.n_embd = absl::GetFlag(FLAGS_n_embd).value_or(config.n_embd);
  config.n_head = absl::GetFlag(FLAGS_n_head).value_or(config.n_head);
  config.vocab_size = VocabularySize(absl::GetFlag(FLAGS_vocab_size).value_or(config.vocab_size));
  config.dropout = absl::GetFlag(FLAGS_dropout);
  config.recompute = absl::GetFlag(FLAGS_recompute);
  config.Validate();
  choice.name = preset == "tiny" ? "gpt-tiny" : preset;
  choice.title = Str("GPT-2, preset ", preset);
  choice.description = Str(config.n_layer, " layers, ", config.n_embd, " wide, ", config.n_head, " heads, context ",
                           config.n_positions, ", vocabulary ", config.vocab_size, " (tokens are bytes)");
  choice.hidden_size = config.n_embd;
  choice.positions = config.n_positions;
  choice.make = [config] { return MakeTrained<nn::Gpt>(config); };
  return choice;
}

}  // namespace
}  // namespace tessera::examples

int main(int argc, char** argv) {
  using namespace tessera::examples;
  return TrainerMain(argc, argv,
                     {.name = "gpt",
                      .usage = kUsage,
                      .model_flags = {"preset", "n_layer", "n_embd", "n_head", "vocab_size", "dropout", "recompute"},
                      .choose = Choose});
}
