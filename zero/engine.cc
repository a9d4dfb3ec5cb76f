// SPDX-License-Identifier: Apache-2.0
#include "zero/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>

#include "optim/lr_schedule.h"
#include "tensor/context.h"
#include "tensor/ops/copy.h"
#include "tensor/ops/fill.h"
#include "zero/coordinator.h"
#include "zero/gradient_reducer.h"
#include "zero/loss_scaler.h"
#include "zero/param_store.h"
#include "zero/partition.h"
#include "zero/step.h"

namespace tessera::zero {
namespace {

constexpr int64_t kScheduleRows = 1024;  // of the lr table on the device at a time
enum : int { kLossSum, kLossWeight, kWindowSize };

GradientReducerOptions ReducerOptions(const Config& config, bool overlap, bool poison) {
  return {.stage = static_cast<int>(config.zero.stage),
          .reducer = config.tessera.reducer,
          .accumulation_steps = config.gradient_accumulation_steps,
          .bucket_numel = config.zero.reduce_bucket_size,
          .wire_dtype = config.communication_dtype(),
          .sum_dtype = config.accumulation_dtype(),
          .slots_per_size = overlap ? 2 : 1,
          .poison = poison};
}

CoordinatorOptions GatherOptions(const Config& config, bool overlap, bool poison) {
  return {.prefetch_numel = overlap ? config.zero.prefetch_bucket_size : 0,
          .max_live_numel = config.zero.max_live_parameters,
          .max_reuse_distance = config.tessera.keep_last_unit ? config.zero.max_reuse_distance.value_or(0) : -1,
          .poison = poison};
}

StepOptions StepOptionsOf(const Config& config, double loss_weight_per_sample) {
  return {.stage = static_cast<int>(config.zero.stage),
          .max_norm = config.gradient_clipping,
          .skip_non_finite = !config.bf16.enabled || config.bf16.check_grad_overflow,
          .expected_weight = static_cast<double>(config.train_batch_size) * loss_weight_per_sample,
          .piece_numel = config.zero.sub_group_size,
          .bucket_numel = config.zero.allgather_bucket_size};
}

// What wall_clock_breakdown prints: host seconds of the phases since the last line.
struct PhaseTimes {
  double forward_s = 0, backward_s = 0, step_s = 0;
};

// Adds the time that it lives to a sum.
class PhaseTimer {
 public:
  explicit PhaseTimer(double* sum_s) : sum_s_(sum_s), start_(std::chrono::steady_clock::now()) {}
  ~PhaseTimer() { *sum_s_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  PhaseTimer(const PhaseTimer&) = delete;
  PhaseTimer& operator=(const PhaseTimer&) = delete;

 private:
  double* sum_s_;
  std::chrono::steady_clock::time_point start_;
};

// Without a GPU the ranks' threads and their communication share the same cores: a thread of its own gains nothing.
bool Overlaps(const Config& config) { return config.zero.overlap_comm.value_or(false); }

}  // namespace

// Everything behind the engine. Members are destroyed from the last to the first: streams go before what their work uses.
struct Engine::State {
  State(nn::Module& model_in, const Config& config_in, Rank& rank_in, EngineOptions options_in,
        std::unique_ptr<optim::Optimizer> optimizer_in, std::unique_ptr<optim::LrSchedule> schedule_in)
      : model(model_in),
        config(config_in),
        rank(rank_in),
        options(std::move(options_in)),
        optimizer(std::move(optimizer_in)),
        schedule(std::move(schedule_in)),
        scaler(config),
        partition(model, config.zero, rank.world_size(), config.parameter_dtype()),
        store(partition, static_cast<int>(config.zero.stage), rank.index(), options.seed),
        compute(StreamKind::kInline),
        comm_stream(Overlaps(config) ? StreamKind::kWorker : StreamKind::kInline),
        reducer(partition, rank.comm(), compute, comm_stream,
                ReducerOptions(config, Overlaps(config), options.poison_slots)),
        coordinator(model, partition, store, reducer, rank.comm(), compute, comm_stream,
                    GatherOptions(config, Overlaps(config), options.poison_slots)),
        step(partition, store, coordinator, reducer, rank.comm(), compute, comm_stream, *optimizer, MakeTier(),
             StepOptionsOf(config, options.loss_weight_per_sample)),
        window(Zeros({kWindowSize}, DType::kF64, MemoryTag::kWorkspace)),
        exceptions_at_start(std::uncaught_exceptions()) {
    coordinator.SetMasterWriter(&step);
    CurrentContext().rank = rank.index();
    CurrentContext().seed = options.seed;
    if (schedule) step.scalars().SetLr(schedule->Lr(1));
  }

