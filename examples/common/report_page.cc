// SPDX-License-Identifier: Apache-2.0
#include "examples/common/report_page.h"

#include "examples/common/html.h"
#include "examples/common/report_style.h"
#include "tensor/error.h"

namespace tessera::examples {
namespace {

const char* StateClass(RunState state) {
  switch (state) {
    case RunState::kFinished:
      return "good";
    case RunState::kFailed:
      return "bad";
    default:
      return "busy";
  }
}

// Hatching for every second area, shared by the charts and their legends.
constexpr char kHatch[] =
    "<svg width=\"0\" height=\"0\" style=\"position:absolute\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" "
    "width=\"6\" "
    "height=\"6\" patternUnits=\"userSpaceOnUse\" patternTransform=\"rotate(45)\"><path d=\"M0 3H6\" "
    "style=\"stroke:var(--hatch);stroke-width:1.5;stroke-opacity:.5\"/></pattern></defs></svg>\n";

std::string Numbers(const std::vector<HeadlineNumber>& numbers) {
  std::string out = "<dl class=\"numbers\">\n";
  for (const HeadlineNumber& number : numbers) {
    out += Str("<div><dt>", HtmlEscaped(number.label), "</dt><dd><span class=\"big\">", HtmlEscaped(number.value),
               "</span> <span class=\"small\">", HtmlEscaped(number.note), "</span></dd></div>\n");
  }
  return out + "</dl>\n";
}

// Two columns, the first one heads the row.
std::string PairTable(const char* kind, const char* left, const char* right, const std::vector<Row>& rows) {
  std::string out = Str("<div class=\"card scroll\"><table class=\"", kind, "\"><thead><tr><th scope=\"col\">", left,
                        "</th><th scope=\"col\">", right, "</th></tr></thead><tbody>\n");
  for (const auto& [label, value] : rows) {
    out += Str("<tr><th scope=\"row\">", HtmlEscaped(label), "</th><td>", HtmlEscaped(value), "</td></tr>\n");
  }
  return out + "</tbody></table></div>\n";
}

std::string MemoryCard(const ReportPage& page) {
  return "<div class=\"chart\"><h3>Highest memory by kind</h3>\n" + PairTable("peaks", "Kind", "At most", page.memory) +
         Str("<p class=\"note\">", HtmlEscaped(page.memory_note), "</p></div>\n");
}

std::string Charts(const ReportPage& page) {
  std::string out = "<h2 id=\"charts\">Charts</h2>\n<div class=\"charts\">\n";
  for (const Chart& chart : page.charts) {
    out += ChartFigure(chart);
    if (chart.id == "memory" && !page.memory.empty()) out += MemoryCard(page);
  }
  return out + "</div>\n";
}

std::string Samples(const ReportPage& page) {
  if (page.samples.empty()) return "";
  std::string out = "<h2 id=\"samples\">What the model writes</h2>\n";
  if (!page.samples_note.empty()) out += Str("<p class=\"soft\">", HtmlEscaped(page.samples_note), "</p>\n");
  out += "<ol class=\"samples\">\n";
  for (auto sample = page.samples.rbegin(); sample != page.samples.rend(); ++sample) {  // the best one is the last
    out +=
        Str("<li><h3>After step ", WithCommas(sample->step), "</h3><div class=\"prompt\">going on from: <bdi>",
            HtmlEscaped(sample->prompt), "</bdi></div><pre dir=\"auto\">", HtmlEscaped(sample->text), "</pre></li>\n");
  }
  return out + "</ol>\n";
}

std::string Config(const std::vector<ConfigRow>& rows) {
  std::string set, defaults;
  int64_t default_count = 0;
  for (const ConfigRow& row : rows) {
    const std::string cells = Str("\"><th scope=\"row\">", HtmlEscaped(row.key), "</th><td>", HtmlEscaped(row.value),
                                  "</td><td>", HtmlEscaped(row.origin), "</td></tr>\n");
    (row.is_default ? defaults : set) += Str("<tr class=\"", row.is_default ? "default" : "set", cells);
    if (row.is_default) ++default_count;
  }
  constexpr char kHead[] =
      "<table class=\"config\"><thead><tr><th scope=\"col\">Key</th><th scope=\"col\">Value</th><th "
      "scope=\"col\">Where it "
      "comes from</th></tr></thead><tbody>\n";
  std::string out = "<h2 id=\"config\">Config</h2>\n<div class=\"card scroll\">";
  if (!set.empty()) out += Str(kHead, set, "</tbody></table>");
  if (!defaults.empty()) {
    out += Str("<details><summary>", default_count, " more at their defaults</summary>", kHead, defaults,
               "</tbody></table></details>");
  }
  return out + "</div>\n";
}

std::string NoticesAndSkips(const ReportPage& page) {
  std::string out = "<h2 id=\"notices\">Notices and skipped steps</h2>\n";
  if (page.notices.empty()) {
    out += "<p class=\"soft\">No notices.</p>\n";
  } else {
    out += "<ul class=\"card notices\">\n";
    for (const std::string& notice : page.notices) out += Str("<li>", HtmlEscaped(notice), "</li>\n");
    out += "</ul>\n";
  }
  if (page.skipped_count == 0) return out + "<p class=\"soft\">No step was skipped.</p>\n";
  std::vector<Row> rows;
  for (const SkippedStep& skipped : page.skipped) rows.emplace_back(WithCommas(skipped.step), skipped.reason);
  const int64_t more = page.skipped_count - static_cast<int64_t>(page.skipped.size());
  if (more > 0) rows.emplace_back("...", Str("and ", WithCommas(more), " more; metrics.csv has them all"));
  return out + Str("<h3>Skipped: ", WithCommas(page.skipped_count), "</h3>\n") +
         PairTable("skips", "Step", "Why", rows);
}

}  // namespace

std::string ReportHtml(const ReportPage& page) {
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n";
  out += "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n";
  out += "<meta name=\"color-scheme\" content=\"light dark\">\n";
  out += Str("<title>", HtmlEscaped(page.title), "</title>\n<style>", kReportStyle, "</style>\n</head>\n<body>\n",
             kHatch, "<main>\n");
  out += Str("<p class=\"kicker\">", HtmlEscaped(page.kicker), "</p>\n<h1>", HtmlEscaped(page.title), "</h1>\n");
  out += Str("<p class=\"state ", StateClass(page.state), "\">", HtmlEscaped(page.state_text), "</p>\n");
  out += Numbers(page.numbers);
  out += Charts(page);
  out += Samples(page);
  out += "<h2 id=\"run\">Run</h2>\n" + PairTable("facts", "What", "Value", page.facts);
  out += Config(page.config);
  out += NoticesAndSkips(page);
  return out + Str("</main>\n<script>", kReportScript, "</script>\n</body>\n</html>\n");
}

}  // namespace tessera::examples
