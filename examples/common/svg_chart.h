// SPDX-License-Identifier: Apache-2.0
// A chart as an HTML figure with an inline SVG: lines, bands and dots over one x axis, or areas stacked on each other.
// Colours and sizes are the page's style sheet's (report_style.h). Lines differ in their dashes, areas in their hatching
// and order, so that colour is never alone; a description in words is part of the SVG.
//
//   Chart chart{.id = "loss", .title = "Loss", .unit = "nats/byte", .x_title = "step"};
//   chart.lines = {{"training", ChartMark::kLine, points}, {"validation", ChartMark::kDots, others}};
//   page += ChartFigure(chart);
#pragma once

#include <string>
#include <vector>

#include "examples/common/axis.h"
#include "examples/common/series.h"

namespace tessera::examples {

enum class ChartMark {
  kLine,
  kFaint,  // a thin line that stays behind: raw values under their mean
  kDots,   // a line through round marks
  kTotal,  // a line over areas
  kArea,   // stacked on the areas before it; all have their points at the same x
};

struct ChartLine {
  std::string name;
  ChartMark mark = ChartMark::kLine;
  std::vector<Point> points;  // x rises; y NaN is a gap
};

struct Chart {
  std::string id;     // unique in the page, a word
  std::string title;  // of the figure
  std::string unit;   // of y, in words
  std::string x_title;
  std::string note;  // a sentence below; may be empty
  AxisUnit y_unit = AxisUnit::kPlain;
  bool from_zero = false;
  double log_above = 0;  // the axis is logarithmic when the highest value is so many times the middle one; 0: never
  std::vector<ChartLine> lines;
};

std::string ChartFigure(const Chart& chart);

// The sums of the areas below and including each.
std::vector<std::vector<Point>> Stacked(const std::vector<ChartLine>& areas);

}  // namespace tessera::examples
