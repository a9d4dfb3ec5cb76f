// SPDX-License-Identifier: Apache-2.0
#include "examples/common/flags.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/parse.h"
#include "absl/flags/reflection.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "examples/common/format.h"
#include "examples/common/terminal.h"
#include "tensor/edit_distance.h"
#include "tensor/error.h"

namespace tessera::examples {
namespace {

template <class T>
bool Holds(const absl::CommandLineFlag& flag) {
  return flag.IsOfType<T>() || flag.IsOfType<std::optional<T>>();
}

const char* ExpectedValue(const absl::CommandLineFlag& flag) {
  if (Holds<int64_t>(flag) || Holds<int32_t>(flag)) return "a whole number";
  if (Holds<uint64_t>(flag)) return "a whole number, 0 or more";
  if (Holds<double>(flag)) return "a number";
  if (Holds<bool>(flag)) return "true or false";
  return "another value";
}

std::vector<std::string_view> KnownNames(std::span<const FlagGroup> groups) {
  std::vector<std::string_view> names;
  for (const FlagGroup& group : groups) names.insert(names.end(), group.flags.begin(), group.flags.end());
  names.push_back("help");
  return names;
}

bool IsHelp(std::string_view argument) {
  return argument == "--help" || argument == "-help" || argument == "-h" || argument == "--h";
}

// Case and the kind of dash do not matter, and "batchsize" is "batch_size".
std::string Normal(std::string_view name) {
  std::string out;
  for (char c : name) {
    if (c != '-' && c != '_') out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

std::string Quoted(std::string_view text) { return Str("\"", text, "\""); }

}  // namespace

std::string_view NearestName(std::string_view name, std::span<const std::string_view> candidates) {
  const std::string wanted = Normal(name);
  std::string_view best;
  size_t best_distance = std::max<size_t>(2, wanted.size() / 3) + 1;
  for (std::string_view candidate : candidates) {
    const std::string normal = Normal(candidate);
    size_t distance = EditDistance(wanted, normal);
    if (wanted.size() >= 3 && normal.starts_with(wanted)) distance = std::min<size_t>(distance, 1);
    if (distance < best_distance && distance < wanted.size()) {
      best = candidate;
      best_distance = distance;
    }
  }
  return best;
}

std::string FlagError(std::span<char* const> arguments, std::span<const FlagGroup> groups) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view argument = arguments[i];
    if (argument == "--") return "";
    if (!argument.starts_with('-') || argument == "-") {
      return Str("unexpected argument ", Quoted(argument), ": every flag begins with --, as in --help");
    }
    std::string_view name = argument.substr(argument.starts_with("--") ? 2 : 1);
    std::optional<std::string> value;
    if (const size_t equals = name.find('='); equals != std::string_view::npos) {
      value = std::string(name.substr(equals + 1));
      name = name.substr(0, equals);
    }
    absl::CommandLineFlag* flag = absl::FindCommandLineFlag(absl::string_view(name.data(), name.size()));
    if (flag == nullptr && name.starts_with("no")) {  // --norecompute
      flag = absl::FindCommandLineFlag(absl::string_view(name.data() + 2, name.size() - 2));
      if (flag != nullptr && (!flag->IsOfType<bool>() || value)) flag = nullptr;
      if (flag != nullptr) continue;
    }
    if (flag == nullptr) {
      const std::vector<std::string_view> known = KnownNames(groups);
      const std::string_view nearest = NearestName(name, known);
      if (nearest.empty()) return Str("unknown flag --", name, "; --help lists them all");
      return Str("unknown flag --", name, "; did you mean --", nearest, "?");
    }
    if (!value && flag->IsOfType<bool>()) continue;
    if (!value) {
      if (++i == arguments.size()) return Str("--", name, " wants a value: ", ExpectedValue(*flag));
      value = arguments[i];
    }
    if (std::string ignored; !flag->ParseFrom(*value, &ignored)) {
      return Str("--", name, " is ", Quoted(*value), ", expected ", ExpectedValue(*flag));
    }
  }
  return "";
}

std::string HelpText(std::string_view program, const char* usage, std::span<const FlagGroup> groups, int columns) {
  std::string out;
  for (const std::string& line : Wrap(Str(program, ": ", usage), columns)) out += Str(line, "\n");
  for (const FlagGroup& group : groups) {
    out += Str("\n", group.title, "\n");
    std::vector<Row> rows;
    for (const char* name : group.flags) {
      const absl::CommandLineFlag* flag = absl::FindCommandLineFlag(name);
      if (flag == nullptr) continue;
      std::string text = flag->Help();
      const std::string value = flag->DefaultValue();
      if (!value.empty()) text += Str(" (default: ", value, ")");
      rows.emplace_back(Str("--", name), text);
    }
    out += Table("", rows, columns);
  }
  return out;
}

void ParseFlags(int argc, char** argv, const char* usage, std::span<const FlagGroup> groups) {
  std::string_view program = argv[0];
  program = program.substr(program.rfind('/') + 1);
  const std::span<char* const> arguments(argv + 1, static_cast<size_t>(argc - 1));
  if (std::any_of(arguments.begin(), arguments.end(), [](const char* argument) { return IsHelp(argument); })) {
    std::fputs(HelpText(program, usage, groups, Terminal::Of(stdout).text_columns()).c_str(), stdout);
    std::exit(0);
  }
  if (const std::string error = FlagError(arguments, groups); !error.empty()) {
    std::fprintf(stderr, "%.*s: %s\n", static_cast<int>(program.size()), program.data(), error.c_str());
    std::exit(2);
  }
  absl::SetProgramUsageMessage(usage);
  absl::ParseCommandLine(argc, argv);
}

}  // namespace tessera::examples
