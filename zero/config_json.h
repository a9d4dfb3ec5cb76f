// SPDX-License-Identifier: Apache-2.0
// A config as it is used, written back: as JSON that reads as the same config, and value by value with where each came
// from.
//
//   ConfigToJson(config)                          // FromJson of it gives the same values
//   for (const ConfigEntry& entry : ConfigEntries(config)) ... entry.path, entry.value, entry.origin
#pragma once

#include <string>
#include <vector>

#include "zero/config.h"

namespace tessera::zero {

struct ConfigEntry {
  std::string path;    // "zero_optimization.stage"
  std::string value;   // as JSON writes it
  std::string origin;  // "ds_config.json:3", "--zero_stage", "derived: 4 x 8 x 2", ...; "default"
  bool is_default() const { return origin == "default"; }
};

// Every value that the config has, in the order of the table of keys. Absent ones are left out: they follow others.
std::vector<ConfigEntry> ConfigEntries(const Config& config);

std::string ConfigToJson(const Config& config);
// {"zero_optimization.stage": {"value": 3, "origin": "ds_config.json:3"}, ...}
std::string ConfigOriginsToJson(const Config& config);

}  // namespace tessera::zero
