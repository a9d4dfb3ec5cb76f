// SPDX-License-Identifier: Apache-2.0
// Values that a config file leaves to the trainer with "auto", by the rules of DeepSpeed's integrations.
//
//   zero::AutoKeys autos;
//   zero::Config config = zero::Config::FromFile("ds_config.json", &autos).value();
//   ... the flags are merged, the batch is resolved ...
//   ResolveAutoValues(autos, flags, fallbacks, &config);      // config.origins tells each rule
#pragma once

#include "examples/trainer/run_config.h"
#include "zero/config.h"

namespace tessera::examples {

// Fills what no flag has filled. A key without a rule here, or whose rule lacks what it needs, is an Error.
void ResolveAutoValues(const zero::AutoKeys& autos, const ConfigFlags& flags, const ConfigFallbacks& fallbacks,
                       zero::Config* config);

}  // namespace tessera::examples
