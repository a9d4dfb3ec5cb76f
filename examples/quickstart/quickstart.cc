// SPDX-License-Identifier: Apache-2.0
// The first program of a DeepSpeed tutorial: a small network on random data, trained as a ds_config.json says;
// less than a minute on two cores.
//
//   quickstart --num_gpus 2 --config examples/quickstart/ds_config.json
#include <cstdio>
#include <string>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "autograd/elementwise.h"
#include "autograd/loss.h"
#include "autograd/views.h"
#include "nn/linear.h"
#include "zero/engine.h"

ABSL_FLAG(int, num_gpus, 1, "ranks, as threads of this process; under mpirun its processes are the ranks");
ABSL_FLAG(std::string, config, "examples/quickstart/ds_config.json", "a DeepSpeed config");
ABSL_FLAG(int64_t, samples, 4096, "random samples to train on");

using namespace tessera;

struct Net : nn::Layer<Net> {
  nn::Linear in{this, "in", 512, 2048}, hidden{this, "hidden", 2048, 2048}, out{this, "out", 2048, 10};
  Tensor Forward(const Tensor& x) { return out(Relu(hidden(Relu(in(x))))); }
};

void Train(const zero::Config& config, zero::Rank& rank) {
  const int64_t samples = absl::GetFlag(FLAGS_samples);
  std::vector<float> values(static_cast<size_t>(samples * 512));  // torch.randn(samples, 512)
  std::vector<int32_t> labels(static_cast<size_t>(samples));      // torch.randint(0, 10, (samples,))
  const RngKey key(/*seed=*/0);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(key.With("x").Normal(i));
  for (size_t i = 0; i < labels.size(); ++i) labels[i] = static_cast<int32_t>(key.With("y").Bits(i) % 10);
  const Tensor x = Tensor::From(values, {samples, 512}), y = Tensor::From(labels, {samples});

  Net net;
  auto engine = zero::Engine::Create(net, config, rank).value();
  const int64_t micro = engine.train_micro_batch_size_per_gpu(), all = micro * engine.world_size();
  for (int epoch = 0; epoch < 3; ++epoch) {
    double loss_sum = 0;
    for (int64_t batch = 0; batch < samples / all; ++batch) {
      const int64_t first = batch * all + rank.index() * micro;
      const Loss loss = CrossEntropy(engine(Narrow(x, 0, first, micro)), Narrow(y, 0, first, micro));
      engine.Backward(loss);
      engine.Step();
      loss_sum += engine.get_loss();  // the mean over all ranks
    }
    if (rank.is_main()) std::printf("epoch %d | loss %.4f\n", epoch, loss_sum / static_cast<double>(samples / all));
  }
}

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const absl::StatusOr<zero::Config> config = zero::Config::FromFile(absl::GetFlag(FLAGS_config));
  const absl::Status status = !config.ok() ? config.status()
                                           : zero::RunRanks({.world_size = absl::GetFlag(FLAGS_num_gpus)},
                                                            [&](zero::Rank& rank) { Train(*config, rank); });
  if (!status.ok()) std::fprintf(stderr, "quickstart: %s\n", std::string(status.message()).c_str());
  return status.ok() ? 0 : 1;
}
