// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <sys/stat.h>

#include "examples/common/html.h"
#include "examples/common/json_line.h"
#include "examples/common/metrics_writer.h"
#include "examples/common/report_page.h"
#include "examples/common/run_folder.h"
#include "examples/common/utf8.h"
#include "tensor/error.h"

namespace tessera::examples {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

const double kNan = std::nan(""), kInf = std::numeric_limits<double>::infinity();

std::string Contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream out;
  out << file.rdbuf();
  return out.str();
}

class RunFiles : public testing::Test {
 protected:
  RunFiles() {
    std::string pattern = testing::TempDir() + "run_files_XXXXXX";
    folder_ = mkdtemp(pattern.data());
  }
  ~RunFiles() override { std::filesystem::remove_all(folder_); }
  std::string folder_;
};

StepMetrics Metrics() {
  StepMetrics metrics{.step = 7,
                      .micro_steps = 14,
                      .loss = 2.5,
                      .grad_norm_before_clip = 0.75,
                      .clip_factor = 1,
                      .lr = 3e-4,
                      .loss_scale = 1,
                      .tokens = 7168,
                      .tokens_per_s = 1000.5,
                      .step_ms = 18.25,
                      .elapsed_s = 1.5};
  metrics.memory_bytes[static_cast<size_t>(MemoryTag::kStates)] = 4096;
  metrics.memory_peak_bytes[static_cast<size_t>(MemoryTag::kGatherSlots)] = 8192;
  return metrics;
}

TEST(JsonLine, IsLegalWhateverItsValues) {
  const std::string line = JsonLine()
                               .Whole("whole", std::numeric_limits<int64_t>::min())
                               .Number("nan", kNan)
                               .Number("inf", -kInf)
                               .Number("small", 1e-300)
                               .Flag("flag", true)
                               .Text("text", "\"\\\n\t\x01\x7F\xFF<\xC3\xA9{")
                               .Begin("object")
                               .End()
                               .Begin("other")
                               .Whole("x", 1)
                               .End()
                               .Take();
  EXPECT_EQ(std::count(line.begin(), line.end(), '\n'), 1);
  const json read = json::parse(line);
  EXPECT_TRUE(read["nan"].is_null());
  EXPECT_EQ(read["nan_note"], "NaN");
  EXPECT_EQ(read["inf_note"], "-Infinity");
  EXPECT_EQ(read["small"], 1e-300);
  EXPECT_EQ(read["text"], "\"\\\n\t\x01\x7F\xEF\xBF\xBD<\xC3\xA9{");
  EXPECT_EQ(read["other"]["x"], 1);
}

TEST(JsonLine, ATakenLineLeavesAnEmptyOne) {
  JsonLine line;
  line.Whole("a", 1);
  EXPECT_EQ(line.Take(), "{\"a\":1}\n");
  EXPECT_EQ(line.Whole("b", 2).Take(), "{\"b\":2}\n");
}

TEST(JsonLine, NineDigitsTellFloatsApart) {
  EXPECT_EQ(NumberText(0.1), "0.1");
  EXPECT_EQ(NumberText(100), "100");
  EXPECT_NE(NumberText(1.0f), NumberText(std::nextafter(1.0f, 2.0f)));
}

TEST(Utf8, WhatIsIllegalIsReplaced) {
  EXPECT_EQ(ValidUtf8("a\xC3\xA9\xE2\x82\xAC"), "a\xC3\xA9\xE2\x82\xAC");
  EXPECT_EQ(ValidUtf8("\xC3"), "\xEF\xBF\xBD");
  EXPECT_EQ(ValidUtf8("\xED\xA0\x80").substr(0, 3), "\xEF\xBF\xBD");
}

