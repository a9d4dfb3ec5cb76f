// SPDX-License-Identifier: Apache-2.0
// Command-line flags with a help text by topic and one-line errors.
//
//   ABSL_FLAG(double, lr, 1e-3, "highest learning rate");
//   const FlagGroup groups[] = {{"Optimizer", {"lr"}}};
//   ParseFlags(argc, argv, "Trains a model.", groups);      // prints and exits on --help and on errors
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace tessera::examples {

struct FlagGroup {
  const char* title;
  std::vector<const char*> flags;
};

void ParseFlags(int argc, char** argv, const char* usage, std::span<const FlagGroup> groups);

// The parts of it. `program` is the name in front.
std::string HelpText(std::string_view program, const char* usage, std::span<const FlagGroup> groups, int columns);
// One line about the first argument that is not legal; empty when all are.
std::string FlagError(std::span<char* const> arguments, std::span<const FlagGroup> groups);
// The candidate that a mistyped name most likely means; empty when none is near.
std::string_view NearestName(std::string_view name, std::span<const std::string_view> candidates);

}  // namespace tessera::examples
