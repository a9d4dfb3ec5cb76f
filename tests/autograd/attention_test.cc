// SPDX-License-Identifier: Apache-2.0
#include "autograd/attention.h"

#include <cmath>
#include <limits>

#include "autograd/custom.h"
#include "tensor/context.h"
#include "tensor/ops/attention.h"
#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

// ---- softmax(scale q k^T) v by its definition, with all weights, in f64 ----

struct Plain {
  int64_t batch, queries, keys, heads, kv_heads, width;
  std::vector<double> q, k, v;
  bool causal;
  double scale;

  Plain(const Tensor& q_, const Tensor& k_, const Tensor& v_, const AttentionOptions& options)
      : batch(q_.size(0)),
        queries(q_.size(1)),
        keys(k_.size(1)),
        heads(q_.size(2)),
        kv_heads(k_.size(2)),
        width(q_.size(3)),
        q(q_.ToVector()),
        k(k_.ToVector()),
        v(v_.ToVector()),
        causal(options.causal),
        scale(options.scale.value_or(1 / std::sqrt(static_cast<double>(width)))) {}

  size_t QueryAt(int64_t b, int64_t t, int64_t h) const {
    return static_cast<size_t>(((b * queries + t) * heads + h) * width);
  }
  size_t KeyAt(int64_t b, int64_t s, int64_t h) const {
    return static_cast<size_t>(((b * keys + s) * kv_heads + h / (heads / kv_heads)) * width);
  }
  double Dot(const std::vector<double>& a, size_t i, const std::vector<double>& b, size_t j) const {
    double sum = 0;
    for (size_t d = 0; d < static_cast<size_t>(width); ++d) sum += a[i + d] * b[j + d];
    return sum;
  }
  void AddTo(std::vector<double>& a, size_t i, double factor, const std::vector<double>& b, size_t j) const {
    for (size_t d = 0; d < static_cast<size_t>(width); ++d) a[i + d] += factor * b[j + d];
  }
  std::vector<double> Weights(int64_t b, int64_t t, int64_t h) const {
    const int64_t visible = causal ? std::clamp<int64_t>(t + keys - queries + 1, 0, keys) : keys;
    std::vector<double> p(static_cast<size_t>(visible));
    double sum = 0;
    for (int64_t s = 0; s < visible; ++s) {
      sum += p[static_cast<size_t>(s)] = std::exp(scale * Dot(q, QueryAt(b, t, h), k, KeyAt(b, s, h)));
    }
    for (double& weight : p) weight /= sum;
    return p;
  }
  template <class F>
  void ForEachQuery(F f) const {
    for (int64_t b = 0; b < batch; ++b) {
      for (int64_t t = 0; t < queries; ++t) {
        for (int64_t h = 0; h < heads; ++h) f(b, t, h);
      }
    }
  }
  std::vector<double> Forward() const {
    std::vector<double> y(q.size());
    ForEachQuery([&](int64_t b, int64_t t, int64_t h) {
      const std::vector<double> p = Weights(b, t, h);
      for (size_t s = 0; s < p.size(); ++s) AddTo(y, QueryAt(b, t, h), p[s], v, KeyAt(b, static_cast<int64_t>(s), h));
    });
    return y;
  }
  void Backward(const std::vector<double>& dy, std::vector<double>* dq, std::vector<double>* dk,
                std::vector<double>* dv) const {
    *dq = std::vector<double>(q.size());
    *dk = *dv = std::vector<double>(k.size());
    ForEachQuery([&](int64_t b, int64_t t, int64_t h) {
      const std::vector<double> p = Weights(b, t, h);
      const size_t at = QueryAt(b, t, h);
      std::vector<double> dp(p.size());
      double mean = 0;
      for (size_t s = 0; s < p.size(); ++s) {
        dp[s] = Dot(dy, at, v, KeyAt(b, static_cast<int64_t>(s), h));
        mean += p[s] * dp[s];
      }
      for (size_t s = 0; s < p.size(); ++s) {
        const size_t key = KeyAt(b, static_cast<int64_t>(s), h);
        AddTo(*dv, key, p[s], dy, at);
        AddTo(*dq, at, scale * p[s] * (dp[s] - mean), k, key);
        AddTo(*dk, key, scale * p[s] * (dp[s] - mean), q, at);
      }
    });
  }
};

