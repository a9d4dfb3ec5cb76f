// SPDX-License-Identifier: Apache-2.0
// The trainer that the language models share: flags, start table, the loop over the engine, validation, sample, end table.
#pragma once

#include "examples/trainer/model_choice.h"

namespace tessera::examples {

// The whole program; returns its exit status.
int TrainerMain(int argc, char** argv, const Program& program);

}  // namespace tessera::examples
