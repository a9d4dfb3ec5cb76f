// SPDX-License-Identifier: Apache-2.0
// What mpi_ranks_test.py runs, as processes and as threads.
//
//   mpi_ranks parity          trains the golden models at every stage; a line of hashes for each
//   mpi_ranks fault KIND      four ranks exchange something, and rank 2 goes wrong in this way
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>

#include "autograd/elementwise.h"
#include "autograd/reduce.h"
#include "comm/call.h"
#include "nn/linear.h"
#include "tests/zero/parity.h"
#include "zero/engine.h"

namespace tessera::testing {
namespace {

constexpr int kRanks = 4, kFaulty = 2;

uint64_t Hash(uint64_t hash, const void* data, size_t bytes) {  // FNV-1a
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 0x100000001B3u;
  return hash;
}

int Parity() {
  for (const auto& [model, dtype] : {std::pair("gpt", DType::kF32), std::pair("llama", DType::kBF16)}) {
    for (const zero::Reducer reducer : {zero::Reducer::kCanonical, zero::Reducer::kFast}) {
      for (int stage = 0; stage < 4; ++stage) {
        const ParityRun run = TrainWithEngine({.model = model,
                                               .stage = stage,
                                               .ranks = kRanks,
                                               .dtype = dtype,
                                               .reducer = reducer,
                                               .overlap = stage % 2 == 1,
                                               .steps = 5});
        if (!run.failure.empty()) {
          std::fprintf(stderr, "%s\n", run.failure.c_str());
          return 1;
        }
        if (run.steps.empty()) continue;  // not rank 0
        uint64_t losses = 0xCBF29CE484222325u, weights = losses;
        for (const ParityRun::Step& step : run.steps) losses = Hash(losses, &step, sizeof step);
        for (const Tensor& weight : run.weights) {
          weights = Hash(weights, comm::ReadStart(weight), static_cast<size_t>(weight.bytes()));
        }
        std::printf("%s %s %s stage %d: loss %.17g losses %016lx weights %016lx\n", model,
                    std::string(Name(dtype)).c_str(), reducer == zero::Reducer::kCanonical ? "canonical" : "fast",
                    stage, run.steps.back().loss, losses, weights);
      }
    }
  }
  return 0;
}

void Exchange(zero::Rank& rank, int64_t count) {
  Stream stream(StreamKind::kInline);
  rank.comm().AllReduce(Zeros({count}, DType::kF32), stream);
}

struct Net : nn::Layer<Net> {
  nn::Linear in{this, "in", 8, 16}, out{this, "out", 16, 4};
  Tensor Forward(const Tensor& x) { return Mean(Square(out(in(x)))); }
};

void TrainAndThrow(zero::Rank& rank, bool all) {
  Net net;
  zero::Config config;
  config.train_micro_batch_size_per_gpu = 2;
  config.zero.stage = 3;
  config.zero.param_persistence_threshold = 0;
  zero::EngineOptions options;
  options.optimizer = optim::Optimizer::Create(optim::AdamOptions{});
  auto engine = zero::Engine::Create(net, config, rank, std::move(options)).value();
  for (int step = 0; step < 4; ++step) {
    const Tensor loss = engine(Full({2, 8}, DType::kF32, 1));
    if (step == 2 && (all || rank.index() == kFaulty)) throw Error("a token is out of range");
    engine.Backward(loss);
    engine.Step();
  }
}

void GoWrong(zero::Rank& rank, std::string_view kind) {
  for (int turn = 0; turn < 3; ++turn) Exchange(rank, 100);
  if (kind == "train" || kind == "all_train") return TrainAndThrow(rank, kind == "all_train");
  if (kind == "all_throw") throw Error("nobody can read the data\nsecond line");
  if (rank.index() == kFaulty) {
    if (kind == "throw") throw Error("the disk is full");
    if (kind == "kill") std::raise(SIGKILL);
    if (kind == "segfault") std::raise(SIGSEGV);
    if (kind == "other") rank.comm().Barrier();
    if (kind == "sleep") std::this_thread::sleep_for(std::chrono::hours(1));
    if (kind == "early") return;
    if (kind == "exit") std::exit(0);
  }
  for (int turn = 0; turn < 3; ++turn) Exchange(rank, 200);
}

int Fault(std::string_view kind) {
  const char* index = std::getenv("OMPI_COMM_WORLD_RANK");
  if (index != nullptr && std::atoi(index) == kFaulty) {  // before the ranks have met
    if (kind == "late") std::this_thread::sleep_for(std::chrono::hours(1));
    if (kind == "never") return 7;
  }
  const bool is_silent = kind == "sleep" || kind == "late";
  const absl::Status status = zero::RunRanks({.world_size = kRanks, .comm_timeout_s = is_silent ? 2.0 : 60.0},
                                             [&](zero::Rank& rank) { GoWrong(rank, kind); });
  if (!status.ok()) std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
  std::printf("came back\n");
  return status.ok() ? 0 : 1;
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  const std::string_view what = argc > 1 ? argv[1] : "";
  if (what == "parity") return tessera::testing::Parity();
  return tessera::testing::Fault(argc > 2 ? argv[2] : "none");
}