Tensor PlainAttention(const Input& q, const Input& k, const Input& v, const AttentionOptions& options) {
  return CustomFunction(
      "plain_attention", {q, k, v},
      [options](SavedValues& save, std::span<const Tensor> in) {
        for (int i = 0; i < 3; ++i) save.Keep(i);
        return CopyTo(Tensor::From(Plain(in[0], in[1], in[2], options).Forward(), in[0].shape()), in[0].dtype());
      },
      [options](const SavedValues& saved, const Tensor& dy) -> std::vector<Tensor> {
        const Tensor q = saved[0], k = saved[1], v = saved[2];
        std::vector<double> dq, dk, dv;
        Plain(q, k, v, options).Backward(dy.ToVector(), &dq, &dk, &dv);
        return {CopyTo(Tensor::From(dq, q.shape()), q.dtype()), CopyTo(Tensor::From(dk, k.shape()), k.dtype()),
                CopyTo(Tensor::From(dv, v.shape()), v.dtype())};
      });
}

std::vector<OpCase> AttentionCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const Shape& q, const Shape& kv, const AttentionOptions& options) {
    cases.push_back(
        {.name = name,
         .inputs = {{q}, {kv}, {kv}},
         .run = [=](std::span<const Input> in) { return std::vector<Tensor>{Attention(in[0], in[1], in[2], options)}; },
         .composition =
             [=](std::span<const Input> in) {
               return std::vector<Tensor>{PlainAttention(in[0], in[1], in[2], options)};
             },
         .layouts = Layouts::kDenseRows});
  };
  const AttentionOptions causal{.causal = true};
  add("Causal", {2, 5, 2, 6}, {2, 5, 2, 6}, causal);
  add("NotCausal", {2, 5, 2, 6}, {2, 7, 2, 6}, {});
  add("WithScale", {1, 4, 1, 3}, {1, 4, 1, 3}, {.causal = true, .scale = 2.5});
  add("OneElement", {1, 1, 1, 1}, {1, 1, 1, 1}, causal);
  add("GroupedHeads", {2, 5, 6, 4}, {2, 5, 2, 4}, causal);
  add("OneKeyHead", {2, 5, 3, 4}, {2, 5, 1, 4}, causal);
  add("MoreKeysThanQueries", {1, 3, 2, 4}, {1, 8, 2, 4}, causal);
  add("QueriesWithoutKeys", {2, 6, 2, 4}, {2, 3, 1, 4}, causal);
  add("OneQueryOfALongText", {2, 1, 4, 8}, {2, 130, 2, 8}, causal);
  add("SeveralBlocks", {1, 150, 2, 3}, {1, 150, 2, 3}, causal);
  add("SeveralBlocksNotCausal", {1, 70, 2, 5}, {1, 130, 1, 5}, {});
  add("BlocksWithoutKeys", {1, 140, 1, 3}, {1, 70, 1, 3}, causal);
  add("ManyHeads", {4, 66, 4, 2}, {4, 66, 4, 2}, causal);
  add("ManyGroupedHeads", {2, 5, 16, 2}, {2, 7, 8, 2}, causal);
  add("ManyHeadsWithoutKeys", {4, 67, 4, 2}, {4, 2, 4, 2}, causal);
  add("EmptyBatch", {0, 10, 4, 64}, {0, 10, 4, 64}, causal);
  add("NoQueries", {2, 0, 2, 4}, {2, 3, 2, 4}, {});
  add("NoKeys", {2, 4, 2, 4}, {2, 0, 2, 4}, {});
  add("NoKeysForManyHeads", {4, 4, 4, 4}, {4, 0, 4, 4}, causal);
  add("NoHeads", {2, 4, 0, 4}, {2, 4, 0, 4}, causal);
  add("NoFeatures", {2, 4, 2, 0}, {2, 4, 2, 0}, {.causal = true, .scale = 1});
  return cases;
}

TESSERA_OP_CASES(Attention, AttentionCases());

