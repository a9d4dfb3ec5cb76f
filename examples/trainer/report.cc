// SPDX-License-Identifier: Apache-2.0
#include "examples/trainer/report.h"

#include <cmath>

#include "examples/common/format.h"
#include "examples/trainer/run_config.h"
#include "tensor/cpu_isa.h"
#include "tensor/error.h"
#include "zero/config_json.h"

namespace tessera::examples {
namespace {

std::string Counted(int64_t count, const char* one) { return Str(WithCommas(count), " ", one, count == 1 ? "" : "s"); }

std::string BatchRow(const TrainerOptions& options) {
  const zero::Config& config = options.config;
  return Str("global ", config.train_batch_size, " = micro ", config.train_micro_batch_size_per_gpu, " × accum ",
             config.gradient_accumulation_steps, " × ranks ", options.ranks, " (", WithCommas(options.step_tokens()),
             " tokens/step)");
}

std::string ZeroRow(const TrainerOptions& options) {
  static constexpr const char* kSharded[] = {"nothing is sharded", "states are sharded",
                                             "states and gradients are sharded",
                                             "states, gradients and weights are sharded"};
  const zero::ZeroConfig& zero = options.config.zero;
  const std::string ranks = options.ranks == 1 ? "1 rank" : Str(options.ranks, " ranks, ", options.ranks_are);
  std::string out = Str("stage ", zero.stage, " on ", ranks, ": ", kSharded[zero.stage]);
  if (zero.stage == 3 && zero.param_persistence_threshold > 0) {
    out += Str(", but for those of at most ", WithCommas(zero.param_persistence_threshold), " elements");
  }
  return out;
}

std::string OptimizerRow(const zero::Config& config) {
  std::string out = config.optimizer.type;
  for (const auto& [name, value] : config.optimizer.params) {
    if (name != "lr") out += Str(", ", name, " ", value.ToString());
  }
  return Str(out, ", clipping ", config.gradient_clipping > 0 ? Short(config.gradient_clipping) : "none");
}

std::string ScheduleRow(const TrainerOptions& options) {
  if (options.has_scheduler()) return Str(options.config.scheduler.type, ", as the config says");
  const CosineSchedule& schedule = options.schedule;
  const std::string warmup = schedule.warmup_steps > 0 ? Counted(schedule.warmup_steps, "step")
                                                       : Str(Short(100 * schedule.warmup_fraction), " % of the run");
  return Str("lr ", Short(schedule.peak_lr), " after ", warmup, ", then a cosine to ",
             Short(schedule.peak_lr * schedule.final_ratio));
}

std::string LimitRow(const TrainerOptions& options) {
  const Budget& budget = options.budget;
  if (options.fast_dev_run > 0) {
    return Str("a try of ", Counted(options.fast_dev_run, "step"), " and as many validation batches");
  }
  std::string limit = budget.max_seconds > 0 ? Duration(budget.max_seconds) + " minutes" : "";
  if (budget.max_steps > 0) limit = Str(limit, limit.empty() ? "" : " or ", Counted(budget.max_steps, "step"));
  return Str(limit, budget.max_seconds > 0 ? "; the time decides the steps, so runs differ a little"
                                           : "; the same seed gives the same run");
}

std::string MemoryRow(const StartFacts& facts, int64_t RankMemory::*kind) {
  int64_t sum = 0;
  for (const RankMemory& memory : facts.by_rank) sum += memory.*kind;
  const std::string mine = Bytes(facts.by_rank.front().*kind);
  return facts.by_rank.size() == 1 ? mine : Str(mine, " per rank, ", Bytes(sum), " on all ", facts.by_rank.size());
}

std::string SpeedRow(const TrainerOptions& options, const EndFacts& facts) {
  if (facts.step_s <= 0) return "n/a: one step is too few to tell";
  return Str(Compact(static_cast<double>(options.step_tokens()) / facts.step_s), " tok/s, ",
             Milliseconds(1000 * facts.step_s), " a step (first step and validations apart)");
}

std::string SentRow(const TrainerOptions& options, const EndFacts& facts) {
  if (options.ranks == 1) return "nothing: there is one rank";
  if (facts.steps == 0) return "nothing";
  const auto per_step = [&](comm::Purpose purpose) {
    return Compact(static_cast<double>(facts.sent[static_cast<size_t>(purpose)].elements) /
                   static_cast<double>(facts.steps));
  };
  return Str("in a step by each rank: ", per_step(comm::Purpose::kParams), " elements of weights, ",
             per_step(comm::Purpose::kGradients), " of gradients");
}

std::string PeakRow(const TrainerOptions& options, const AllocatorStats& memory) {
  std::string kinds;
  for (int tag = 0; tag < kMemoryTagCount; ++tag) {
    const int64_t bytes = memory.peak_by_tag[static_cast<size_t>(tag)];
    if (bytes > 0) kinds = Str(kinds, kinds.empty() ? "" : ", ", Name(static_cast<MemoryTag>(tag)), " ", Bytes(bytes));
  }
  return Str("peak ", Bytes(memory.peak_bytes), options.ranks == 1 ? " in all" : " on rank 0", "; by kind: ", kinds);
}

std::string ValidationRow(const EndFacts& facts) {
  if (!std::isfinite(facts.best_loss)) return "none that is a number";
  return Str(Fixed(facts.validation_loss, 3), " nats/byte, perplexity ", Fixed(std::exp(facts.validation_loss), 2),
             "; best ", Fixed(facts.best_loss, 3), " at step ", WithCommas(facts.best_step));
}

// What --overfit_batches asks: can this model, by this loop, learn a few batches by heart?
std::string OverfitRow(const TrainerOptions& options, const EndFacts& facts) {
  const char* verdict = facts.last_loss < 0.1 * facts.first_loss ? "learned by heart, so model and loop can learn"
                        : facts.last_loss < facts.first_loss     ? "on its way down; more steps tell more"
                                                                 : "not learned: look at the rate and the model";
  return Str("loss ", Fixed(facts.first_loss, 3), " -> ", Fixed(facts.last_loss, 3), " on the batches of ",
             Counted(options.overfit_batches, "step"), ": ", verdict);
}

}  // namespace

std::vector<Row> StartRows(const TrainerOptions& options, const io::TextDatasets& text, const StartFacts& facts) {
  const std::string trained = facts.trained_parameters == facts.parameters
                                  ? "all trained"
                                  : Str(WithCommas(facts.trained_parameters), " trained");
  return {
      {"model", options.model.description},
      {"parameters", Str(WithCommas(facts.parameters), ", ", trained)},
      {"data", Str(options.data, ": ", Bytes(text.train.token_count() + text.validation.token_count()), " in ",
                   Counted(text.corpus.file_count, "file"), ", ", WithCommas(text.train.size()), " training and ",
                   WithCommas(text.validation.size()), " validation samples of ", options.seq_len, " tokens")},
      {"config",
       options.config_path.empty() ? "from the flags; --config FILE reads a DeepSpeed config" : options.config_path},
      {"batch", BatchRow(options)},
      {"ZeRO", ZeroRow(options)},
      {"optimizer", OptimizerRow(options.config)},
      {"schedule", ScheduleRow(options)},
      {"limit", LimitRow(options)},
      {"compute", Str(DTypeName(options.config.parameter_dtype()), ", ", Counted(facts.threads_per_rank, "thread"),
                      options.ranks == 1 ? ", " : " per rank, ", Name(ActiveIsa()))},
      {"weights", MemoryRow(facts, &RankMemory::weights)},
      {"gradients", MemoryRow(facts, &RankMemory::gradients)},
      {"states", MemoryRow(facts, &RankMemory::states)},
  };
}

std::string ConfigLines(const zero::Config& config) {
  std::string out;
  for (const zero::ConfigEntry& entry : zero::ConfigEntries(config)) {
    if (entry.is_default()) continue;
    out += Str(out.empty() ? "" : "\n", entry.path, " ", entry.value, " (", entry.origin, ")");
  }
  return out;
}

std::string StartTable(const TrainerOptions& options, std::span<const Row> rows, int columns) {
  return Table(Str("Tessera ", options.model.title), rows, columns);
}

std::string EndTable(const TrainerOptions& options, const io::TextDatasets& text, const EndFacts& facts, int columns) {
  const int64_t samples = facts.steps * options.config.train_batch_size;
  const double epochs = static_cast<double>(samples) / static_cast<double>(text.train.size());
  const std::string longer = options.budget.max_seconds > 0
                                 ? Str("--max_minutes ", Short(options.budget.max_seconds / 60 * 5))
                                 : Str("--max_steps ", options.budget.max_steps * 5);
  std::vector<Row> rows = {
      {"time", Str(Duration(facts.elapsed_s), ", ", Counted(facts.steps, "step"))},
      {"tokens", Str(WithCommas(facts.steps * options.step_tokens()), ", ", Fixed(epochs, 2), " epochs")},
      {"speed", SpeedRow(options, facts)},
      {"sent", SentRow(options, facts)},
      {"validation", ValidationRow(facts)},
      {"memory", PeakRow(options, facts.memory)},
  };
  if (options.overfit_batches > 0) rows.emplace_back("overfit", OverfitRow(options, facts));
  if (!facts.report_path.empty()) rows.emplace_back("report", facts.report_path);
  if (!facts.failed && options.fast_dev_run == 0) rows.emplace_back("next", Str(options.command, " ", longer));
  return Table(facts.failed ? "Failed" : "Done", rows, columns);
}

}  // namespace tessera::examples
