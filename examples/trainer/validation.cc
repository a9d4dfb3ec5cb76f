// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer/validation.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace tessera::examples {
namespace {

struct BatchLoss {
  double sum = 0, weight = 0;
};

}  // namespace

double ValidationLoss(zero::Engine& engine, zero::Rank& rank, const TrainedModel& model, const io::TokenDataset& text,
                      int64_t tokens) {
  const int64_t length = text.sequence_tokens();
  const int64_t samples = std::clamp<int64_t>(tokens / length, 1, text.size());
  const int64_t stride = text.size() / samples;
  const int64_t rows = std::max<int64_t>(kValidationBatchTokens / length, 1);
  const int64_t batches = (samples + rows - 1) / rows, ranks = rank.world_size();
  const int64_t rounds = (batches + ranks - 1) / ranks;
  std::vector<BatchLoss> mine;
  std::vector<int32_t> sample(static_cast<size_t>(length) + 1);
  for (int64_t round = 0; round < rounds; ++round) {
    // Every rank takes part in every round, for at stage 3 a forward is a collective: one without a batch repeats one.
    const int64_t first = std::min(round * ranks + rank.index(), batches - 1) * rows;
    const int64_t count = std::min(rows, samples - first);
    std::vector<int32_t> ids, targets;
    for (int64_t i = first; i < first + count; ++i) {
      text.CopySample(i * stride, sample);
      ids.insert(ids.end(), sample.begin(), sample.end() - 1);
      targets.insert(targets.end(), sample.begin() + 1, sample.end());
    }
    const Loss loss = engine.EvaluateWith([&] {
      return model.loss(Tensor::From(ids, {count, length}), Tensor::From(targets, {count, length}));
    });
    mine.push_back({loss.sum.Item(), loss.weight.Item()});
  }

  const std::string bytes(reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(BatchLoss));
  const std::vector<std::string> all = rank.comm().AllGatherBytes(bytes);
  BatchLoss total;
  for (int64_t batch = 0; batch < batches; ++batch) {  // in one order, whoever computed it
    BatchLoss part;
    const std::string& theirs = all[static_cast<size_t>(batch % ranks)];
    std::memcpy(&part, theirs.data() + static_cast<size_t>(batch / ranks) * sizeof part, sizeof part);
    total.sum += part.sum;
    total.weight += part.weight;
  }
  return total.sum / total.weight;
}

}  // namespace tessera::examples
