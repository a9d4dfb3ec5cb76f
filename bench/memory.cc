// SPDX-License-Identifier: Apache-2.0
// What this framework is for, as numbers that are asserted: bytes per rank by kind, and elements sent per step, at stages
// 0 to 3 on 1, 2, 4 and 8 thread ranks; beside a textbook data-parallel loop without an engine. Exits with 1 when the
// model states (parameters, gradients, optimizer states) are off their formula by more than 1 %, or the traffic is off
// its law by one element.
//
//   build/bench/memory [--dtype=bf16|fp32]     (both by default)
//
// Formulas, P parameters on N ranks, bytes per rank: bf16 2 (weights) + 2 (gradients; 4 over several micro-steps)
// + 12 (master and Adam's moments), fp32 4 + 4 + 8; each term divided by N where the stage shards it.
// Laws, elements that a rank sends in a step of A micro-steps, in units of (N-1)/N of all elements, padding included:
// stage 0: 2, stage 1: 2, stage 2: A + 1, stage 3: A (3 - P0/P), where P0 is what no backward reads (embedding, fused head).
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "autograd/tape.h"
#include "bench/timing.h"
#include "nn/models/llama.h"
#include "nn/resident_manager.h"
#include "optim/plain_optimizer.h"
#include "tensor/rng.h"
#include "zero/engine.h"
#include "zero/model_states.h"
#include "zero/partition.h"

