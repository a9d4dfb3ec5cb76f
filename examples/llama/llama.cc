// SPDX-License-Identifier: Apache-2.0
// Trains a Llama on the bytes of a text. All but the choice of the model is the shared trainer's.
#include "nn/models/llama.h"

#include <algorithm>
#include <optional>

#include "absl/flags/flag.h"
#include "examples/trainer/trainer.h"
#include "tensor/error.h"

template <class T>
using OptionalFlag = std::optional<T>;  // unset: the preset's value

ABSL_FLAG(std::string, preset, "tiny", "tiny (0.8 M parameters, learns in two minutes) or llama3.2-1b");
ABSL_FLAG(OptionalFlag<int64_t>, num_hidden_layers, std::nullopt, "layers; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, hidden_size, std::nullopt, "width; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, intermediate_size, std::nullopt, "width inside the MLP; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, num_attention_heads, std::nullopt,
          "attention heads, a divisor of hidden_size; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, num_key_value_heads, std::nullopt,
          "heads of keys and values, a divisor of num_attention_heads; default: the preset's");
ABSL_FLAG(OptionalFlag<int64_t>, vocab_size, std::nullopt,
          "rows of the embedding, at least the 256 that bytes need; default: the preset's");
ABSL_FLAG(bool, recompute, false, "keep one layer's activations at a time and compute the others again");

namespace tessera::examples {
namespace {

constexpr const char* kUsage =
    "trains a Llama on the bytes of a text, shows how well it predicts text that it has not seen, and lets it write.\n"
    "For example: llama --data book.txt --num_gpus 2 --zero_stage 3 --max_minutes 10";

// As large as the GPT of this name.
nn::LlamaConfig Tiny() {
  return {.vocab_size = 256,
          .hidden_size = 128,
          .intermediate_size = 352,
          .num_hidden_layers = 4,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .max_position_embeddings = 64,
          .rope_theta = 10000,
          .initializer_range = 0.035};
}

ModelChoice Choose(int64_t seq_len) {
  const std::string preset = absl::GetFlag(FLAGS_preset);
  nn::LlamaConfig config;
  ModelChoice choice;
  if (preset == "tiny") {
    config = Tiny();
    choice = {.global_batch = 16, .lr = 3.5e-3, .persistence_threshold = 0};
  } else if (preset == "llama3.2-1b") {
    config = nn::LlamaConfig::Llama3_2_1B();
    choice = {.global_batch = 4, .lr = 3e-4};
  } else {
    throw Error(Str("--preset is \"", preset, "\", expected tiny or llama3.2-1b"));
  }
  const auto replace = [](const absl::Flag<OptionalFlag<int64_t>>& flag, int64_t* field) {
    *field = absl::GetFlag(flag).value_or(*field);
  };
  config.max_position_embeddings = std::max(config.max_position_embeddings, seq_len);
  replace(FLAGS_num_hidden_layers, &config.num_hidden_layers);
  replace(FLAGS_hidden_size, &config.hidden_size);
  replace(FLAGS_intermediate_size, &config.intermediate_size);
  replace(FLAGS_num_attention_heads, &config.num_attention_heads);
  replace(FLAGS_num_key_value_heads, &config.num_key_value_heads);
  config.vocab_size = VocabularySize(absl::GetFlag(FLAGS_vocab_size).value_or(config.vocab_size));
  config.recompute = absl::GetFlag(FLAGS_recompute);
  config.Validate();
  choice.name = preset == "tiny" ? "llama-tiny" : preset;
  choice.title = Str("Llama, preset ", preset);
  choice.description =
      Str(config.num_hidden_layers, " layers, ", config.hidden_size, " wide, ", config.num_attention_heads, " heads (",
          config.num_key_value_heads, " of keys and values), context ", config.max_position_embeddings, ", vocabulary ",
          config.vocab_size, " (tokens are bytes)");
  choice.hidden_size = config.hidden_size;
  choice.positions = config.max_position_embeddings;
  choice.make = [config] { return MakeTrained<nn::Llama>(config); };
  return choice;
}

}  // namespace
}  // namespace tessera::examples

int main(int argc, char** argv) {
  using namespace tessera::examples;
  return TrainerMain(argc, argv,
                     {.name = "llama",
                      .usage = kUsage,
                      .model_flags = {"preset", "num_hidden_layers", "hidden_size", "intermediate_size",
                                      "num_attention_heads", "num_key_value_heads", "vocab_size", "recompute"},
                      .choose = Choose});
}