// The packed form against the same plain attention of parts that are cut out and put back by copying.
Tensor PlainPacked(const Input& qkv, int64_t heads, int64_t kv_heads, const AttentionOptions& options) {
  const auto parts = [=](const Tensor& packed) {
    const Tensor dense = CopyTo(packed, DType::kF64);
    const int64_t width = packed.size(2) / (heads + 2 * kv_heads);
    Layout layout;
    dense.layout().TryReshape({packed.size(0), packed.size(1), heads + 2 * kv_heads, width}, &layout);
    return std::vector<Tensor>{dense.WithLayout(layout.Narrow(2, 0, heads)),
                               dense.WithLayout(layout.Narrow(2, heads, kv_heads)),
                               dense.WithLayout(layout.Narrow(2, heads + kv_heads, kv_heads))};
  };
  return CustomFunction(
      "plain_packed", {qkv},
      [=](SavedValues& save, std::span<const Tensor> in) {
        save.Keep(0);
        const std::vector<Tensor> in_parts = parts(in[0]);
        const Plain plain(in_parts[0], in_parts[1], in_parts[2], options);
        const Shape shape{plain.batch, plain.queries, plain.heads * plain.width};
        return CopyTo(Tensor::From(plain.Forward(), shape), in[0].dtype());
      },
      [=](const SavedValues& saved, const Tensor& dy) -> std::vector<Tensor> {
        const Tensor packed = saved[0];
        const std::vector<Tensor> in_parts = parts(packed);
        std::vector<double> grads[3];
        Plain(in_parts[0], in_parts[1], in_parts[2], options).Backward(dy.ToVector(), &grads[0], &grads[1], &grads[2]);
        std::vector<double> all;
        for (int64_t row = 0; row < packed.size(0) * packed.size(1); ++row) {
          for (size_t part = 0; part < 3; ++part) {
            const int64_t n = in_parts[part].size(2) * in_parts[part].size(3);
            for (int64_t i = 0; i < n; ++i) all.push_back(grads[part][static_cast<size_t>(row * n + i)]);
          }
        }
        return {CopyTo(Tensor::From(all, packed.shape()), packed.dtype())};
      });
}

std::vector<OpCase> AttentionPackedCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const Shape& qkv, int64_t heads, int64_t kv_heads) {
    const AttentionOptions options{.causal = true};
    cases.push_back({.name = name,
                     .inputs = {{qkv}},
                     .run =
                         [=](std::span<const Input> in) {
                           return std::vector<Tensor>{AttentionPacked(in[0], heads, kv_heads, options)};
                         },
                     .composition =
                         [=](std::span<const Input> in) {
                           return std::vector<Tensor>{PlainPacked(in[0], heads, kv_heads, options)};
                         },
                     .layouts = Layouts::kDenseRows});
  };
  add("EqualHeads", {2, 5, 18}, 2, 2);
  add("GroupedHeads", {2, 5, 32}, 4, 2);
  add("ManyHeads", {5, 66, 24}, 4, 4);
  add("EmptyBatch", {0, 5, 18}, 2, 2);
  add("NoTime", {2, 0, 18}, 2, 2);
  return cases;
}

TESSERA_OP_CASES(AttentionPacked, AttentionPackedCases());

TEST(Attention, MatchesPyTorch) {
  ExpectMatchesGolden("attention", {"q", "k", "v"}, [](std::span<const Input> in) {
    return std::vector<Tensor>{Attention(in[0], in[1], in[2], {.causal = true})};
  });
}

TEST(Attention, WithoutKeysGivesZeroAndSaysSoInItsLogSum) {
  const Tensor q = RandomTensor("q", {2, 4, 2, 4}), k = Empty({2, 0, 2, 4}, DType::kF64);
  const Tensor y = RandomTensor("y", {2, 4, 2, 4}), log_sum = Full({2, 2, 4}, DType::kF64, 7.0);
  ops::AttentionForward({.q = q.Read(), .k = k.Read(), .v = k.Read(), .y = y.Write(), .log_sum = log_sum.Write()});
  EXPECT_EQ(MaxMagnitude(y), 0.0);
  EXPECT_EQ(log_sum.ToVector(), std::vector<double>(16, -std::numeric_limits<double>::infinity()));
}