TEST(Html, TextNeverBecomesMarkup) {
  EXPECT_EQ(HtmlEscaped("<script>alert('x' && \"y\")</script>"),
            "&lt;script&gt;alert(&#39;x&#39; &amp;&amp; &quot;y&quot;)&lt;/script&gt;");
  EXPECT_EQ(HtmlEscaped(std::string_view("a\0\x1b[1mb\n\xFF", 9)), "a\xEF\xBF\xBD\xEF\xBF\xBD[1mb\n\xEF\xBF\xBD");
}

TEST(Metrics, TheTableHasAFieldForEveryNameOfItsHeader) {
  const std::string header = CsvHeader(), line = CsvLine(Metrics());
  EXPECT_THAT(header,
              testing::StartsWith("step,micro_steps,loss,grad_norm_before_clip,clip_factor,lr,loss_scale,skipped,"
                                  "tokens,tokens_per_s,step_ms,elapsed_s,memory_bytes.parameters,"));
  EXPECT_EQ(std::count(header.begin(), header.end(), ','), std::count(line.begin(), line.end(), ','));
  EXPECT_THAT(line, testing::StartsWith("7,14,2.5,0.75,1,0.0003,1,0,7168,1000.5,18.25,1.5,0,0,4096,"));
}

TEST(Metrics, TheObjectHasTheNamesOfTheTable) {
  const json object = json::parse(JsonLineOf(Metrics()));
  std::stringstream header(CsvHeader());
  for (std::string name; std::getline(header, name, ',');) {
    while (name.ends_with('\n')) name.pop_back();
    const size_t dot = name.find('.');
    EXPECT_TRUE(dot == std::string::npos ? object.contains(name)
                                         : object[name.substr(0, dot)].contains(name.substr(dot + 1)))
        << name;
  }
  EXPECT_EQ(object["memory_bytes"]["states"], 4096);
  EXPECT_EQ(object["memory_peak_bytes"]["gather_slots"], 8192);
}

TEST(Metrics, ValuesThatAreNotFiniteAreNullWithANoteAndEmptyFields) {
  StepMetrics metrics = Metrics();
  metrics.loss = kNan;
  metrics.grad_norm_before_clip = -1;  // the engine's sign of one that is not finite
  metrics.tokens_per_s = kInf;
  const json object = json::parse(JsonLineOf(metrics));
  EXPECT_TRUE(object["loss"].is_null());
  EXPECT_EQ(object["loss_note"], "NaN");
  EXPECT_TRUE(object["grad_norm_before_clip"].is_null());
  EXPECT_EQ(object["tokens_per_s_note"], "Infinity");
  EXPECT_THAT(CsvLine(metrics), testing::StartsWith("7,14,,,1,"));
  EXPECT_TRUE(json::parse(JsonLineOf(ValidationMetrics{.step = 1, .loss = 1e9}))["perplexity"].is_null());
  EXPECT_EQ(json::parse(JsonLineOf(SampleMetrics{.text = "\"</\xFF"}))["text"], "\"</\xEF\xBF\xBD");
}

TEST_F(RunFiles, MetricsAreWholeLines) {
  {
    MetricsWriter writer(folder_);
    writer.Validation({.step = 0, .loss = 5.5});
    EXPECT_THAT(Contents(folder_ + "/metrics.jsonl"), HasSubstr("\"validation_loss\":5.5"));  // at once
    for (int i = 0; i < 3; ++i) writer.Step(Metrics());
    EXPECT_EQ(writer.problem(), "");
  }
  std::stringstream lines(Contents(folder_ + "/metrics.jsonl"));
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) EXPECT_TRUE(json::accept(line)) << line;
  EXPECT_EQ(count, 4);
  EXPECT_EQ(Contents(folder_ + "/metrics.csv"),
            CsvHeader() + CsvLine(Metrics()) + CsvLine(Metrics()) + CsvLine(Metrics()));
}

