// SPDX-License-Identifier: Apache-2.0
// One JSON object on one line, whatever the values are: a number that JSON does not have becomes null with a note, bytes
// that are no UTF-8 become U+FFFD.
//
//   JsonLine line;
//   line.Whole("step", 3).Number("loss", std::nan("")).Begin("memory_bytes").Whole("states", 8).End();
//   line.Take();      // {"step":3,"loss":null,"loss_note":"NaN","memory_bytes":{"states":8}} and a line break
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace tessera::examples {

class JsonLine {
 public:
  JsonLine& Whole(std::string_view key, int64_t value);
  JsonLine& Number(std::string_view key, double value);
  JsonLine& Flag(std::string_view key, bool value);
  JsonLine& Text(std::string_view key, std::string_view value);
  JsonLine& Begin(std::string_view key);  // an object, up to End
  JsonLine& End();
  std::string Take();  // ends it, with a line break; the next one begins

 private:
  void Key(std::string_view key);
  std::string text_ = "{";
};

// With nine digits, which tell any two f32 apart. Not finite: "NaN", "Infinity", "-Infinity", which JSON does not have.
std::string NumberText(double value);
void AppendWhole(std::string* out, int64_t value);
void AppendNumber(std::string* out, double value);

// With the quotes.
std::string JsonText(std::string_view text);

}  // namespace tessera::examples
