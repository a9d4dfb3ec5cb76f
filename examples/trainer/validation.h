// SPDX-License-Identifier: Apache-2.0
// The loss on text that is not trained on, shared out among the ranks.
#pragma once

#include <cstdint>

#include "examples/trainer/model_choice.h"
#include "io/token_dataset.h"
#include "zero/engine.h"

namespace tessera::examples {

// About the tokens of one forward. Not the run's batch, on which the sums must not depend.
inline constexpr int64_t kValidationBatchTokens = 1024;

// Mean over about `tokens` of the text, in samples that are evenly spread: the same ones each time, and the same bits for
// any number of ranks. Collective; all ranks get the result.
double ValidationLoss(zero::Engine& engine, zero::Rank& rank, const TrainedModel& model, const io::TokenDataset& text,
                      int64_t tokens);

}  // namespace tessera::examples
