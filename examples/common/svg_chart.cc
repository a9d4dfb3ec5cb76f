// SPDX-License-Identifier: Apache-2.0
#include "examples/common/svg_chart.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "examples/common/format.h"
#include "examples/common/html.h"
#include "examples/common/json_line.h"
#include "tensor/error.h"

namespace tessera::examples {
namespace {

// In units of the view box; narrow, for a telephone shows all of it.
constexpr double kWidth = 560, kHeight = 312;
constexpr double kLeft = 64, kRight = kWidth - 14, kTop = 12, kBottom = kHeight - 60;

struct Range {
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();
  void Add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
};

struct Frame {
  Axis x, y;
  double X(double value) const { return kLeft + (kRight - kLeft) * x.Place(value); }
  double Y(double value) const { return kBottom - (kBottom - kTop) * std::clamp(y.Place(value), 0.0, 1.0); }
};

// A coordinate with two digits at most.
void Append(std::string* out, double coordinate) { AppendNumber(out, std::round(coordinate * 100) / 100); }

std::string PathOf(const std::vector<Point>& points, const Frame& frame) {
  std::string path;
  bool is_pen_down = false;
  for (const Point& point : points) {
    if (!std::isfinite(point.y) || (frame.y.is_log() && point.y <= 0)) {
      is_pen_down = false;
      continue;
    }
    path += is_pen_down ? 'L' : 'M';
    is_pen_down = true;
    Append(&path, frame.X(point.x));
    path += ' ';
    Append(&path, frame.Y(point.y));
  }
  return path;
}

std::string AreaPath(const std::vector<Point>& top, const std::vector<Point>& below, const Frame& frame) {
  std::vector<Point> outline = top;
  outline.insert(outline.end(), below.rbegin(), below.rend());
  const std::string path = PathOf(outline, frame);
  return path.empty() ? path : path + "Z";
}

bool IsFarFlung(const std::vector<ChartLine>& lines, double times) {
  std::vector<double> values;
  for (const ChartLine& line : lines) {
    for (const Point& point : line.points) {
      if (!std::isfinite(point.y)) continue;
      if (point.y <= 0) return false;
      values.push_back(point.y);
    }
  }
  if (values.empty()) return false;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *std::max_element(values.begin(), values.end()) > times * *middle;
}

Frame FrameOf(const Chart& chart, const std::vector<std::vector<Point>>& stacked, bool log) {
  Range x, y;
  for (const ChartLine& line : chart.lines) {
    for (const Point& point : line.points) {
      x.Add(point.x);
      if (line.mark != ChartMark::kArea) y.Add(point.y);
    }
  }
  for (const std::vector<Point>& area : stacked) {
    for (const Point& point : area) y.Add(point.y);
  }
  return {Axis::Over(std::min(x.low, 0.0), x.high, {.ticks = 5, .exact = true, .whole = true}),
          Axis::Over(y.low, y.high, {.ticks = 4, .from_zero = chart.from_zero, .log = log, .unit = chart.y_unit})};
}

std::string Value(const Chart& chart, double value) {
  if (chart.y_unit == AxisUnit::kBytes) return Bytes(std::llround(value));
  return std::abs(value) >= 1000 ? Compact(value) : std::abs(value) >= 0.1 ? Fixed(value, 3) : Short(value);
}

// "training: 5.541 at 1, 1.892 at 2,000; lowest 1.702, highest 5.541."
std::string InWords(const Chart& chart, const ChartLine& line) {
  Range range;
  const Point *first = nullptr, *last = nullptr;
  for (const Point& point : line.points) {
    if (!std::isfinite(point.y)) continue;
    if (first == nullptr) first = &point;
    last = &point;
    range.Add(point.y);
  }
  if (first == nullptr) return Str(line.name, ": no values.");
  const auto at = [&](const Point& point) {
    return Str(Value(chart, point.y), " at ", WithCommas(std::llround(point.x)));
  };
  if (first == last) return Str(line.name, ": ", at(*first), ".");
  return Str(line.name, ": ", at(*first), ", ", at(*last), "; lowest ", Value(chart, range.low), ", highest ",
             Value(chart, range.high), ".");
}

void AppendAxes(const Chart& chart, const Frame& frame, std::string* out) {
  const auto text = [&](const char* kind, double x, double y, const std::string& label) {
    *out += Str("<text class=\"", kind, "\" x=\"", x, "\" y=\"", y, "\">", HtmlEscaped(label), "</text>");
  };
  *out += "<g class=\"axis\">";
  for (const double tick : frame.y.ticks()) {
    const double y = std::round(frame.Y(tick) * 10) / 10;
    *out += Str("<path class=\"grid\" d=\"M", kLeft, " ", y, "H", kRight, "\"/>");
    text("ty", kLeft - 7, y, frame.y.Label(tick));
  }
  for (const double tick : frame.x.ticks()) {
    const double x = std::round(frame.X(tick) * 10) / 10;
    *out += Str("<path class=\"tick\" d=\"M", x, " ", kBottom, "v5\"/>");
    text(x > kRight - 15 ? "tx end" : "tx", x, kBottom + 9, frame.x.Label(tick));
  }
  *out += Str("<path class=\"base\" d=\"M", kLeft, " ", kBottom, "H", kRight, "\"/>");
  text("title", (kLeft + kRight) / 2, kHeight - 6, chart.x_title);
  *out += "</g>";
}

// The way back from coordinates to values, for the script that reads the chart out under the pointer.
std::string ReadOutAttributes(const Chart& chart, const Frame& frame) {
  std::string out = Str(" data-unit=\"", chart.y_unit == AxisUnit::kBytes ? "bytes" : "plain", "\" data-axes=\"");
  for (const double value : {kLeft, kRight, frame.x.low(), frame.x.high(), kBottom, kTop, frame.y.low(), frame.y.high(),
                             frame.y.is_log() ? 1.0 : 0.0}) {
    AppendNumber(&out, value);
    out += ' ';
  }
  out.back() = '"';
  return out;
}

std::string LineClass(ChartMark mark, size_t index) {
  if (mark == ChartMark::kTotal) return "line total";
  return Str(mark == ChartMark::kFaint ? "faint k" : "line k", index);
}

std::string Swatch(ChartMark mark, size_t index) {
  const std::string look = Str("k", index);
  std::string out = "<svg class=\"swatch\" viewBox=\"0 0 30 12\" aria-hidden=\"true\">";
  if (mark == ChartMark::kArea) {
    out += Str("<path class=\"area ", look, "\" d=\"M0 0H30V12H0Z\"/>");
    if (index % 2 == 1) out += "<path class=\"hatch\" d=\"M0 0H30V12H0Z\"/>";
  } else {
    out += Str("<path class=\"", LineClass(mark, index), "\" d=\"M0 6H30\"/>");
    if (mark == ChartMark::kDots) out += Str("<path class=\"dots ", look, "\" d=\"M15 6h0\"/>");
  }
  return out + "</svg>";
}

std::string Legend(const Chart& chart) {
  std::string out = "<ul class=\"legend\">";
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    out += Str("<li>", Swatch(chart.lines[i].mark, i), HtmlEscaped(chart.lines[i].name), "</li>");
  }
  return out + "</ul>";
}

std::string Dots(const std::vector<Point>& points, const Frame& frame) {
  std::string path;
  for (const Point& point : points) {
    if (!std::isfinite(point.y)) continue;
    path += 'M';
    Append(&path, frame.X(point.x));
    path += ' ';
    Append(&path, frame.Y(point.y));
    path += "h0";
  }
  return path;
}

void AppendMarks(const Chart& chart, const Frame& frame, const std::vector<std::vector<Point>>& stacked,
                 std::string* out) {
  size_t area = 0;
  for (size_t i = 0; i < chart.lines.size(); ++i) {
    const ChartLine& line = chart.lines[i];
    const std::string name = Str("\" data-name=\"", HtmlEscaped(line.name), "\" d=\"");
    if (line.mark == ChartMark::kArea) {
      std::vector<Point> below = stacked[area];
      if (area > 0) {
        below = stacked[area - 1];
      } else {
        for (Point& point : below) point.y = 0;
      }
      const std::string path = AreaPath(stacked[area++], below, frame);
      *out += Str("<path class=\"area k", i, name, path, "\"/>");
      if (i % 2 == 1) *out += Str("<path class=\"hatch\" d=\"", path, "\"/>");
      continue;
    }
    const std::string path = PathOf(line.points, frame);
    *out += Str("<path class=\"", LineClass(line.mark, i), name, path, "\"/>");
    const bool is_single = path.find('L') == std::string::npos;  // a line of one point is nothing to see
    if (line.mark == ChartMark::kDots || is_single) {
      *out += Str("<path class=\"dots k", i, "\" d=\"", Dots(line.points, frame), "\"/>");
    }
  }
}

}  // namespace