  ~State() {
    tape.reset();
    // Work of this rank may be waiting for ranks that wait for this one.
    if (std::uncaught_exceptions() > exceptions_at_start) {
      rank.comm().Abort(Str("rank ", rank.index(), " ended by an exception"));
    }
  }

  std::unique_ptr<Tier> MakeTier() const {
    const TierContent content = ShardedStep::Content(partition, static_cast<int>(config.zero.stage), *optimizer);
    return options.make_tier ? options.make_tier(content) : std::make_unique<DeviceTier>(content);
  }

  void Print(const std::string& line) const {
    if (!rank.is_main()) return;
    if (options.print) {
      options.print(line);
    } else {
      std::fprintf(stderr, "%s\n", line.c_str());
    }
  }

  void BeginForward();
  void DropForward() noexcept;
  void RunBackward(const Tensor& sum, const Tensor& weight);
  void CloseWindow();
  void ClearWindow();
  void Settle();
  void Report(const ScaleUpdate& update, const std::string& reason) const;
  void PrintProgress();
  void FillSchedule();

  nn::Module& model;
  const Config config;
  Rank& rank;
  EngineOptions options;
  std::unique_ptr<optim::Optimizer> optimizer;
  std::unique_ptr<optim::LrSchedule> schedule;  // null: SetLr
  LossScaler scaler;

  Partition partition;
  ParamStore store;
  Stream compute, comm_stream;
  GradientReducer reducer;
  Coordinator coordinator;
  ShardedStep step;

  std::unique_ptr<Tape> tape;  // the engine's own, between forward and backward
  Tensor window;               // f64: this rank's loss sum and loss weight
  int64_t window_micro_steps = 0;
  bool micro_step_begun = false;  // a forward of it has run
  bool awaits_step = false;       // Backward has run, Step has not

