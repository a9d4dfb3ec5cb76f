// SPDX-License-Identifier: Apache-2.0
#include "zero/partition.h"

#include <gtest/gtest.h>

#include "nn/linear.h"
#include "nn/models/gpt.h"
#include "tests/support/op_case.h"
#include "tests/support/tiny_model.h"

namespace tessera::zero {
namespace {

ZeroConfig Threshold(int64_t persistence, int64_t in_all = std::numeric_limits<int64_t>::max()) {
  ZeroConfig config;
  config.param_persistence_threshold = persistence;
  config.model_persistence_threshold = in_all;
  return config;
}

TEST(Partition, SlicesAreEqualAlignedAndCoverEveryElementOnce) {
  const testing::TinyModel model = testing::MakeTinyModel("gpt", false);
  for (DType dtype : {DType::kF64, DType::kF32, DType::kBF16}) {
    for (int ranks = 1; ranks <= 5; ++ranks) {
      const Partition partition(*model.module, Threshold(0), ranks, dtype);
      for (int unit = 0; unit < partition.unit_count(); ++unit) {
        const nn::FlatSegment& segment = partition.segment(unit, Segment::kTrainable);
        const int64_t slice = partition.SliceNumel(unit, Segment::kTrainable);
        EXPECT_EQ(slice * ranks, segment.numel);
        EXPECT_EQ(slice * ItemSize(dtype) % 128, 0);
        int64_t covered = 0;
        for (int rank = 0; rank < ranks; ++rank) {
          for (const nn::FlatOverlap& overlap : partition.layout().Overlaps(unit, Segment::kTrainable, rank)) {
            covered += overlap.numel;
          }
        }
        EXPECT_EQ(covered, segment.payload_numel) << partition.unit(unit).name << ", " << ranks << " ranks";
      }
    }
  }
}

TEST(Partition, EveryParameterHasOnePlaceAndIsFoundThere) {
  const testing::TinyModel model = testing::MakeTinyModel("llama", false);
  const Partition partition(*model.module, Threshold(100), 3, DType::kF32);
  EXPECT_EQ(partition.parameters().size(), model.module->parameters().size());
  for (const nn::Parameter* parameter : model.module->parameters()) {
    const ParamPlace& place = partition.place(*parameter);
    EXPECT_EQ(partition.parameters()[static_cast<size_t>(place.index)], parameter);
    EXPECT_EQ(partition.ParameterAt(place.unit, place.offset), parameter);
    EXPECT_EQ(partition.ParameterAt(place.unit, place.offset + parameter->numel() - 1), parameter);
  }
}

TEST(Partition, NoParameterIsAtAGap) {
  struct Two : nn::Layer<Two> {
    nn::Parameter a{this, "a", {5}}, b{this, "b", {7}};
  } model;
  const Partition partition(model, Threshold(0), 2, DType::kF32);
  EXPECT_EQ(partition.ParameterAt(0, 4), &model.a);
  EXPECT_EQ(partition.ParameterAt(0, 5), nullptr);
  EXPECT_EQ(partition.ParameterAt(0, 32), &model.b);  // 128 bytes
  EXPECT_EQ(partition.ParameterAt(0, 39), nullptr);
  EXPECT_EQ(partition.UnitNumel(0), 64);
}

TEST(Partition, SmallParametersFormALastUnitThatPersists) {
  const testing::TinyModel model = testing::MakeTinyModel("gpt", false);
  const Partition partition(*model.module, Threshold(128), 2, DType::kF32);
  const PartitionUnit& last = partition.unit(partition.unit_count() - 1);
  EXPECT_TRUE(last.persistent);
  EXPECT_TRUE(last.modules.empty());
  for (const nn::Parameter* parameter : model.module->parameters()) {
    EXPECT_EQ(partition.place(*parameter).unit == partition.unit_count() - 1, parameter->numel() <= 128)
        << parameter->path();
  }
  for (int unit = 0; unit + 1 < partition.unit_count(); ++unit) EXPECT_FALSE(partition.unit(unit).persistent);
}

TEST(Partition, PersistenceIsBoundedOverTheWholeModel) {
  const testing::TinyModel model = testing::MakeTinyModel("gpt", false);
  const Partition partition(*model.module, Threshold(1'000'000, 200), 2, DType::kF32);
  int64_t numel = 0;
  for (const nn::Parameter* parameter : partition.unit(partition.unit_count() - 1).parameters) {
    numel += parameter->numel();
  }
  EXPECT_LE(numel, 200);
  EXPECT_GT(numel, 0);
}

TEST(Partition, AThresholdAboveEverythingLeavesOneUnit) {
  const testing::TinyModel model = testing::MakeTinyModel("llama", false);
  const Partition partition(*model.module, Threshold(1'000'000), 2, DType::kF32);
  EXPECT_EQ(partition.unit_count(), 1);
  EXPECT_TRUE(partition.unit(0).persistent);
}

TEST(Partition, AThresholdOfZeroMakesEvenEmptyParametersPersistNot) {
  struct Empty : nn::Layer<Empty> {
    nn::Linear a{this, "a", 4, 4}, b{this, "b", 4, 0, {.bias = false}};
  } model;
  const Partition partition(model, Threshold(0), 2, DType::kF32);
  for (int unit = 0; unit < partition.unit_count(); ++unit) EXPECT_FALSE(partition.unit(unit).persistent);
  EXPECT_TRUE(partition.Holds(model.b.weight));
}

TEST(Partition, AScopeNeedsItsSubtreesUnitItsOwnAndWhatItUses) {
  nn::Gpt model({.vocab_size = 67, .n_positions = 40, .n_embd = 32, .n_layer = 2, .n_head = 4});
  const Partition partition(model, Threshold(0), 2, DType::kF32);
  const auto unit_of = [&](const nn::Parameter& parameter) { return partition.place(parameter).unit; };
  const std::vector<int> table = {unit_of(model.wte.weight)};
  EXPECT_EQ(partition.UnitsOfScope(model.wte), table);
  EXPECT_EQ(partition.UnitsOfScope(model.lm_head), table);  // tied
  EXPECT_EQ(partition.UnitsOfScope(model), std::vector<int>{unit_of(model.wpe.weight)});
  EXPECT_EQ(partition.UnitsOfScope(model.blocks[1]), std::vector<int>{unit_of(model.blocks[1].parameter("ln_1.bias"))});
  EXPECT_TRUE(partition.UnitsOfScope(model.blocks).empty());
}

TEST(Partition, DecayRunsCoverTheParametersOfARangeAndChangeWhereDecayDoes) {
  struct Mixed : nn::Layer<Mixed> {
    nn::Parameter a{this, "a", {32}}, b{this, "b", {5}}, c{this, "c", {7}}, d{this, "d", {32}};
  } model;
  model.b.SetNoDecay();
  model.c.SetNoDecay();
  const Partition partition(model, Threshold(0), 1, DType::kF32);
  const std::vector<DecayRun> runs = partition.DecayRuns(0, 0, 128);
  ASSERT_EQ(runs.size(), 3u);
  EXPECT_EQ(runs[0].begin, 0);
  EXPECT_EQ(runs[0].numel, 32);
  EXPECT_TRUE(runs[0].decay);
  EXPECT_EQ(runs[1].begin, 32);
  EXPECT_EQ(runs[1].numel, 39);  // b, the gap after it, c
  EXPECT_FALSE(runs[1].decay);
  EXPECT_EQ(runs[2].begin, 96);
  EXPECT_EQ(runs[2].numel, 32);
  EXPECT_TRUE(runs[2].decay);
  const std::vector<DecayRun> part = partition.DecayRuns(0, 30, 5);  // the end of a, the start of b
  ASSERT_EQ(part.size(), 2u);
  EXPECT_EQ(part[0].begin, 30);
  EXPECT_EQ(part[0].numel, 2);
  EXPECT_EQ(part[1].begin, 32);
  EXPECT_EQ(part[1].numel, 3);
}

TEST(Partition, FrozenParametersLieInASegmentOfTheirOwn) {
  struct Half : nn::Layer<Half> {
    nn::Linear a{this, "a", 5, 7}, b{this, "b", 7, 5};
  } model;
  model.a.SetRequiresGrad(false);
  const Partition partition(model, Threshold(0), 2, DType::kF32);
  EXPECT_EQ(partition.place(model.a.weight).segment, Segment::kFrozen);
  EXPECT_EQ(partition.place(model.b.weight).segment, Segment::kTrainable);
  EXPECT_EQ(partition.segment(0, Segment::kFrozen).payload_numel, 35 + 7);
  EXPECT_EQ(partition.segment(0, Segment::kTrainable).payload_numel, 35 + 5);
}

TEST(Partition, AParameterOfAnotherModelIsAnErrorThatNamesIt) {
  struct One : nn::Layer<One> {
    nn::Parameter stranger{this, "stranger", {2}};
  } model, other;
  const Partition partition(model, Threshold(0), 1, DType::kF32);
  EXPECT_FALSE(partition.Holds(other.stranger));
  EXPECT_NE(testing::ErrorOf([&] { partition.place(other.stranger); }).find("stranger"), std::string::npos);
}

}  // namespace
}  // namespace tessera::zero