namespace tessera::bench {
namespace {

constexpr int64_t kRows = 2, kTokens = 32;  // of one rank's micro-batch
constexpr int kTextbook = -1;               // in place of a stage
constexpr int kSteps = 3;                   // traffic is that of the last, memory that after it

nn::LlamaConfig ModelConfig() {
  return {.vocab_size = 512,
          .hidden_size = 256,
          .intermediate_size = 688,
          .num_hidden_layers = 6,
          .num_attention_heads = 4,
          .num_key_value_heads = 2,
          .max_position_embeddings = kTokens,
          .tie_word_embeddings = false};
}

struct Case {
  DType dtype;
  int ranks, stage, accumulation;
};

struct Measured {
  AllocatorStats memory;  // of the rank that holds most
  int64_t sent = 0;       // elements of parameters and gradients, by each rank
};

zero::Config ConfigOf(const Case& c) {
  zero::Config config;
  config.train_micro_batch_size_per_gpu = kRows;
  config.gradient_accumulation_steps = c.accumulation;
  config.param_dtype = c.dtype;
  config.zero.stage = c.stage;
  config.zero.param_persistence_threshold = 0;
  config.tessera.keep_last_unit = false;
  return config;
}

std::pair<Tensor, Tensor> Batch(uint64_t index) {
  const RngKey key = RngKey(5).With(index);
  std::vector<int64_t> ids(kRows * kTokens), targets(kRows * kTokens);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = key.Bits(2 * i) % 512;
    targets[i] = key.Bits(2 * i + 1) % 512;
  }
  return {Tensor::From(ids, {kRows, kTokens}), Tensor::From(targets, {kRows, kTokens})};
}

int64_t Sent(zero::Rank& rank) {
  const comm::Counters counters = rank.comm().counters();
  return counters[comm::Purpose::kParams].total().elements + counters[comm::Purpose::kGradients].total().elements;
}

// Data parallel as a textbook has it: whole everything, an all-reduce of each gradient buffer, every rank the same update.
void TrainTextbook(const Case& c, zero::Rank& rank, nn::Llama& model, Measured* mine) {
  nn::ResidentManager params(model, {.dtype = c.dtype, .grad_dtype = c.accumulation > 1 ? DType::kF32 : c.dtype});
  optim::PlainOptimizer optimizer(optim::Optimizer::Create(optim::AdamOptions{}), params.ranges());
  Stream stream(StreamKind::kInline);
  for (int step = 0; step < kSteps; ++step) {
    for (int part = 0; part < c.accumulation; ++part) {
      const auto [x, y] = Batch(static_cast<uint64_t>(step * 100 + part * 10 + rank.index()));
      Tape tape;
      Backward(model(x, y));
    }
    rank.comm().ResetCounters();
    const std::vector<ParamRange>& ranges = params.FinishGradients();
    for (const ParamRange& range : ranges) {
      rank.comm().AllReduce(range.grad, stream, {.purpose = comm::Purpose::kGradients});
    }
    optimizer.Step(ranges, {.loss_weight = static_cast<double>(c.ranks * c.accumulation)});
  }
  mine->memory = rank.allocator().stats();
  mine->sent = Sent(rank);
}

void TrainEngine(const Case& c, zero::Rank& rank, nn::Llama& model, Measured* mine) {
  zero::EngineOptions options{.loss_weight_per_sample = static_cast<double>(kTokens)};
  options.optimizer = optim::Optimizer::Create(optim::AdamOptions{});
  auto engine = zero::Engine::Create(model, ConfigOf(c), rank, std::move(options)).value();
  for (int step = 0; step < kSteps; ++step) {
    rank.comm().ResetCounters();
    for (int part = 0; part < c.accumulation; ++part) {
      const auto [x, y] = Batch(static_cast<uint64_t>(step * 100 + part * 10 + rank.index()));
      const Loss loss = engine(x, y);
      engine.Backward(loss);
      engine.Step();
    }
  }
  mine->memory = rank.allocator().stats();
  mine->sent = Sent(rank);
}

Measured Measure(const Case& c) {
  std::vector<Measured> by_rank(static_cast<size_t>(c.ranks));
  const absl::Status status = zero::RunRanks({.world_size = c.ranks}, [&](zero::Rank& rank) {
    nn::Llama model(ModelConfig());
    Measured& mine = by_rank[static_cast<size_t>(rank.index())];
    if (c.stage == kTextbook) {
      TrainTextbook(c, rank, model, &mine);
    } else {
      TrainEngine(c, rank, model, &mine);
    }
  });
  if (!status.ok()) {
    std::fprintf(stderr, "%s\n", std::string(status.message()).c_str());
    std::exit(1);
  }
  const auto held = [](const Measured& m) { return m.memory.peak_bytes; };
  return *std::max_element(by_rank.begin(), by_rank.end(),
                           [&](const Measured& a, const Measured& b) { return held(a) < held(b); });
}

// ---- what it must be ----

double FormulaBytes(const Case& c, double parameters) {
  const zero::BytesPerParameter bytes = !IsLowPrecision(c.dtype) ? zero::kSinglePrecision
                                        : c.accumulation > 1     ? zero::kMixedPrecisionFp32Gradients
                                                                 : zero::kMixedPrecision;
  return zero::ModelStateBytes(parameters, std::max(c.stage, 0), c.ranks, bytes).total();
}

int64_t LawElements(const Case& c) {
  nn::Llama model(ModelConfig());
  const zero::Partition partition(model, ConfigOf(c).zero, c.ranks, c.dtype);
  int64_t all = 0, unread = 0;
  for (int unit = 0; unit < partition.unit_count(); ++unit) {
    const std::string& name = partition.unit(unit).name;
    all += partition.UnitNumel(unit);
    if (name == "embed_tokens" || name == "lm_head") unread += partition.UnitNumel(unit);
  }
  const int64_t a = c.accumulation, share = c.ranks - 1;
  const int64_t whole = c.stage <= 1 ? 2 * all : c.stage == 2 ? (a + 1) * all : a * (3 * all - unread);
  return whole / c.ranks * share;
}

// ---- the table ----

// Prints one line; false when a bound is broken.
bool PrintLine(const Case& c, const Measured& m, double parameters, double textbook_states) {
  const auto mb = [](int64_t bytes) { return static_cast<double>(bytes) / 1e6; };
  const AllocatorStats& s = m.memory;
  const auto peak = [&](MemoryTag tag) { return mb(s.peak_by_tag[static_cast<size_t>(tag)]); };
  const double states = mb(s[MemoryTag::kParams] + s[MemoryTag::kGrads] + s[MemoryTag::kStates]);
  const double formula = FormulaBytes(c, parameters) / 1e6, off = states / formula - 1;
  const bool memory_holds = std::abs(off) <= 0.01;
  const int64_t law = LawElements(c);
  const bool traffic_holds = c.stage == kTextbook || m.sent == law;
  std::printf("%2d %-8s %8.2f %8.2f %8.2f | %8.2f %9.2f %+6.2f %% %5.1f %% |%8.2f%8.2f %8.2f %7.2f |%9.2f  |%12lld%s\n",
              c.ranks, c.stage == kTextbook ? "textbook" : Str("stage ", c.stage).c_str(), mb(s[MemoryTag::kParams]),
              mb(s[MemoryTag::kGrads]), mb(s[MemoryTag::kStates]), states, formula, 100 * off,
              100 * states / textbook_states, peak(MemoryTag::kGatherSlots), peak(MemoryTag::kGradSlots),
              peak(MemoryTag::kActivations), peak(MemoryTag::kWorkspace), mb(s.peak_bytes),
              static_cast<long long>(m.sent), traffic_holds ? "" : Str("  LAW SAYS ", law).c_str());
  if (!memory_holds) std::printf("   ^ model states are off by more than 1 %%\n");
  return memory_holds && traffic_holds;
}

bool PrintTable(DType dtype, int accumulation) {
  nn::Llama model(ModelConfig());
  const auto parameters = static_cast<double>(model.ParameterCount());
  std::printf("\n%s, A = %d: Llama of %.0f parameters, micro-batch of %lld x %lld tokens. MB (1e6 bytes) per rank\n",
              std::string(Name(dtype)).c_str(), accumulation, parameters, static_cast<long long>(kRows),
              static_cast<long long>(kTokens));
  std::printf(
      "                                       | model states                         | highest of each kind        "
      "      |           |\n");
  std::printf(
      " N            params    grads   states | measured   formula      off   of DP |  gather    grad  activa-   "
      "work- |  highest  |    elements\n");
  std::printf(
      "                                       |                                      |   slots   slots    tions   "
      "space |  in all   | sent a step\n");
  bool holds = true;
  for (int ranks : {1, 2, 4, 8}) {
    double textbook_states = 0;
    for (int stage : {kTextbook, 0, 1, 2, 3}) {
      const Case c{dtype, ranks, stage, accumulation};
      const Measured measured = Measure(c);
      const AllocatorStats& s = measured.memory;
      if (stage == kTextbook) {
        textbook_states =
            static_cast<double>(s[MemoryTag::kParams] + s[MemoryTag::kGrads] + s[MemoryTag::kStates]) / 1e6;
      }
      holds &= PrintLine(c, measured, parameters, textbook_states);
    }
  }
  return holds;
}

int Main(int argc, char** argv) {
  const std::string only = Flag(argc, argv, "--dtype", "");
  if (!only.empty() && only != "bf16" && only != "fp32") {
    std::fprintf(stderr, "memory: --dtype is \"%s\", expected bf16 or fp32\n", only.c_str());
    return 1;
  }
  bool holds = true;
  for (const auto& [name, dtype] : {std::pair{"bf16", DType::kBF16}, std::pair{"fp32", DType::kF32}}) {
    if (!only.empty() && only != name) continue;
    for (int accumulation : {1, 3}) holds &= PrintTable(dtype, accumulation);
  }
  std::printf("\n%s\n", holds ? "all model states within 1 % of the formulas, all traffic exactly by the laws"
                              : "FAILED: a formula or a law does not hold");
  return holds ? 0 : 1;
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) { return tessera::bench::Main(argc, argv); }
