// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <limits>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "examples/common/axis.h"
#include "examples/common/series.h"
#include "examples/common/svg_chart.h"

namespace tessera::examples {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const double kNan = std::nan(""), kInf = std::numeric_limits<double>::infinity();

std::vector<std::string> Labels(const Axis& axis) {
  std::vector<std::string> labels;
  for (const double tick : axis.ticks()) labels.push_back(axis.Label(tick));
  return labels;
}

TEST(Axis, TicksAreRoundAndSpanTheValues) {
  EXPECT_THAT(Labels(Axis::Over(1.3, 5.7, {.ticks = 4})), ElementsAre("0", "2", "4", "6"));
  EXPECT_THAT(Labels(Axis::Over(0.0003, 0.0034, {.ticks = 4, .from_zero = true})),
              ElementsAre("0", "0.001", "0.002", "0.003", "0.004"));
  EXPECT_THAT(Labels(Axis::Over(100, 29500, {.ticks = 4, .from_zero = true})), ElementsAre("0", "10k", "20k", "30k"));
  EXPECT_THAT(Labels(Axis::Over(0, 2300, {.ticks = 5, .exact = true})),
              ElementsAre("0", "500", "1,000", "1,500", "2,000"));
  EXPECT_THAT(Labels(Axis::Over(0, 3e7, {.ticks = 3, .unit = AxisUnit::kBytes})),
              ElementsAre("0 B", "10 MB", "20 MB", "30 MB"));
}

TEST(Axis, OfStepsHasTicksAtWholeNumbersOnly) {
  EXPECT_THAT(Labels(Axis::Over(0, 1, {.exact = true, .whole = true})), ElementsAre("0", "1"));
  EXPECT_THAT(Labels(Axis::Over(0, 7, {.exact = true, .whole = true})), ElementsAre("0", "2", "4", "6"));
}

TEST(Axis, HugeValuesHaveShortLabels) {
  EXPECT_THAT(Labels(Axis::Over(0, 1e30, {.ticks = 2})), ElementsAre("0", "5e29", "1e30"));
}

TEST(Axis, ConstantValuesGetRoomAroundThem) {
  const Axis axis = Axis::Over(3, 3, {});
  EXPECT_LT(axis.low(), 3);
  EXPECT_GT(axis.high(), 3);
  EXPECT_GE(axis.ticks().size(), 2u);
  EXPECT_EQ(Axis::Over(3, 3, {.from_zero = true}).low(), 0);
  const Axis zero = Axis::Over(0, 0, {.from_zero = true});
  EXPECT_EQ(zero.low(), 0);
  EXPECT_GT(zero.high(), 0);
  const Axis logarithmic = Axis::Over(2, 2, {.log = true});
  EXPECT_GT(logarithmic.Place(2), 0.2);
  EXPECT_LT(logarithmic.Place(2), 0.8);
}

TEST(Axis, ValuesThatAreNoNumbersGiveAnAxisAllTheSame) {
  for (const Axis& axis : {Axis::Over(kNan, kNan, {}), Axis::Over(kInf, -kInf, {}), Axis::Over(-kInf, 3, {})}) {
    EXPECT_LT(axis.low(), axis.high());
    EXPECT_LT(axis.ticks().size(), 20u);
  }
}

TEST(Axis, ALogarithmicOneHasRoundTicksToo) {
  EXPECT_THAT(Labels(Axis::Over(0.01, 1000, {.log = true})), ElementsAre("0.01", "0.1", "1", "10", "100", "1k"));
  EXPECT_THAT(Labels(Axis::Over(1.4, 5.6, {.log = true})), ElementsAre("1.5", "2", "3", "4", "5"));
  EXPECT_FALSE(Axis::Over(0, 10, {.log = true}).is_log());
}

TEST(Series, KeepsAllPointsWhileTheyAreFew) {
  Series series;
  for (int i = 0; i < 100; ++i) series.Add(i, i % 7);
  const std::vector<Point> points = series.MinMaxPoints();
  ASSERT_EQ(points.size(), 100u);
  EXPECT_EQ(points[13].x, 13);
  EXPECT_EQ(points[13].y, 6);
}

TEST(Series, KeepsTheExtremesOfALongSeriesInFewPoints) {
  Series series;
  for (int i = 0; i < 100'000; ++i) series.Add(i, i == 77'777 ? 1000.0 : i == 33'333 ? -1000.0 : std::sin(i * 0.01));
  const std::vector<Point> points = series.MinMaxPoints();
  EXPECT_LE(points.size(), 2 * Series::kMaxBuckets);
  EXPECT_GE(points.size(), Series::kMaxBuckets);
  const auto by_y = [](const Point& a, const Point& b) { return a.y < b.y; };
  EXPECT_EQ(std::max_element(points.begin(), points.end(), by_y)->x, 77'777);
  EXPECT_EQ(std::min_element(points.begin(), points.end(), by_y)->x, 33'333);
  for (size_t i = 1; i < points.size(); ++i) EXPECT_GT(points[i].x, points[i - 1].x);
}

TEST(Series, ValuesThatAreNotFiniteAreGapsAndAreCounted) {
  Series series;
  series.Add(1, 5);
  series.Add(2, kNan);
  series.Add(3, kInf);
  series.Add(4, 6);
  EXPECT_EQ(series.not_finite_count(), 2);
  EXPECT_TRUE(std::isnan(series.MinMaxPoints()[1].y));
  EXPECT_TRUE(std::isnan(series.MeanPoints()[2].y));
  EXPECT_TRUE(std::isnan(series.MaxPoints()[1].y));
  EXPECT_EQ(series.MeanPoints()[3].y, 6);
}

Chart Of(std::vector<Point> points, ChartMark mark = ChartMark::kLine) {
  return {.id = "c", .title = "C", .unit = "u", .x_title = "step", .lines = {{"line", mark, std::move(points)}}};
}

void ExpectDrawable(const Chart& chart) {
  const std::string figure = ChartFigure(chart);
  EXPECT_THAT(figure, Not(HasSubstr("nan")));
  EXPECT_THAT(figure, Not(HasSubstr("NaN")));
  EXPECT_THAT(figure, Not(HasSubstr("inf")));
  EXPECT_THAT(figure, HasSubstr("<title id=\"c-title\">C</title>"));
  EXPECT_THAT(figure, HasSubstr("role=\"img\""));
}

TEST(SvgChart, DrawsAnySeries) {
  for (const ChartMark mark :
       {ChartMark::kLine, ChartMark::kFaint, ChartMark::kDots, ChartMark::kTotal, ChartMark::kArea}) {
    for (const std::vector<Point>& points : std::vector<std::vector<Point>>{{},
                                                                            {{1, 3}},
                                                                            {{1, 3}, {2, 3}, {3, 3}},
                                                                            {{1, kNan}, {2, kNan}},
                                                                            {{1, 1}, {2, kNan}, {3, 2}},
                                                                            {{1, kInf}, {2, -kInf}, {3, 2}},
                                                                            {{1, 0}, {2, 0}},
                                                                            {{1, 1e-30}, {2, 1e30}}}) {
      Chart chart = Of(points, mark);
      ExpectDrawable(chart);
      chart.log_above = 2;
      chart.from_zero = true;
      ExpectDrawable(chart);
    }
  }
}

TEST(SvgChart, AGapLiftsThePen) {
  EXPECT_THAT(ChartFigure(Of({{0, 1}, {1, 2}, {2, kNan}, {3, 1}, {4, 2}})),
              testing::ContainsRegex("data-name=\"line\" d=\"M[0-9. ]+L[0-9. ]+M[0-9. ]+L[0-9. ]+\""));
}

TEST(SvgChart, PlacesTheEndsOfALineAtTheEndsOfTheFrame) {
  EXPECT_THAT(ChartFigure(Of({{0, 0}, {10, 4}})), HasSubstr("d=\"M64 252L546 12\""));
}

TEST(SvgChart, ASingleValueIsADot) { EXPECT_THAT(ChartFigure(Of({{1, 3}})), HasSubstr("class=\"dots k0\" d=\"M")); }

TEST(SvgChart, ASpikeMakesTheAxisLogarithmicWhereThatIsAllowed) {
  Chart chart = Of({{1, 1}, {2, 1}, {3, 1}, {4, 1000}});
  EXPECT_THAT(ChartFigure(chart), Not(HasSubstr("logarithmic")));
  chart.log_above = 30;
  EXPECT_THAT(ChartFigure(chart), HasSubstr("u, logarithmic"));
}

TEST(SvgChart, AreasAreStackedInTheirOrder) {
  const std::vector<ChartLine> areas = {{"a", ChartMark::kArea, {{1, 1}, {2, 2}}},
                                        {"over", ChartMark::kTotal, {{1, 9}, {2, 9}}},
                                        {"b", ChartMark::kArea, {{1, 10}, {2, kNan}}}};
  const std::vector<std::vector<Point>> sums = Stacked(areas);
  ASSERT_EQ(sums.size(), 2u);
  EXPECT_EQ(sums[0][1].y, 2);
  EXPECT_EQ(sums[1][0].y, 11);
  EXPECT_EQ(sums[1][1].y, 2);
}

TEST(SvgChart, ItsWordsSayWhatTheLinesShow) {
  EXPECT_THAT(ChartFigure(Of({{1, 5.5}, {2000, 1.25}, {3000, 1.5}})),
              HasSubstr("line: 5.500 at 1, 1.500 at 3,000; lowest 1.250, highest 5.500."));
}

TEST(SvgChart, NamesAreText) {
  Chart chart = Of({{1, 1}});
  chart.title = chart.lines[0].name = chart.note = "<b>&\"";
  EXPECT_THAT(ChartFigure(chart), Not(HasSubstr("<b>")));
}

}  // namespace
}  // namespace tessera::examples
