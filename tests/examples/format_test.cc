// SPDX-License-Identifier: Apache-2.0
#include "examples/common/format.h"

#include <cmath>

#include <gtest/gtest.h>

namespace tessera::examples {
namespace {

TEST(Format, NumbersReadAsAPersonWritesThem) {
  EXPECT_EQ(WithCommas(0), "0");
  EXPECT_EQ(WithCommas(999), "999");
  EXPECT_EQ(WithCommas(4096), "4,096");
  EXPECT_EQ(WithCommas(-1234567), "-1,234,567");
  EXPECT_EQ(WithCommas(-123), "-123");

  EXPECT_EQ(Compact(0), "0");
  EXPECT_EQ(Compact(812.4), "812");
  EXPECT_EQ(Compact(999.6), "1.00k");
  EXPECT_EQ(Compact(41234), "41.2k");
  EXPECT_EQ(Compact(412340), "412k");
  EXPECT_EQ(Compact(1.2e6), "1.20M");
  EXPECT_EQ(Compact(std::nan("")), "n/a");

  EXPECT_EQ(Short(2.9e-4), "2.9e-4");
  EXPECT_EQ(Short(3e-4), "3e-4");
  EXPECT_EQ(Short(1e-10), "1e-10");
  EXPECT_EQ(Short(0.001), "0.001");
  EXPECT_EQ(Short(0.0123), "0.012");
  EXPECT_EQ(Short(3), "3");
  EXPECT_EQ(Short(0), "0");

  EXPECT_EQ(Fixed(3.4116, 3), "3.412");
  EXPECT_EQ(Fixed(1.5e9, 3), "1.5e+09");
  EXPECT_EQ(Fixed(std::nan(""), 3), "nan");
  EXPECT_EQ(Fixed(-INFINITY, 3), "-inf");
}

TEST(Format, TimesAndBytes) {
  EXPECT_EQ(Duration(7.4), "0:07");
  EXPECT_EQ(Duration(59.6), "1:00");
  EXPECT_EQ(Duration(108), "1:48");
  EXPECT_EQ(Duration(7390), "2:03:10");
  EXPECT_EQ(Duration(INFINITY), "n/a");
  EXPECT_EQ(Milliseconds(8.23), "8.2 ms");
  EXPECT_EQ(Milliseconds(124.4), "124 ms");
  EXPECT_EQ(Milliseconds(12345), "12.3 s");
  EXPECT_EQ(Bytes(512), "512 B");
  EXPECT_EQ(Bytes(5195520), "5.2 MB");
  EXPECT_EQ(Bytes(124439808), "124 MB");
}

TEST(Format, ColumnsAreCharacters) {
  EXPECT_EQ(Columns("micro 32 × accum 1"), 18);
  EXPECT_EQ(FitColumns("abcdef", 6), "abcdef");
  EXPECT_EQ(FitColumns("abcdefg", 6), "abc...");
  EXPECT_EQ(FitColumns("××××××××", 6), "×××...");
  EXPECT_EQ(FitColumns("abcdefg", 2), "..");
  EXPECT_EQ(FitColumns("abcdefg", 0), "abcdefg");
}

TEST(Format, WrapBreaksAtBlanks) {
  using Lines = std::vector<std::string>;
  EXPECT_EQ(Wrap("", 5), Lines{""});
  EXPECT_EQ(Wrap("in the beginning", 6), (Lines{"in the", "beginn", "ing"}));
  EXPECT_EQ(Wrap("a  b", 2), (Lines{"a", "b"}));
  EXPECT_EQ(Wrap("one\n\ntwo", 9), (Lines{"one", "", "two"}));
  EXPECT_EQ(Wrap("×× ××", 3), (Lines{"××", "××"}));
  EXPECT_EQ(Wrap("never broken", 0), Lines{"never broken"});
}

TEST(Format, NoLineOfATableIsWiderThanAsked) {
  const std::vector<Row> rows = {
      {"model", "4 layers"},
      {"batch", "global 32 = micro 32 × accum 1 × ranks 1 (4,096 tokens/step) and some more text"}};
  const std::string table = Table("Title", rows, 40);
  EXPECT_EQ(table,
            "Title\n"
            "  model  4 layers\n"
            "  batch  global 32 = micro 32 × accum 1\n"
            "         × ranks 1 (4,096 tokens/step)\n"
            "         and some more text\n");
}

std::string PrintableOf(std::string_view text) {
  std::vector<int64_t> bytes;
  for (char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return Printable(bytes);
}

TEST(Format, PrintableLetsNoControlThrough) {
  EXPECT_EQ(PrintableOf("plain text\n"), "plain text\n");
  EXPECT_EQ(PrintableOf("\x1b[31mred\r\x7f"), "?[31mred??");
  EXPECT_EQ(PrintableOf("ein Stück — naïve 😀"), "ein Stück — naïve 😀");
  EXPECT_EQ(PrintableOf("\xc3"), "?");
  EXPECT_EQ(PrintableOf("\xc3(\xff\xe2\x82"), "?(???");
  EXPECT_EQ(PrintableOf("\xc0\xaf"), "??") << "overlong";
  EXPECT_EQ(PrintableOf("\xc2\x9b"), "??") << "a control character in two bytes";
  EXPECT_EQ(PrintableOf("\xed\xa0\x80"), "???") << "a surrogate";
  EXPECT_EQ(PrintableOf(std::string_view("a\0b", 3)), "a\nb");
}

TEST(Format, ShellQuotedIsOneWord) {
  EXPECT_EQ(ShellQuoted("/data/book-1.txt"), "/data/book-1.txt");
  EXPECT_EQ(ShellQuoted("my book.txt"), "'my book.txt'");
  EXPECT_EQ(ShellQuoted("it's"), "'it'\\''s'");
  EXPECT_EQ(ShellQuoted(""), "''");
}

}  // namespace
}  // namespace tessera::examples