TEST_F(RunFiles, AFullDiskIsToldOnceAndEndsNothing) {
  if (access("/dev/full", W_OK) != 0) GTEST_SKIP() << "there is no /dev/full here";
  std::filesystem::create_symlink("/dev/full", folder_ + "/metrics.jsonl");
  MetricsWriter writer(folder_);
  writer.Validation({.step = 0, .loss = 5.5});
  EXPECT_THAT(writer.problem(), HasSubstr("metrics.jsonl"));
  writer.Step(Metrics());
  writer.Flush();
  EXPECT_EQ(Contents(folder_ + "/metrics.csv"), CsvHeader() + CsvLine(Metrics()));
}

TEST_F(RunFiles, AFolderInUseGetsACounter) {
  const std::string wanted = folder_ + "/a/b/run";
  EXPECT_EQ(MakeRunFolder(wanted), wanted);
  EXPECT_EQ(MakeRunFolder(wanted + "/"), wanted);  // an empty one is used
  WriteFileAtomically(wanted + "/file", "x");
  EXPECT_EQ(MakeRunFolder(wanted), wanted + "-2");
  WriteFileAtomically(wanted + "-2/file", "x");
  EXPECT_EQ(MakeRunFolder(wanted), wanted + "-3");
}

TEST_F(RunFiles, APlaceThatCannotBeWrittenIsOneLine) {
  WriteFileAtomically(folder_ + "/file", "x");
  for (const std::string& place : {folder_ + "/file", folder_ + "/file/run", std::string("/proc/none/run")}) {
    try {
      MakeRunFolder(place);
      ADD_FAILURE() << place;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(place));
      EXPECT_THAT(error.what(), HasSubstr("--norun_dir"));
      EXPECT_THAT(error.what(), Not(HasSubstr("\n")));
    }
  }
}

TEST_F(RunFiles, TheFoldersNameIsTimeAndModel) {
  setenv("TZ", "UTC", 1);
  EXPECT_EQ(DefaultRunFolder("gpt-tiny", 1796003527), "runs/2026-11-30_01-52-07_gpt-tiny");
  EXPECT_EQ(DefaultRunFolder("a/../b c", 0), "runs/1970-01-01_00-00-00_a-..-b-c");
}

TEST_F(RunFiles, AFileIsReplacedAsAWhole) {
  const std::string path = folder_ + "/report.html";
  WriteFileAtomically(path, "first");
  WriteFileAtomically(path, "second");
  EXPECT_EQ(Contents(path), "second");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);
  EXPECT_THROW(WriteFileAtomically(folder_ + "/no/report.html", ""), Error);
}

TEST(Report, AllTextIsEscaped) {
  const std::string bad = "<img src=http://x onerror=alert(1)>\"'&\xFF";
  ReportPage page{.title = bad,
                  .kicker = bad,
                  .state_text = bad,
                  .numbers = {{bad, bad, bad}},
                  .charts = {{.id = "c",
                              .title = bad,
                              .unit = bad,
                              .x_title = bad,
                              .note = bad,
                              .lines = {{bad, ChartMark::kLine, {{1, 2}, {2, 3}}}}}},
                  .memory = {{bad, bad}},
                  .memory_note = bad,
                  .samples = {{1, bad, bad}},
                  .samples_note = bad,
                  .facts = {{bad, bad}},
                  .config = {{bad, bad, bad, false}, {bad, bad, bad, true}},
                  .notices = {bad},
                  .skipped = {{1, bad}},
                  .skipped_count = 9};
  const std::string html = ReportHtml(page);
  EXPECT_THAT(html, Not(HasSubstr("<img")));
  EXPECT_THAT(html, Not(HasSubstr("\xFF")));
  EXPECT_THAT(html, HasSubstr("and 8 more"));
}

TEST(Report, AnEmptyRunIsAPageToo) {
  const std::string html = ReportHtml({});
  EXPECT_THAT(html, HasSubstr("No notices."));
  EXPECT_THAT(html, testing::EndsWith("</html>\n"));
}

}  // namespace
}  // namespace tessera::examples
