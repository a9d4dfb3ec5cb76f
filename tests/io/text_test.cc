// SPDX-License-Identifier: Apache-2.0
#include "io/text.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "tensor/error.h"

namespace tessera::io {
namespace {
namespace fs = std::filesystem;

class TextTest : public ::testing::Test {
 protected:
  TextTest() {
    std::string pattern = (fs::temp_directory_path() / "tessera_text_XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~TextTest() override { fs::remove_all(folder_); }

  std::string Write(const std::string& name, std::string_view contents) {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << contents;
    return path.string();
  }
  std::string Path(const std::string& name = "") const { return (folder_ / name).string(); }
  static std::string Contents(const Corpus& corpus) {
    return std::string(corpus.contents->bytes().begin(), corpus.contents->bytes().end());
  }
  static std::string MessageOf(const std::string& path, const TextOptions& options = {}) {
    return std::string(OpenText(path, options).status().message());
  }

  fs::path folder_;
};

TEST_F(TextTest, AFileIsTakenAsItIs) {
  const Corpus corpus = ReadCorpus(Write("a.txt", std::string_view("x\0<|endoftext|>\xff", 16))).value();
  EXPECT_EQ(Contents(corpus), std::string("x\0<|endoftext|>\xff", 16));
}

TEST_F(TextTest, AFolderIsReadInTheOrderOfItsPathsWithSeparators) {
  Write("b.txt", "bb");
  Write("a/z.txt", "az");
  Write("a.txt", "a.");
  Write("B.txt", "B");
  const Corpus corpus = ReadCorpus(Path()).value();
  EXPECT_EQ(Contents(corpus), std::string("B\0a.\0az\0bb", 10));  // by bytes: 'B' < 'a', '.' < '/'
  EXPECT_EQ(corpus.file_count, 4);
  EXPECT_TRUE(corpus.notices.empty());
}

TEST_F(TextTest, BinaryFilesAreSkippedWithANotice) {
  Write("a.txt", "text");
  const std::string binary = Write("b.bin", std::string_view("\x7f"
                                                             "ELF\0",
                                                             5));
  const Corpus corpus = ReadCorpus(Path()).value();
  EXPECT_EQ(Contents(corpus), "text");
  EXPECT_THAT(corpus.notices,
              ::testing::ElementsAre("skipped \"" + binary + "\": it has a zero byte, so it is not text"));
}

TEST_F(TextTest, LinksHiddenFilesAndEmptyFilesArePassedOver) {
  Write("a.txt", "text");
  Write(".git/config", "hidden");
  Write(".hidden", "hidden");
  Write("empty", "");
  fs::create_symlink(Path("a.txt"), Path("link"));
  fs::create_directory_symlink(Path(), Path("loop"));
  EXPECT_EQ(Contents(ReadCorpus(Path()).value()), "text");
}

TEST_F(TextTest, WhatCannotBeReadIsNamed) {
  EXPECT_EQ(MessageOf(Path("none")), "cannot open \"" + Path("none") + "\": No such file or directory");
}

TEST_F(TextTest, EmptyInputsAreErrors) {
  const std::string empty = Write("sub/empty", "");
  EXPECT_EQ(ReadCorpus(empty).status().message(), Str("\"", empty, "\" is empty"));
  EXPECT_EQ(ReadCorpus(Path("sub")).status().message(),
            Str("\"", Path("sub"), "\" has no text: 1 files, 0 of them binary, the others empty"));
}

TEST_F(TextTest, APipeIsReadToItsEnd) {
  const std::string command = "/dev/fd/";
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  ASSERT_EQ(write(ends[1], "through a pipe", 14), 14);
  close(ends[1]);
  EXPECT_EQ(Contents(ReadCorpus(command + std::to_string(ends[0])).value()), "through a pipe");
  close(ends[0]);
}

TEST_F(TextTest, TheLastTenthIsForValidation) {
  const std::string path = Write("a.txt", std::string(9000, 'a') + std::string(1000, 'b'));
  const TextDatasets text = OpenText(path, {.sequence_tokens = 9}).value();
  EXPECT_EQ(text.train.token_count(), 9000);
  EXPECT_EQ(text.validation.token_count(), 1000);
  std::vector<int32_t> sample(10);
  text.validation.CopySample(0, sample);
  EXPECT_THAT(sample, ::testing::Each('b'));
  text.train.CopySample(text.train.size() - 1, sample);
  EXPECT_THAT(sample, ::testing::Each('a'));
}

TEST_F(TextTest, ValidationHasAtLeastOneSample) {
  const TextDatasets text = OpenText(Write("a.txt", std::string(300, 'a')), {.sequence_tokens = 100}).value();
  EXPECT_EQ(text.validation.size(), 1);
  EXPECT_EQ(text.train.size(), 1);
}

TEST_F(TextTest, TooShortATextIsAnErrorWithBothNumbers) {
  const std::string path = Write("a.txt", std::string(100, 'a'));
  EXPECT_EQ(
      MessageOf(path, {.sequence_tokens = 128}),
      "\"" + path + "\": the text has 100 tokens; sequence length 128 needs at least 129 (inputs and shifted targets)");
  EXPECT_EQ(MessageOf(path, {.sequence_tokens = 64}),
            "\"" + path +
                "\": the text has 100 tokens; a training and a validation part with sequence length 64 need at "
                "least 130");
}

TEST_F(TextTest, ABadFractionIsAnError) {
  EXPECT_THAT(MessageOf(Write("a.txt", std::string(100, 'a')), {.sequence_tokens = 2, .validation_fraction = 1}),
              ::testing::HasSubstr("the validation fraction is 1, expected a number between 0 and 1"));
}

}  // namespace
}  // namespace tessera::io