  int64_t global_steps = 0, skipped_steps = 0, micro_steps = 0;
  double loss = std::nan("");
  PhaseTimes times;
  bool was_applied = false;
  int exceptions_at_start;
};

absl::StatusOr<Engine> Engine::Make(nn::Module& model, const Config& config, Rank& rank, EngineOptions options) {
  Config resolved = config;
  if (absl::Status status = resolved.ResolveBatch(rank.world_size()); !status.ok()) return status;
  std::unique_ptr<optim::Optimizer> optimizer = std::move(options.optimizer);
  std::unique_ptr<optim::LrSchedule> schedule;
  if (optimizer == nullptr && resolved.optimizer.type.empty()) {
    return absl::InvalidArgumentError(
        "optimizer: the config has no such section and no optimizer was given; "
        "legal is e.g. {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}");
  }
  if (optimizer != nullptr && !resolved.optimizer.type.empty()) {
    return absl::InvalidArgumentError(
        "optimizer: the config has such a section and the program gave another; keep one");
  }
  if (!(options.loss_weight_per_sample > 0) || !std::isfinite(options.loss_weight_per_sample)) {
    return absl::InvalidArgumentError(
        Str("loss_weight_per_sample is ", options.loss_weight_per_sample, ", expected a finite number > 0"));
  }
  try {
    if (optimizer == nullptr) optimizer = optim::Optimizer::Create(resolved.optimizer.type, resolved.optimizer.params);
    if (!resolved.scheduler.type.empty()) {
      schedule = optim::LrSchedule::Create(resolved.scheduler.type, resolved.scheduler.params,
                                           {.lr = optimizer->start_values().lr, .has_betas = optimizer->has_betas()});
    }
  } catch (const Error& error) {
    return absl::InvalidArgumentError(error.what());
  }
  auto state =
      std::make_unique<State>(model, resolved, rank, std::move(options), std::move(optimizer), std::move(schedule));
  for (const std::string& notice : resolved.notices) state->Print(notice);
  if (state->schedule) {
    // A config that was read from JSON has these among its own.
    const std::vector<std::string>& told = resolved.notices;
    for (const std::string& notice : state->schedule->notices()) {
      const bool known = std::any_of(told.begin(), told.end(),
                                     [&](const std::string& line) { return line.find(notice) != std::string::npos; });
      if (!known) state->Print(notice);
    }
  }
  return Engine(std::move(state));
}

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::Engine(Engine&&) noexcept = default;
Engine::~Engine() = default;

// ---- forward ----

void Engine::State::BeginForward() {
  if (!model.training() || NoGrad::active()) return;
  if (awaits_step) throw Error("engine: forward after Backward; call Step first (it acts only at the end of a window)");
  if (Tape::Current() == nullptr) tape = std::make_unique<Tape>();
  if (!coordinator.in_cycle()) coordinator.BeginCycle();
  if (micro_step_begun) return;  // a second call of the model before one Backward goes on with the random streams
  micro_step_begun = true;
  CurrentContext().BeginMicroStep(global_steps, window_micro_steps);
}

void Engine::State::DropForward() noexcept {
  tape.reset();  // tells the coordinator
  coordinator.ReleaseIdle();
  micro_step_begun = false;
}

Engine::ForwardScope::ForwardScope(State& state) : state_(state), start_(std::chrono::steady_clock::now()) {
  state.BeginForward();
}
Engine::ForwardScope::~ForwardScope() {
  if (!finished_) state_.DropForward();
  state_.times.forward_s += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
}

Engine::EvaluationScope::EvaluationScope(State& state)
    : state_(state), was_training_(state.model.training()), context_(CurrentContext()) {
  state.model.SetTraining(false);
  state.coordinator.SetEvaluating(true);
}
Engine::EvaluationScope::~EvaluationScope() {
  state_.model.SetTraining(was_training_);
  CurrentContext() = context_;
  state_.coordinator.SetEvaluating(false);
  state_.coordinator.ReleaseIdle();
}

void Engine::SetTraining(bool training) { state_->model.SetTraining(training); }

// ---- backward ----

void Engine::Backward(const Loss& loss) { state_->RunBackward(loss.sum, loss.weight); }

void Engine::Backward(const Tensor& loss) {
  if (!loss.defined() || loss.numel() != 1) {
    throw Error(Str("engine: Backward wants a loss of one element, got ", loss, "; take its Mean()"));
  }
  state_->RunBackward(loss, Full({}, DType::kF64, 1, MemoryTag::kWorkspace));
}

void Engine::State::RunBackward(const Tensor& sum, const Tensor& weight) {
  if (awaits_step) {
    throw Error(
        "engine: Backward again before Step; call Step after every Backward (it acts only at the end of a "
        "window of accumulation)");
  }
  Tape* current = Tape::Current();
  if (current == nullptr) {
    throw Error("engine: Backward without a forward before it: call the engine in training mode first, outside NoGrad");
  }
  const PhaseTimer timer(&times.backward_s);
  const double expected = StepOptionsOf(config, options.loss_weight_per_sample).expected_weight;
  const Tensor seed = EmptyOn(sum.device(), sum.shape(), sum.dtype(), MemoryTag::kWorkspace);
  ops::Fill({.out = seed.Write(), .value = scaler.scale() / expected});
  reducer.BeginMicroStep(window_micro_steps + 1 == config.gradient_accumulation_steps);
  const auto add = [this](const Tensor& value, int slot) {
    const Tensor flat = value.Detach().WithLayout(Layout::Contiguous({1}, value.layout().offset()));
    ops::Copy({.x = flat.Read(), .out = FlatPart(window, slot, 1).Write(), .accumulate = true});
  };
  try {
    current->Backward(sum, seed);
  } catch (...) {
    ClearWindow();
    tape.reset();
    throw;
  }
  tape.reset();
  add(sum, kLossSum);
  add(weight, kLossWeight);
  micro_step_begun = false;
  awaits_step = true;
}

// ---- step ----

void Engine::Step() {
  State& state = *state_;
  if (!state.awaits_step) throw Error("engine: Step without a Backward before it");
  // Before anything moves: once the leases are gone the same call can be made again.
  if (is_gradient_accumulation_boundary()) state.coordinator.CheckNothingLeased("engine: Step");
  state.awaits_step = false;
  ++state.micro_steps;
  if (++state.window_micro_steps == state.config.gradient_accumulation_steps) state.CloseWindow();
}

void Engine::EndOfData(LastWindow policy) {
  State& state = *state_;
  if (state.awaits_step) throw Error("engine: EndOfData after Backward; call Step first");
  if (state.window_micro_steps == 0 || policy == LastWindow::kCarry) return;
  if (policy == LastWindow::kDrop) {
    state.ClearWindow();
  } else {
    state.coordinator.CheckNothingLeased("engine: EndOfData");
    state.CloseWindow();
  }
}

void Engine::State::CloseWindow() {
  {
    const PhaseTimer timer(&times.step_s);
    coordinator.ReleaseIdle();
    reducer.FinishWindow();
    FillSchedule();
    step.scalars().SetLossScale(scaler.scale());
    step.Run(window);
  }
  Settle();
}

void Engine::State::ClearWindow() {
  reducer.ClearWindow();
  ops::Fill({.out = window.Write(), .value = 0});
  window_micro_steps = 0;
  micro_step_begun = false;
  awaits_step = false;
}

void Engine::State::FillSchedule() {
  if (!schedule) return;
  const int64_t update = step.scalars().applied_steps() + 1, first = step.scalars().schedule_first_update();
  if (step.scalars().schedule().defined() && update < first + kScheduleRows) return;
  step.scalars().SetSchedule(schedule->Table(update, kScheduleRows), update);
}

// What the host has to know of a step: the next loss scale, and what to tell.
void Engine::State::Settle() {
  const optim::StepScalars& scalars = step.scalars();
  const WindowTotals totals = step.Totals();
  const bool overflow = scalars.grad_norm_before_clip() == -1;
  was_applied = scalars.was_step_applied();
  loss = totals.weight > 0 ? totals.loss_sum / totals.weight : 0;
  std::string reason = "there were no target tokens";
  if (!was_applied && overflow) {
    const std::optional<NonFinite> found = step.FindNonFinite();
    reason = found ? Str("the gradient of '", found->parameter, "' is ", found->is_nan ? "NaN" : "Inf")
                   : std::string("a gradient is not finite");
  }
  ClearWindow();
  ++global_steps;
  if (!was_applied) ++skipped_steps;
  if (was_applied || overflow) {
    Report(scaler.Update(!was_applied), reason);
  } else {
    Print(Str("step ", global_steps, " skipped: ", reason));
  }
  PrintProgress();
}

void Engine::State::Report(const ScaleUpdate& update, const std::string& reason) const {
  if (update.is_skipped()) {
    Print(Str("step ", global_steps, ": ", update.ToString(), "; ", reason));
  } else if (update.event == ScaleEvent::kGrew) {
    Print(Str("step ", global_steps, ": ", update.ToString()));
  }
  if (!update.ends_run()) return;
  throw Error(Str("engine: step ", global_steps, ": ", update.ToString(), "; ", reason,
                  "; the weights are as they were before this step"));
}

void Engine::State::PrintProgress() {
  if (config.wall_clock_breakdown && global_steps % std::max<int64_t>(config.steps_per_print, 1) == 0) {
    Print(Str("step=", global_steps, ", time (ms) since the last line: fwd: ", 1e3 * times.forward_s,
              " | bwd: ", 1e3 * times.backward_s, " | step: ", 1e3 * times.step_s));
    times = {};
  }
  if (config.steps_per_print <= 0 || global_steps % config.steps_per_print != 0) return;
  const optim::StepScalars& scalars = step.scalars();
  Print(Str("step=", global_steps, ", skipped=", skipped_steps, ", lr=[", scalars.lr(), "], mom=[", scalars.momentum(),
            "], loss=", loss, ", grad_norm_before_clip=", scalars.grad_norm_before_clip(),
            ", clip_factor=", scalars.clip_factor()));
}

// ---- what it says ----

int64_t Engine::global_steps() const { return state_->global_steps; }
int64_t Engine::skipped_steps() const { return state_->skipped_steps; }
int64_t Engine::micro_steps() const { return state_->micro_steps; }
int64_t Engine::global_samples() const { return state_->global_steps * train_batch_size(); }
bool Engine::was_step_applied() const { return state_->was_applied; }
double Engine::get_global_grad_norm() const { return state_->step.scalars().grad_norm_before_clip(); }
double Engine::clip_factor() const { return state_->step.scalars().clip_factor(); }
double Engine::loss_scale() const { return state_->scaler.scale(); }
double Engine::get_loss() const { return state_->loss; }

double Engine::get_lr() const {
  const optim::StepScalars& scalars = state_->step.scalars();
  return state_->schedule ? state_->schedule->Lr(scalars.applied_steps() + 1) : scalars.lr();
}

void Engine::SetLr(double lr) {
  if (state_->schedule) throw Error("engine: SetLr, but the config's scheduler sets the learning rate; remove one");
  state_->step.scalars().SetLr(lr);
}

bool Engine::is_gradient_accumulation_boundary() const {
  return state_->window_micro_steps + 1 == gradient_accumulation_steps();
}

Device Engine::device() const { return CurrentContext().device; }
int Engine::global_rank() const { return state_->rank.index(); }
int Engine::world_size() const { return state_->rank.world_size(); }
const Config& Engine::config() const { return state_->config; }
int64_t Engine::peak_gathered_numel() const { return state_->coordinator.peak_gathered_numel(); }
int64_t Engine::gather_count() const { return state_->coordinator.gather_count(); }
int64_t Engine::padded_numel() const {
  return state_->partition.layout().TotalNumel(Segment::kTrainable) +
         state_->partition.layout().TotalNumel(Segment::kFrozen);
}

}  // namespace tessera::zero
