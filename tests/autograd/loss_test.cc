// SPDX-License-Identifier: Apache-2.0
#include "autograd/loss.h"

#include <cmath>
#include <limits>

#include "autograd/checkpoint.h"
#include "autograd/custom.h"
#include "tensor/context.h"
#include "tests/support/golden.h"
#include "tests/support/op_case.h"

namespace tessera::testing {
namespace {

// x W^T by the definition.
Tensor PlainLinear(const Input& x, const Input& weight) {
  const auto product = [](const Tensor& a, bool transpose_a, const Tensor& b, bool transpose_b, const Shape& shape) {
    const std::vector<double> va = a.ToVector(), vb = b.ToVector();
    const int64_t a_width = a.size(-1), b_width = b.size(-1), inner = transpose_a ? RowCount(a.shape()) : a_width;
    std::vector<double> result;
    for (int64_t i = 0; i < RowCount(shape); ++i) {
      for (int64_t j = 0; j < shape.back(); ++j) {
        double sum = 0;
        for (int64_t k = 0; k < inner; ++k) {
          sum += va[static_cast<size_t>(transpose_a ? k * a_width + i : i * a_width + k)] *
                 vb[static_cast<size_t>(transpose_b ? j * b_width + k : k * b_width + j)];
        }
        result.push_back(sum);
      }
    }
    return CopyTo(Tensor::From(result, shape), a.dtype());
  };
  return CustomFunction(
      "plain_linear", {x, weight},
      [product](SavedValues& save, std::span<const Tensor> in) {
        save.Keep(0);
        save.Keep(1);
        Shape shape = in[0].shape();
        shape[shape.rank() - 1] = in[1].size(0);
        return product(in[0], false, in[1], true, shape);
      },
      [product](const SavedValues& saved, const Tensor& dy) -> std::vector<Tensor> {
        const Tensor x = saved[0], weight = saved[1];
        return {product(dy, false, weight, false, x.shape()), product(dy, true, x, false, weight.shape())};
      });
}

std::vector<Tensor> Parts(const Loss& loss) { return {loss.sum, loss.weight}; }

// ---- CrossEntropy ----

std::vector<OpCase> CrossEntropyCases() {
  std::vector<OpCase> cases;
  const auto add = [&](const char* name, const Shape& logits, std::vector<int64_t> targets, int64_t valid = -1) {
    Shape leading;
    for (int dim = 0; dim + 1 < logits.rank(); ++dim) leading.push_back(logits[dim]);
    cases.push_back({.name = name,
                     .inputs = {{logits, -3, 3}, OpInput::Indexes(leading, std::move(targets))},
                     .run =
                         [valid](std::span<const Input> in) {
                           return Parts(CrossEntropy(in[0], in[1].Data(), {.valid_classes = valid}));
                         },
                     .layouts = Layouts::kDenseRows,
                     .finite_difference_tolerance = 1e-6});
  };
  add("Rows", {4, 7}, {0, 6, 3, 3});
  add("SomeIgnored", {4, 7}, {0, -100, 3, -100});
  add("AllIgnored", {2, 5}, {-100, -100});
  add("PaddedVocabulary", {3, 8}, {0, 4, 2}, 5);
  add("OneClass", {2, 1}, {0, 0});
  add("OneRow", {9}, {4});
  add("BatchOfSequences", {2, 3, 37}, {36, 0, -100, 7, 1, 1});
  add("SeveralBlocksOfColumns", {2, 2500}, {2499, 1024});
  add("NoRows", {0, 5}, {});
  add("NoColumns", {2, 0}, {-100, -100});
  return cases;
}

TESSERA_OP_CASES(CrossEntropy, CrossEntropyCases());

TEST(CrossEntropy, MatchesPyTorch) {
  const GoldenTensors golden("ops.txt");
  for (DType index : {DType::kI32, DType::kI64}) {
    Tape tape;
    const Tensor x = tape.Watch(golden["cross_entropy.x"]);
    const Loss loss = CrossEntropy(x, CopyTo(golden["cross_entropy.targets"], index));
    EXPECT_NEAR(loss.Mean(), golden["cross_entropy.loss"].Item(), 1e-14);
    EXPECT_EQ(loss.weight.Item(), 5.0);
    Backward(loss);
    EXPECT_LE(MaxDifference(tape.Grad(x), golden["cross_entropy.dx"]), 1e-15);
  }
}

TEST(CrossEntropy, ReadsRowsWhereverTheyLie) {
  std::vector<double> memory;
  for (int s = 0; s < 4; ++s) {
    for (int b = 0; b < 2; ++b) {
      for (int v = 0; v < 8; ++v) memory.push_back((16 * s + 8 * b + v) % 5 - 2);
    }
  }
  const Tensor block = Tensor::From(memory, {4, 2, 8});
  const Tensor logits = block.WithLayout(block.layout().Transpose(0, 1));  // (B, S, V)
  const double expected[2][4] = {{4.5736626, 2.7534514, 1.1231527, 4.0843485},
                                 {1.0843485, 3.9705592, 1.5736626, 4.7534514}};
  std::vector<int64_t> targets;
  for (int64_t b = 0; b < 2; ++b) {
    for (int64_t s = 0; s < 4; ++s) {
      targets.push_back((b + s) % 8);
      std::vector<int64_t> alone(8, -100);
      alone[static_cast<size_t>(4 * b + s)] = (b + s) % 8;
      EXPECT_NEAR(CrossEntropy(logits, Tensor::From(alone, {2, 4})).Mean(), expected[b][s], 1e-7) << b << ", " << s;
    }
  }
  EXPECT_NEAR(CrossEntropy(logits, Tensor::From(targets, {2, 4})).Mean(), 2.9895796, 1e-7);
}

TEST(CrossEntropy, WithoutTargetsIsZeroWithZeroGradient) {
  // Not even NaN logits get through an ignored row.
  const Tensor x = Tensor::From({std::nan(""), 1.0, 2.0, 3.0, 4.0, 0.0, 1.0, 2.0, 3.0, 4.0}, {2, 5});
  for (const Shape& shape : {Shape{2, 5}, Shape{0, 5}}) {
    Tape tape;
    const Tensor watched = tape.Watch(shape[0] == 0 ? Empty(shape, DType::kF64) : x);
    const Loss loss = CrossEntropy(watched, Full({shape[0]}, DType::kI64, -100));
    EXPECT_EQ(loss.Mean(), 0.0);
    EXPECT_EQ(loss.weight.Item(), 0.0);
    Backward(loss);
    EXPECT_EQ(tape.Grad(watched).ToVector(), std::vector<double>(static_cast<size_t>(5 * shape[0]), 0.0));
  }
}

TEST(CrossEntropy, PaddingOfTheVocabularyHasNoInfluence) {
  Tensor x = Full({1, 8}, DType::kF64, 0.0);
  for (int64_t column = 5; column < 8; ++column) x.Write().as<double>()[column] = column == 6 ? 1e300 : std::nan("");
  Tape tape;
  const Tensor watched = tape.Watch(x);
  const Loss loss = CrossEntropy(watched, Tensor::From<int64_t>({1}, {1}), {.valid_classes = 5});
  EXPECT_NEAR(loss.Mean(), 1.6094379124341003, 1e-15);
  Backward(loss);
  const std::vector<double> dx = tape.Grad(watched).ToVector();
  EXPECT_NEAR(dx[0], 0.2, 1e-15);
  EXPECT_NEAR(dx[1], -0.8, 1e-15);
  for (size_t column = 5; column < 8; ++column) EXPECT_EQ(dx[column], 0.0);
}

TEST(CrossEntropy, PaddedAndUnpaddedVocabulariesAgree) {
  for (int64_t classes : {50257, 32000, 65537}) {
    const int64_t padded = (classes + 127) / 128 * 128;
    const Tensor wide = RandomTensor("logits", {2, padded}, -4, 4, DType::kF32);
    const Tensor narrow = CopyTo(wide.WithLayout(wide.layout().Narrow(1, 0, classes)), DType::kF32);
    const Tensor targets = Tensor::From<int64_t>({7, classes - 1}, {2});
    EXPECT_NEAR(CrossEntropy(wide, targets, {.valid_classes = classes}).Mean(), CrossEntropy(narrow, targets).Mean(),
                1e-6)
        << classes;
  }
}

TEST(CrossEntropy, MicroBatchesOfAnySizeAddUpToOneBatch) {
  // Three targets with mean 2, then one with 4: the step's loss is 2.5, not 3.
  const auto logit_for = [](double loss) { return -std::log(std::expm1(loss)); };  // of class 0 beside a logit of 0
  const Tensor batch =
      Tensor::From({logit_for(1), 0.0, logit_for(2), 0.0, logit_for(3), 0.0, logit_for(4), 0.0}, {4, 2});
  const Tensor targets = Full({4}, DType::kI64, 0);
  const auto rows = [&](const Tensor& x, int64_t begin, int64_t count) {
    return CopyTo(x.WithLayout(x.layout().Narrow(0, begin, count)), x.dtype());
  };
  std::vector<double> gradient;
  double sum = 0, weight = 0;
  for (auto [begin, count] : {std::pair<int64_t, int64_t>(0, 3), std::pair<int64_t, int64_t>(3, 1)}) {
    Tape tape;
    const Tensor x = tape.Watch(rows(batch, begin, count));
    const Loss loss = CrossEntropy(x, rows(targets, begin, count));
    sum += loss.sum.Item();
    weight += loss.weight.Item();
    tape.Backward(loss.sum, Full({}, DType::kF64, 1.0 / 4));
    for (double value : tape.Grad(x).ToVector()) gradient.push_back(value);
  }
  EXPECT_NEAR(sum / weight, 2.5, 1e-12);
  Tape tape;
  const Tensor x = tape.Watch(batch);
  Backward(CrossEntropy(x, targets));
  EXPECT_LE(MaxDifference(tape.Grad(x), Tensor::From(gradient, {4, 2})), 1e-15);
}

TEST(CrossEntropy, NamesATargetThatIsNoClass) {
  const Tensor x = RandomTensor("x", {2, 3, 5});
  EXPECT_EQ(ErrorOf([&] {
              CrossEntropy(x, Tensor::From<int64_t>({0, 1, 2, 3, 4, 5}, {2, 3}));
            }),
            "cross_entropy: target 5 at (1, 2) is outside [0, 5) and is not the ignore_index -100");
  EXPECT_EQ(ErrorOf([&] {
              CrossEntropy(x, Tensor::From<int32_t>({0, -1, 2, 3, 4, 0}, {2, 3}));
            }),
            "cross_entropy: target -1 at (0, 1) is outside [0, 5) and is not the ignore_index -100");
  EXPECT_EQ(ErrorOf([&] {
              CrossEntropy(x, Tensor::From<int64_t>({0, 1, 2, 3, 4, 4}, {6}));
            }),
            "cross_entropy: targets has shape (6), expected (2, 3)");
  EXPECT_EQ(ErrorOf([&] {
              CrossEntropy(x, Full({2, 3}, DType::kF32, 1.0));
            }),
            "cross_entropy: targets is f32, expected i32 or i64");
  // What is padding to the vocabulary is no class.
  EXPECT_EQ(ErrorOf([&] {
              CrossEntropy(x, Full({2, 3}, DType::kI64, 4.0), {.ignore_index = 0, .valid_classes = 4});
            }),
            "cross_entropy: target 4 at (0, 0) is outside [0, 4) and is not the ignore_index 0");
}

TEST(Loss, BackwardWithoutATapeSaysSo) {
  const Loss loss = CrossEntropy(RandomTensor("x", {2, 5}), Full({2}, DType::kI64, 1.0));
  EXPECT_EQ(ErrorOf([&] { Backward(loss); }), "backward: no tape is open on this thread; open a Tape before forward");
}

TEST(Loss, TheSeedTakesALossScale) {
  const Loss loss = CrossEntropy(RandomTensor("x", {4, 5}), Full({4}, DType::kI64, 1.0));
  EXPECT_EQ(MeanSeed(loss, 1024).Item(), 256.0);
}

// ---- the fused head ----

std::vector<OpCase> LinearCrossEntropyCases() {
  std::vector<OpCase> cases;
  struct Head {
    const char* name;
    Shape x;
    int64_t vocabulary;
    std::vector<int64_t> targets;
    int64_t rows_per_chunk = 1000;
    int64_t valid = -1;
    Layouts layouts = Layouts::kAny;
  };
  const Head heads[] = {
      {"OneChunk", {5, 4}, 7, {0, 6, 3, 3, 1}},
      {"RowByRow", {5, 4}, 7, {0, 6, 3, 3, 1}, 1},
      {"ChunksThatDoNotDivide", {5, 4}, 7, {0, -100, 3, -100, 1}, 2},
      {"Sequences", {2, 3, 4}, 9, {0, 8, -100, 7, 1, 1}, 4, -1, Layouts::kContiguous},
      {"AllIgnored", {3, 4}, 5, {-100, -100, -100}, 2},
      {"PaddedVocabulary", {3, 4}, 8, {0, 4, 2}, 1000, 5},
      {"PaddedVocabularyInChunks", {3, 4}, 8, {0, 4, 2}, 2, 5},
      {"OneElement", {1, 1}, 1, {0}},
      {"NoRows", {0, 4}, 5, {}},
      {"NoRowsInChunks", {0, 4}, 5, {}, 1},
      {"NoFeatures", {3, 0}, 5, {1, 2, 3}},
  };
  for (const Head& head : heads) {
    Shape leading;
    for (int dim = 0; dim + 1 < head.x.rank(); ++dim) leading.push_back(head.x[dim]);
    const int64_t classes = head.valid < 0 ? head.vocabulary : head.valid;
    cases.push_back(
        {.name = head.name,
         .inputs = {{head.x}, {{head.vocabulary, head.x.back()}}, OpInput::Indexes(leading, head.targets)},
         .run =
             [=](std::span<const Input> in) {
               const int64_t row_bytes = classes * ItemSize(AccumulationType(in[0].dtype()));
               return Parts(
                   LinearCrossEntropy(in[0], in[1], in[2].Data(),
                                      {.valid_classes = head.valid, .chunk_bytes = head.rows_per_chunk * row_bytes}));
             },
         .composition =
             [=](std::span<const Input> in) {
               return Parts(CrossEntropy(PlainLinear(in[0], in[1]), in[2].Data(), {.valid_classes = head.valid}));
             },
         .layouts = head.layouts,
         .finite_difference_tolerance = 1e-6});
  }
  return cases;
}

TESSERA_OP_CASES(LinearCrossEntropy, LinearCrossEntropyCases());

class Head {
 public:
  Head(int64_t rows, int64_t features, int64_t vocabulary)
      : x(RandomTensor("x", {rows, features}, -1, 1, DType::kF32)),
        weight("head", RandomTensor("w", {vocabulary, features}, -1, 1, DType::kF32), DType::kF32) {
    std::vector<int64_t> ids;
    for (int64_t row = 0; row < rows; ++row) ids.push_back(row * 7 % vocabulary);
    targets = Tensor::From(ids, {rows});
  }
  Tensor x, targets;
  TestParameter weight;
};

TEST(LinearCrossEntropy, NeverHoldsAllLogits) {
  Head head(64, 16, 1000);
  AllocatorStats before = CpuAllocator().stats();
  CpuAllocator().ResetPeaks();
  Tape tape;
  const Loss loss =
      LinearCrossEntropy(tape.Watch(head.x), ParamRef(&head.weight), head.targets, {.chunk_bytes = 8 * 4000});
  Backward(loss);
  const int64_t peak = CpuAllocator().stats().peak_bytes - before.bytes;
  EXPECT_LT(peak, 64 * 1000 * 4 / 2) << "the logits are 256,000 bytes";
  EXPECT_GE(peak, 8 * 4000 + 16 * 1000 * 4) << "a chunk and the weight's gradient";
}

TEST(LinearCrossEntropy, TheLossDependsNeitherOnTheChunksNorOnTheTape) {
  const Head head(10, 16, 50);
  std::vector<Tensor> sums;
  for (int64_t rows : {1, 3, 10}) {
    for (bool recording : {false, true}) {
      std::unique_ptr<Tape> tape = recording ? std::make_unique<Tape>() : nullptr;
      const Tensor x = recording ? tape->Watch(head.x) : head.x;
      sums.push_back(LinearCrossEntropy(x, RandomTensor("w", {50, 16}, -1, 1, DType::kF32), head.targets,
                                        {.chunk_bytes = rows * 200})
                         .sum.Detach());
    }
  }
  for (const Tensor& sum : sums) EXPECT_NEAR(sum.Item(), sums[0].Item(), 1e-6);
  EXPECT_TRUE(BitEqual(sums[0], sums[1])) << "gradients made on the way must not change the loss";
}

TEST(LinearCrossEntropy, AsksForTheWeightOnceAndNotInBackward) {
  for (int64_t chunk_bytes : {1, 1 << 20}) {
    Head head(6, 4, 11);
    Tape tape;
    const Loss loss =
        LinearCrossEntropy(tape.Watch(head.x), ParamRef(&head.weight), head.targets, {.chunk_bytes = chunk_bytes});
    EXPECT_EQ(head.weight.data_count, 1);
    Backward(loss);
    EXPECT_EQ(head.weight.data_count, 1);
    EXPECT_EQ(head.weight.target_count, 1);
    EXPECT_EQ(head.weight.ready_count, 1);
  }
}

TEST(LinearCrossEntropy, MakesNoGradientOfAFrozenWeight) {
  for (int64_t chunk_bytes : {1, 1 << 20}) {
    Head head(6, 4, 11);
    head.weight.SetRequiresGrad(false);
    Tape tape;
    const Tensor x = tape.Watch(head.x);
    Backward(LinearCrossEntropy(x, ParamRef(&head.weight), head.targets, {.chunk_bytes = chunk_bytes}));
    EXPECT_EQ(head.weight.target_count, 0);
    EXPECT_GT(MaxMagnitude(tape.Grad(x)), 0.0);
  }
}

TEST(LinearCrossEntropy, InACheckpointHasTheBitsOfThePlainRun) {
  std::vector<Tensor> plain, recomputed;
  for (std::vector<Tensor>* result : {&plain, &recomputed}) {
    Head head(6, 4, 11);
    Tape tape;
    const Tensor x = tape.Watch(head.x);
    const auto sum = [&](const Tensor& in) {
      return LinearCrossEntropy(in, ParamRef(&head.weight), head.targets, {.chunk_bytes = 100}).sum;
    };
    const Tensor loss = result == &plain ? sum(x) : Checkpoint(sum, x);
    tape.Backward(loss);
    EXPECT_EQ(head.weight.ready_count, 1);
    *result = {loss.Detach(), tape.Grad(x), CopyTo(head.weight.grad(), DType::kF32)};
  }
  for (size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(BitEqual(plain[i], recomputed[i])) << i;
}

TEST(LinearCrossEntropy, WithoutTargetsGivesZeroGradients) {
  Head head(6, 4, 11);
  Tape tape;
  const Tensor x = tape.Watch(head.x);
  const Loss loss = LinearCrossEntropy(x, ParamRef(&head.weight), Full({6}, DType::kI64, -100));
  EXPECT_EQ(loss.Mean(), 0.0);
  Backward(loss);
  EXPECT_EQ(MaxMagnitude(tape.Grad(x)), 0.0);
  EXPECT_EQ(head.weight.grad().ToVector(), std::vector<double>(44, 0.0));
}

TEST(LinearCrossEntropy, NamesWhatDoesNotFit) {
  Head head(6, 4, 11);
  const auto run = [&](const Tensor& x, const Tensor& targets) {
    return ErrorOf([&] { LinearCrossEntropy(x, ParamRef(&head.weight), targets, {.chunk_bytes = 100}); });
  };
  EXPECT_EQ(run(RandomTensor("x", {6, 3}, -1, 1, DType::kF32), head.targets),
            "linear_cross_entropy: x has 3 features, weight wants 4");
  EXPECT_EQ(run(head.x, Full({5}, DType::kI64, 0.0)),
            "linear_cross_entropy: targets have shape (5), x has (6, 4); expected (6)");
  EXPECT_EQ(run(head.x, Tensor::From<int64_t>({0, 0, 0, 0, 0, 11}, {6})),
            "linear_cross_entropy: target 11 at (5) is outside [0, 11) and is not the ignore_index -100");
  EXPECT_EQ(run(CopyTo(head.x, DType::kF64), head.targets),
            "linear_cross_entropy: x is f64, weight is f32; they must be equal");
}

}  // namespace
}  // namespace tessera::testing