// Queries 0 and 1 of 6 see none of the 4 keys: everything is as if they were not there.
TEST(Attention, AQueryThatSeesNothingChangesNoGradient) {
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16, DType::kF16}) {
    const Tensor q = RandomTensor("q", {1, 6, 2, 4}, -1, 1, dtype), kv = RandomTensor("kv", {1, 4, 2, 4}, -1, 1, dtype);
    const Tensor dy = RandomTensor("dy", {1, 6, 2, 4}, -1, 1, dtype);
    std::vector<Tensor> grads;
    for (int64_t first : {0, 2}) {
      const auto rows = [&](const Tensor& x) { return x.WithLayout(x.layout().Narrow(1, first, 6 - first)); };
      Tape tape;
      const Tensor query = tape.Watch(rows(q)), key = tape.Watch(kv);
      const Tensor y = Attention(query, key, key, {.causal = true});
      const int64_t blind = 2 - first;
      EXPECT_EQ(MaxMagnitude(y.WithLayout(y.layout().Narrow(1, 0, blind))), 0.0);
      tape.Backward(y, rows(dy));
      const Tensor dq = tape.Grad(query);
      grads.push_back(dq.WithLayout(dq.layout().Narrow(1, dq.size(1) - 4, 4)));
      grads.push_back(tape.Grad(key));
      EXPECT_EQ(MaxMagnitude(dq.WithLayout(dq.layout().Narrow(1, 0, blind))), 0.0);
    }
    for (const Tensor& grad : grads) EXPECT_TRUE(std::isfinite(MaxMagnitude(grad)));
    EXPECT_LE(MaxDifference(grads[0], grads[2]), 1e-6) << Name(dtype);
    EXPECT_LE(MaxDifference(grads[1], grads[3]), 1e-6) << Name(dtype);
  }
}

TEST(Attention, TheLastQueryAloneGivesTheLastRow) {
  const Tensor q = RandomTensor("q", {2, 9, 4, 6}), k = RandomTensor("k", {2, 9, 2, 6}),
               v = RandomTensor("v", {2, 9, 2, 6});
  const auto last = [](const Tensor& x) { return x.WithLayout(x.layout().Narrow(1, 8, 1)); };
  EXPECT_LE(MaxDifference(Attention(last(q), k, v, {.causal = true}), last(Attention(q, k, v, {.causal = true}))),
            1e-15);
}

TEST(Attention, NeverHoldsAllScores) {
  const Tensor qkv = RandomTensor("qkv", {1, 512, 2 * 3 * 8}, -1, 1, DType::kF32);
  const int64_t before = CpuAllocator().stats().bytes;
  CpuAllocator().ResetPeaks();
  Tape tape;
  const Tensor x = tape.Watch(qkv);
  const Tensor y = AttentionPacked(x, 2, 2, {.causal = true});
  tape.Backward(y, RandomTensor("dy", y.shape(), -1, 1, DType::kF32));
  EXPECT_LT(CpuAllocator().stats().peak_bytes - before, 2 * 512 * 512 * 4 / 4) << "the scores are 2 MiB";
}

TEST(Attention, NamesHeadsThatDoNotDivide) {
  const Tensor q = RandomTensor("q", {1, 2, 6, 4}), k = RandomTensor("k", {1, 2, 4, 4});
  EXPECT_EQ(ErrorOf([&] { Attention(q, k, k); }), "attention: 6 query heads are not a multiple of 4 key heads");
  EXPECT_EQ(ErrorOf([&] {
              Attention(q, Empty({1, 2, 0, 4}, DType::kF64), Empty({1, 2, 0, 4}, DType::kF64));
            }),
            "attention: 6 query heads are not a multiple of 0 key heads");
  EXPECT_EQ(ErrorOf([&] { Attention(k, q, q); }), "attention: 4 query heads are not a multiple of 6 key heads");
  EXPECT_EQ(ErrorOf([] {
              AttentionPacked(RandomTensor("x", {1, 2, 20}), 2, 2);
            }),
            "attention: 2 query heads and 2 x 2 key and value heads do not divide the 20 features of qkv");
}

TEST(Attention, NamesShapesThatDoNotFit) {
  const Tensor q = RandomTensor("q", {1, 2, 2, 4});
  EXPECT_EQ(ErrorOf([&] {
              Attention(q, RandomTensor("k", {2, 2, 2, 4}), RandomTensor("v", {2, 2, 2, 4}));
            }),
            "attention: q has shape (1, 2, 2, 4), k has (2, 2, 2, 4); batch and head size must be equal");
  EXPECT_EQ(ErrorOf([&] {
              Attention(q, q, RandomTensor("v", {1, 3, 2, 4}));
            }),
            "attention: k has shape (1, 2, 2, 4), v has (1, 3, 2, 4); they must be equal");
}

}  // namespace
}  // namespace tessera::testing
