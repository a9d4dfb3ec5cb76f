// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer/strategy.h"

#include <string>
#include <vector>

#include "examples/common/flags.h"
#include "tensor/error.h"

namespace tessera::examples {
namespace {

struct Strategy {
  std::string_view name;
  int64_t stage;
};
constexpr Strategy kStrategies[] = {
    {"ddp", 0},
    {"deepspeed_stage_1", 1},
    {"deepspeed_stage_2", 2},
    {"deepspeed_stage_3", 3},
    {"zero1", 1},
    {"zero2", 2},
    {"zero3", 3},
    {"deepspeed", 2},
};

}  // namespace

int64_t StageOfStrategy(std::string_view name) {
  std::vector<std::string_view> names;
  for (const Strategy& strategy : kStrategies) {
    if (strategy.name == name) return strategy.stage;
    names.push_back(strategy.name);
  }
  if (name.find("offload") != std::string_view::npos) {
    // The longest of them, for "deepspeed" is a part of the others.
    std::string_view without;
    for (const std::string_view known : names) {
      if (name.starts_with(known) && known.size() > without.size()) without = known;
    }
    throw Error(Str("--strategy is ", name, ", but offload is not here yet: states and weights stay on the device",
                    without.empty() ? "" : Str("; ", without, " is the same without it")));
  }
  const std::string_view nearest = NearestName(name, names);
  throw Error(Str("--strategy is \"", name, "\", expected ddp, deepspeed_stage_1, _2 or _3, or zero1, zero2 or zero3",
                  nearest.empty() ? "" : Str("; did you mean ", nearest, "?")));
}

}  // namespace tessera::examples
