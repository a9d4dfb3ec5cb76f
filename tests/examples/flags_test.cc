// SPDX-License-Identifier: Apache-2.0
#include "examples/common/flags.h"

#include <cstdint>
#include <optional>

#include <gtest/gtest.h>

#include "absl/flags/flag.h"
#include "examples/common/format.h"

ABSL_FLAG(int64_t, batch_size, 16, "sequences in a step");
ABSL_FLAG(double, lr, 0.5, "highest learning rate, with a text that is long enough to fill more than one line of help");
ABSL_FLAG(std::optional<int64_t>, max_steps, std::nullopt, "steps");
ABSL_FLAG(bool, recompute, false, "recompute activations");
ABSL_FLAG(std::string, data, "", "text");

namespace tessera::examples {
namespace {

const std::vector<FlagGroup> kGroups = {{"Training", {"batch_size", "lr", "max_steps"}},
                                        {"Other", {"recompute", "data"}}};

std::string ErrorFor(std::vector<const char*> arguments) {
  std::vector<char*> pointers;
  for (const char* argument : arguments) pointers.push_back(const_cast<char*>(argument));
  return FlagError(pointers, kGroups);
}

TEST(Flags, LegalArgumentsHaveNoError) {
  EXPECT_EQ(ErrorFor({}), "");
  EXPECT_EQ(ErrorFor({"--batch_size=3", "--lr", "1e-3", "-data", "--odd--", "--recompute", "--max_steps=7"}), "");
  EXPECT_EQ(ErrorFor({"--norecompute", "--recompute=false", "--lr", "-1"}), "");
  EXPECT_EQ(ErrorFor({"--data=", "--", "anything"}), "");
}

TEST(Flags, AnUnknownFlagNamesTheNearest) {
  EXPECT_EQ(ErrorFor({"--batchsize=3"}), "unknown flag --batchsize; did you mean --batch_size?");
  EXPECT_EQ(ErrorFor({"--batch-size", "3"}), "unknown flag --batch-size; did you mean --batch_size?");
  EXPECT_EQ(ErrorFor({"--max_step", "3"}), "unknown flag --max_step; did you mean --max_steps?");
  EXPECT_EQ(ErrorFor({"--batch"}), "unknown flag --batch; did you mean --batch_size?");
  EXPECT_EQ(ErrorFor({"--hlep"}), "unknown flag --hlep; did you mean --help?");
  EXPECT_EQ(ErrorFor({"--zzzzzz"}), "unknown flag --zzzzzz; --help lists them all");
  EXPECT_EQ(ErrorFor({"--nolr"}), "unknown flag --nolr; did you mean --lr?");
}

TEST(Flags, ABadValueSaysWhatIsLegal) {
  EXPECT_EQ(ErrorFor({"--batch_size=3.5"}), "--batch_size is \"3.5\", expected a whole number");
  EXPECT_EQ(ErrorFor({"--lr", "abc"}), "--lr is \"abc\", expected a number");
  EXPECT_EQ(ErrorFor({"--max_steps=x"}), "--max_steps is \"x\", expected a whole number");
  EXPECT_EQ(ErrorFor({"--recompute=2"}), "--recompute is \"2\", expected true or false");
  EXPECT_EQ(ErrorFor({"--lr"}), "--lr wants a value: a number");
  EXPECT_EQ(ErrorFor({"text.txt"}), "unexpected argument \"text.txt\": every flag begins with --, as in --help");
}

TEST(Flags, HelpIsGroupedWithDefaultsInEightyColumns) {
  const std::string help = HelpText("trainer", "Trains.", kGroups, 80);
  EXPECT_EQ(help,
            "trainer: Trains.\n"
            "\n"
            "Training\n"
            "  --batch_size  sequences in a step (default: 16)\n"
            "  --lr          highest learning rate, with a text that is long enough to fill\n"
            "                more than one line of help (default: 0.5)\n"
            "  --max_steps   steps\n"
            "\n"
            "Other\n"
            "  --recompute  recompute activations (default: false)\n"
            "  --data       text\n");
  for (const std::string& line : Wrap(help, 0)) EXPECT_LE(Columns(line), 80);
}

}  // namespace
}  // namespace tessera::examples
