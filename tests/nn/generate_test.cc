// SPDX-License-Identifier: Apache-2.0
#include "nn/generate.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include <gtest/gtest.h>

#include "autograd/tape.h"
#include "tensor/error.h"

namespace tessera::nn {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// Logits whose softmax is 0.5, 0.25, 0.15, 0.1, at the indexes 2, 0, 3, 1.
const std::vector<float> kLogits = {std::log(0.25f), std::log(0.1f), std::log(0.5f), std::log(0.15f)};

void ExpectProbabilities(const SamplingOptions& options, const std::vector<double>& expected) {
  const std::vector<float> probabilities = SamplingProbabilities(kLogits, options);
  ASSERT_EQ(probabilities.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(probabilities[i], expected[i], 1e-6) << "token " << i;
}

std::string ErrorFor(const std::vector<float>& logits, const SamplingOptions& options = {}) {
  try {
    SamplingProbabilities(logits, options);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Sampling, IsTheSoftmaxByDefault) { ExpectProbabilities({}, {0.25, 0.1, 0.5, 0.15}); }

TEST(Sampling, GreedyTakesTheFirstOfEqualLogits) {
  ExpectProbabilities({.temperature = 0}, {0, 0, 1, 0});
  EXPECT_EQ(SamplingProbabilities(std::vector<float>{1, 3, 3}, {.temperature = 0}), (std::vector<float>{0, 1, 0}));
}

TEST(Sampling, TemperatureSharpensAndFlattens) {
  const double sum = 0.25 * 0.25 + 0.1 * 0.1 + 0.5 * 0.5 + 0.15 * 0.15;  // temperature 1/2 squares
  ExpectProbabilities({.temperature = 0.5}, {0.0625 / sum, 0.01 / sum, 0.25 / sum, 0.0225 / sum});
  ExpectProbabilities({.temperature = 1e9}, {0.25, 0.25, 0.25, 0.25});
  ExpectProbabilities({.temperature = 1e-9}, {0, 0, 1, 0});
}

TEST(Sampling, TopKKeepsTheKMostLikely) {
  ExpectProbabilities({.top_k = 1}, {0, 0, 1, 0});
  ExpectProbabilities({.top_k = 2}, {0.25 / 0.75, 0, 0.5 / 0.75, 0});
  ExpectProbabilities({.top_k = 4}, {0.25, 0.1, 0.5, 0.15});
  ExpectProbabilities({.top_k = 100}, {0.25, 0.1, 0.5, 0.15});
}

TEST(Sampling, TopKWithEqualLogitsKeepsExactlyK) {
  const std::vector<float> equal(5, 1.0f);
  EXPECT_EQ(SamplingProbabilities(equal, {.top_k = 2}), (std::vector<float>{0.5, 0.5, 0, 0, 0}));
}

TEST(Sampling, TopPKeepsTheFewestTokensThatReachP) {
  ExpectProbabilities({.top_p = 1e-6}, {0, 0, 1, 0});
  ExpectProbabilities({.top_p = 0.49}, {0, 0, 1, 0});
  ExpectProbabilities({.top_p = 0.6}, {0.25 / 0.75, 0, 0.5 / 0.75, 0});
  ExpectProbabilities({.top_p = 0.8}, {0.25 / 0.9, 0, 0.5 / 0.9, 0.15 / 0.9});
  ExpectProbabilities({.top_p = 0.95}, {0.25, 0.1, 0.5, 0.15});
}

TEST(Sampling, TopPCountsWhatTopKLeft) {
  // After top_k = 2 the most likely token has 2/3 of what is left.
  ExpectProbabilities({.top_k = 2, .top_p = 0.6}, {0, 0, 1, 0});
}

TEST(Sampling, TokensAtMinusInfinityAreNeverPicked) {
  const std::vector<float> logits = {-kInfinity, 0, -kInfinity};
  EXPECT_EQ(SamplingProbabilities(logits, {}), (std::vector<float>{0, 1, 0}));
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(SampleToken(logits, {}, RngKey(1), i), 1);
}

TEST(Sampling, FarLogitsDoNotOverflow) {
  EXPECT_EQ(SamplingProbabilities(std::vector<float>{3e38f, -3e38f}, {}), (std::vector<float>{1, 0}));
}

TEST(Sampling, PicksByCumulativeProbability) {
  const std::vector<float> probabilities = {0, 0.25, 0.25, 0, 0.5, 0};
  EXPECT_EQ(PickToken(probabilities, 0), 1);
  EXPECT_EQ(PickToken(probabilities, 0.2499), 1);
  EXPECT_EQ(PickToken(probabilities, 0.25), 2);
  EXPECT_EQ(PickToken(probabilities, 0.5), 4);
  EXPECT_EQ(PickToken(probabilities, 0.99999994), 4);
  EXPECT_EQ(PickToken(std::vector<float>{0.3f, 0.6f, 0}, 0.95), 1) << "a sum below 1 falls to the last possible token";
}

TEST(Sampling, FrequenciesAreTheProbabilities) {
  constexpr int kDraws = 20000;
  std::vector<int> counts(4);
  for (uint64_t i = 0; i < kDraws; ++i) ++counts[static_cast<size_t>(SampleToken(kLogits, {}, RngKey(9), i))];
  const double expected[] = {0.25, 0.1, 0.5, 0.15};
  for (size_t i = 0; i < 4; ++i) {
    const double sigma = std::sqrt(kDraws * expected[i] * (1 - expected[i]));
    EXPECT_NEAR(counts[i], kDraws * expected[i], 4 * sigma) << "token " << i;
  }
}

TEST(Sampling, BadOptionsAndLogitsAreNamed) {
  EXPECT_EQ(ErrorFor({0}, {.temperature = -1}), "sampling: temperature is -1, expected 0 (greedy) or more");
  EXPECT_EQ(ErrorFor({0}, {.top_k = -2}), "sampling: top_k is -2, expected 0 (all) or more");
  EXPECT_EQ(ErrorFor({0}, {.top_p = 0}), "sampling: top_p is 0, expected a number in (0, 1]");
  EXPECT_EQ(ErrorFor({0}, {.top_p = std::nan("")}), "sampling: top_p is nan, expected a number in (0, 1]");
  EXPECT_EQ(ErrorFor({}), "sampling: there are no logits");
  EXPECT_EQ(ErrorFor({0, NAN}), "sampling: logit 1 is nan, expected a number below infinity");
  EXPECT_EQ(ErrorFor({kInfinity}), "sampling: logit 0 is inf, expected a number below infinity");
  EXPECT_EQ(ErrorFor({-kInfinity, -kInfinity}), "sampling: no logit is finite");
}

// A "model" over 10 tokens that always wants the last token plus one, and writes down what it was shown.
struct Counter {
  std::vector<std::vector<double>> contexts;
  Tensor operator()(const Tensor& ids) {
    contexts.push_back(ids.ToVector());
    Tensor logits = Full({1, ids.size(1), 10}, DType::kF32, 0);
    float* values = logits.Write().as<float>();
    for (int64_t t = 0; t < ids.size(1); ++t) values[t * 10 + (static_cast<int64_t>(ids.At(0, t)) + 1) % 10] = 20;
    return logits;
  }
};

TEST(Generate, GoesOnFromThePromptAndReturnsNewTokensOnly) {
  Counter model;
  const std::vector<int64_t> prompt = {3, 7};
  std::vector<int64_t> seen;
  const std::vector<int64_t> tokens =
      Generate(model, prompt, {.new_tokens = 4, .sampling = {.temperature = 0}}, [&](int64_t t) { seen.push_back(t); });
  EXPECT_EQ(tokens, (std::vector<int64_t>{8, 9, 0, 1}));
  EXPECT_EQ(seen, tokens);
}

TEST(Generate, CropsTheContextToTheModelsPositions) {
  Counter model;
  const std::vector<int64_t> prompt = {1, 2, 3, 4, 5};
  Generate(model, prompt, {.new_tokens = 2, .positions = 3, .sampling = {.temperature = 0}});
  ASSERT_EQ(model.contexts.size(), 2u);
  EXPECT_EQ(model.contexts[0], (std::vector<double>{3, 4, 5}));
  EXPECT_EQ(model.contexts[1], (std::vector<double>{4, 5, 6}));
}

TEST(Generate, StopsBeforeTheStopToken) {
  Counter model;
  const std::vector<int64_t> prompt = {0};
  EXPECT_EQ(Generate(model, prompt, {.new_tokens = 9, .sampling = {.temperature = 0}, .stop_token = 4}),
            (std::vector<int64_t>{1, 2, 3}));
}

TEST(Generate, TheSeedAloneDecides) {
  const auto uniform = [](const Tensor& ids) { return Full({1, ids.size(1), 10}, DType::kF64, 0); };
  const std::vector<int64_t> prompt = {0};
  const auto a = Generate(uniform, prompt, {.new_tokens = 50, .seed = 1});
  EXPECT_EQ(Generate(uniform, prompt, {.new_tokens = 50, .seed = 1}), a);
  EXPECT_NE(Generate(uniform, prompt, {.new_tokens = 50, .seed = 2}), a);
}

TEST(Generate, LeavesAnOpenTapeAlone) {
  Counter model;
  const Tape tape;
  Generate(model, std::vector<int64_t>{0}, {.new_tokens = 2});
  EXPECT_EQ(tape.node_count(), 0);
  EXPECT_EQ(Tape::Current(), &tape);
}

TEST(Generate, RefusesAnEmptyPromptAndLogitsOfAnotherShape) {
  Counter model;
  EXPECT_THROW(Generate(model, {}, {}), Error);
  EXPECT_THROW(Generate(model, std::vector<int64_t>{1}, {.positions = 0}), Error);
  const auto flat = [](const Tensor& ids) { return Full({ids.size(1), 10}, DType::kF32, 0); };
  EXPECT_THROW(Generate(flat, std::vector<int64_t>{1}, {}), Error);
}

}  // namespace
}  // namespace tessera::nn
