// SPDX-License-Identifier: Apache-2.0
#include "examples/common/progress.h"

#include <cmath>
#include <cstdlib>
#include <string>

#include <gtest/gtest.h>

#include "examples/common/format.h"

namespace tessera::examples {
namespace {

const StepReport kReport = {.step = 120,
                            .max_steps = 1000,
                            .loss = 3.4119,
                            .grad_norm = 0.8712,
                            .lr = 2.9e-4,
                            .tokens_per_s = 41234,
                            .step_ms = 124.3,
                            .elapsed_s = 15,
                            .fraction = 0.12};

TEST(StepLine, SaysItAllWhereThereIsRoom) {
  const char* line = "step 120/1000 | loss 3.412 | gnorm 0.87 | lr 2.9e-4 | 41.2k tok/s | 124 ms | ETA 1:50";
  EXPECT_EQ(StepLine(kReport, 0), line);
  EXPECT_EQ(StepLine(kReport, 120), line);
}

TEST(StepLine, LeavesOutWhatDoesNotFit) {
  EXPECT_EQ(StepLine(kReport, 80), "step 120/1000 | loss 3.412 | gnorm 0.87 | lr 2.9e-4 | 41.2k tok/s | ETA 1:50");
  EXPECT_EQ(StepLine(kReport, 66), "step 120/1000 | loss 3.412 | lr 2.9e-4 | 41.2k tok/s | ETA 1:50");
  EXPECT_EQ(StepLine(kReport, 28), "step 120/1000 | loss 3.412");
  for (int columns = 1; columns < 100; ++columns) EXPECT_LE(Columns(StepLine(kReport, columns)), columns);
}

TEST(StepLine, ATimeLimitHasNoLastStep) {
  StepReport report = kReport;
  report.max_steps = 0;
  report.tokens_per_s = std::nan("");
  report.fraction = 0;
  EXPECT_EQ(StepLine(report, 0), "step 120 | loss 3.412 | gnorm 0.87 | lr 2.9e-4 | n/a tok/s | 124 ms | ETA n/a");
}

TEST(Bar, FillsTheWidth) {
  EXPECT_EQ(Bar(0.5, 60, 50), "[===========>          ]  50 %  1:00 of about 2:00");
  EXPECT_EQ(Bar(0, 0, 50), "[>                      ]   0 %  0:00 of about n/a");
  EXPECT_EQ(Bar(1, 120, 50), "[======================] 100 %  2:00 of about 2:00");
  for (int columns = 1; columns < 120; ++columns) EXPECT_LE(Columns(Bar(0.3, 100, columns)), columns);
}

TEST(ValidationLine, GivesLossAndPerplexity) {
  EXPECT_EQ(ValidationLine(250, 1.6094379, true),
            "step 250 | validation loss 1.609 nats/byte | perplexity 5.00 | best so far");
  EXPECT_EQ(ValidationLine(250, 1.6094379, false), "step 250 | validation loss 1.609 nats/byte | perplexity 5.00");
}

class ProgressTest : public ::testing::Test {
 protected:
  ProgressTest() : stream_(open_memstream(&text_, &size_)) {}
  ~ProgressTest() override {
    std::fclose(stream_);
    std::free(text_);
  }
  std::string Written() {
    std::fflush(stream_);
    return {text_, size_};
  }
  static StepReport At(int64_t step, double elapsed_s) {
    StepReport report = kReport;
    report.step = step;
    report.elapsed_s = elapsed_s;
    return report;
  }

  char* text_ = nullptr;
  size_t size_ = 0;
  std::FILE* stream_;
};

TEST_F(ProgressTest, WritesPlainLinesEverySoOftenAndTheLastStep) {
  {
    Progress progress(stream_, {}, 10);
    for (int i = 1; i <= 25; ++i) progress.Step(At(i, i));
    progress.Print("validation");
    progress.Finish();
  }
  const std::string expected = StepLine(At(1, 1), 0) + "\n" + StepLine(At(11, 11), 0) + "\n" + StepLine(At(21, 21), 0) +
                               "\nvalidation\n" + StepLine(At(25, 25), 0) + "\n";
  EXPECT_EQ(Written(), expected);
}

TEST_F(ProgressTest, TheLastStepIsNotWrittenTwice) {
  {
    Progress progress(stream_, {}, 10);
    progress.Step(At(1, 1));
  }
  EXPECT_EQ(Written(), StepLine(At(1, 1), 0) + "\n");
}

TEST_F(ProgressTest, OnATerminalDrawsOverItselfAndKeepsPrintedLines) {
  const Terminal terminal{.interactive = true, .color = false, .columns = 80};
  Progress progress(stream_, terminal);
  progress.Step(At(1, 1));
  const std::string drawn = StepLine(At(1, 1), 79) + "\n" + Bar(0.12, 1, 79);
  EXPECT_EQ(Written(), drawn);
  progress.Step(At(2, 1.01));  // too soon to draw
  EXPECT_EQ(Written(), drawn);
  progress.Print("kept");
  const std::string erase = "\r\x1b[2K\x1b[1A\x1b[2K";
  const std::string again = StepLine(At(2, 1.01), 79) + "\n" + Bar(0.12, 1.01, 79);
  EXPECT_EQ(Written(), drawn + erase + "kept\n" + again);
  progress.Finish();
  EXPECT_EQ(Written(), drawn + erase + "kept\n" + again + erase + StepLine(At(2, 1.01), 80) + "\n");
}

TEST_F(ProgressTest, UsesColorOnlyWhereItIsWelcome) {
  Progress progress(stream_, {.interactive = true, .color = true, .columns = 80});
  progress.Step(At(1, 1));
  EXPECT_NE(Written().find("\x1b[2m["), std::string::npos);
  progress.Finish();
}

}  // namespace
}  // namespace tessera::examples