std::vector<std::vector<Point>> Stacked(const std::vector<ChartLine>& areas) {
  std::vector<std::vector<Point>> sums;
  for (const ChartLine& line : areas) {
    if (line.mark != ChartMark::kArea) continue;
    std::vector<Point> sum = line.points;
    for (size_t i = 0; i < sum.size(); ++i) {
      if (!std::isfinite(sum[i].y)) sum[i].y = 0;
      if (!sums.empty() && i < sums.back().size()) sum[i].y += sums.back()[i].y;
    }
    sums.push_back(std::move(sum));
  }
  return sums;
}

std::string ChartFigure(const Chart& chart) {
  const bool log = chart.log_above > 0 && IsFarFlung(chart.lines, chart.log_above);
  const std::vector<std::vector<Point>> stacked = Stacked(chart.lines);
  const Frame frame = FrameOf(chart, stacked, log);
  const std::string unit = Str(chart.unit, log ? ", logarithmic" : "");
  std::string words = Str("By ", chart.x_title, ", in ", unit, ". ");
  for (const ChartLine& line : chart.lines) words += InWords(chart, line) + " ";
  std::string out =
      Str("<figure class=\"chart\" id=\"chart-", chart.id, "\">\n<figcaption><h3>", HtmlEscaped(chart.title),
          "</h3> <span class=\"unit\">", HtmlEscaped(unit), "</span>", Legend(chart), "</figcaption>\n");
  out += Str("<svg class=\"plot\" viewBox=\"0 0 ", kWidth, " ", kHeight, "\" role=\"img\" aria-labelledby=\"", chart.id,
             "-title ", chart.id, "-words\"", ReadOutAttributes(chart, frame), "><title id=\"", chart.id, "-title\">",
             HtmlEscaped(chart.title), "</title><desc id=\"", chart.id, "-words\">", HtmlEscaped(words), "</desc>\n");
  AppendAxes(chart, frame, &out);
  out += "\n";
  AppendMarks(chart, frame, stacked, &out);
  out += "\n<path class=\"cursor\" d=\"\"/></svg>\n<p class=\"read\" aria-hidden=\"true\"></p>\n";
  if (!chart.note.empty()) out += Str("<p class=\"note\">", HtmlEscaped(chart.note), "</p>\n");
  return out + "</figure>\n";
}

}  // namespace tessera::examples
