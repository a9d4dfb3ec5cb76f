// SPDX-License-Identifier: Apache-2.0
// The sharded manager of parameters: gathers a unit when a module that needs it is entered (or when a node of backward
// first asks), lets it go when the last one is left, gathers ahead by the order of the last micro-step, and hands
// gradients to the reducer. At stages 0 to 2, and for what persists, everything is there and the same rules hold: a
// program that reads a parameter out of turn fails at every stage alike.
//
// Gathers are collectives: every rank must run the same modules in the same order.
#pragma once

#include <array>
#include <vector>

#include "comm/communicator.h"
#include "nn/module.h"
#include "zero/gather_schedule.h"
#include "zero/gradient_reducer.h"
#include "zero/param_store.h"
#include "zero/slot_pool.h"

namespace tessera::zero {

struct CoordinatorOptions {
  int64_t prefetch_numel = 0;      // elements gathered ahead; 0: none
  int64_t max_live_numel = 0;      // elements gathered at once, unless one use needs more
  int64_t max_reuse_distance = 0;  // keep what is needed again within this many elements; -1: keep nothing
  bool poison = false;             // see SlotPoolOptions
};

// Takes over what an edit wrote, where a master copy of the parameters is kept elsewhere.
class MasterWriter {
 public:
  virtual ~MasterWriter() = default;
  // Elements [begin, begin + values.numel()) of a unit's trainable segment are `values` now.
  virtual void WriteMaster(int unit, int64_t begin, const Tensor& values) = 0;
};

class Coordinator final : public nn::ParamManager {
 public:
  Coordinator(nn::Module& root, const Partition& partition, ParamStore& store, GradientReducer& reducer,
              comm::Communicator& comm, Stream& compute, Stream& comm_stream, const CoordinatorOptions& options);
  ~Coordinator() override;
  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;

  void SetMasterWriter(MasterWriter* writer) { master_writer_ = writer; }

  // A cycle is one forward (or several) and its backward; without one nothing is gathered ahead.
  void BeginCycle();
  bool in_cycle() const { return schedule_.active(); }
  // An evaluation may come in the middle of a cycle: it gathers what it needs and leaves the cycle's plan as it is.
  void SetEvaluating(bool evaluating) { schedule_.SetPaused(evaluating); }
  // Lets go of all that no lease holds, gathered ahead or kept. Before the parameters change, after an evaluation.
  void ReleaseIdle();
  // Throws Error with the path of a parameter that is leased across `where`.
  void CheckNothingLeased(const char* where) const;
  // Parameters of a unit are being refreshed on the communication stream: whoever reads them waits for this.
  void SetRefresh(int unit, const Event& done);

  int64_t gathered_numel() const { return live_numel_; }  // now, slots in use
  int64_t peak_gathered_numel() const { return peak_live_numel_; }
  int64_t gather_count() const { return gather_count_; }

  Tensor Data(nn::Parameter& parameter) override;
  GradTarget NextGradTarget(nn::Parameter& parameter) override { return reducer_.NextTarget(parameter); }
  void GradReady(nn::Parameter& parameter) override { reducer_.Ready(parameter); }
  DType dtype(const nn::Parameter&) const override { return partition_.dtype(); }
  void Acquire(nn::Parameter& parameter) override;
  void Release(nn::Parameter& parameter) noexcept override;
  // Collective. Ranks that leave the data as it was take over what the others wrote; two ranks that write different
  // values are an error that names them, and nothing changes.
  void Edit(nn::Parameter& parameter, FunctionRef<void(Tensor&)> edit) override;

  void OnEnter(ScopeOwner& scope, Phase phase) override;
  void OnExit(ScopeOwner& scope, Phase phase) noexcept override;
  void OnRecomputeBegin() override;
  void OnRecomputeEnd() noexcept override;
  void OnBackwardBegin(std::span<ParamSource* const> used) override;
  void OnBackwardEnd() override;
  void OnDiscard(bool in_backward) noexcept override;

 private:
  enum class State : uint8_t { kNotAvailable, kInflight, kAvailable };
  struct Unit {
    State state = State::kNotAvailable;
    bool whole = true;  // at rest: never gathered
    int leases = 0;
    std::array<Tensor, 2> data;  // the whole segments, while there
    Event ready;                 // of the gather, or of the refresh
  };
  struct Frame {  // a scope that backward is in
    const nn::Module* module = nullptr;
    std::vector<int> leased;
  };

  Unit& unit(int index) { return units_[static_cast<size_t>(index)]; }
  void Lease(int index);
  // `leaving`: the module whose scope ends; null for a lease of the caller's.
  void Drop(int index, const nn::Module* leaving, Phase phase) noexcept;
  bool WantsToStay(int index, const nn::Module* leaving, Phase phase) const;
  void StartGather(int index);
  void GatherAhead();
  void MakeRoomFor(int64_t numel);
  void Free(int index) noexcept;
  void WaitReady(Unit& unit);
  Frame& FrameFor(int index);
  void DropFrames() noexcept;
  // Which rank's edit counts: the lowest that changed anything; -1 when none did. Throws when two disagree.
  int AgreeOnEdit(const nn::Parameter& parameter, const Tensor& before, const Tensor& after);

  nn::Module& root_;
  const Partition& partition_;
  ParamStore& store_;
  GradientReducer& reducer_;
  comm::Communicator& comm_;
  Stream& compute_;
  Stream& comm_stream_;
  CoordinatorOptions options_;
  MasterWriter* master_writer_ = nullptr;

  SlotPool slots_;
  GatherSchedule schedule_;
  std::vector<Unit> units_;
  std::vector<int64_t> unit_numel_;
  std::vector<const nn::Parameter*> leased_;  // by the program, so that an error can name them
  std::vector<Frame> frames_{1};              // the first: outside any scope
  std::vector<std::vector<int>> recomputes_;  // leases that last until a recompute's backward is over
  bool in_backward_ = false;
  int64_t live_numel_ = 0, peak_live_numel_ = 0, gather_count_ = 0;
};

}  // namespace tessera::zero
