// SPDX-License-Identifier: Apache-2.0
// Where the threads of a group meet: every rank has a seat with a counter (its epoch), and waits until the others' epochs
// have come as far. Inside comm only.
//
//   seats.Arrive(rank, 1);
//   switch (seats.WaitForAll(1, timeout_s)) { ... }      // kMet, kAborted or kTimedOut
//
// A wait spins for a few microseconds where each rank can have a processor, then sleeps in the kernel; Abort ends every
// wait at once. All writes before an Arrive are visible to whoever has seen it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

namespace tessera::comm {

class Seats {
 public:
  enum class Outcome : uint8_t { kMet, kAborted, kTimedOut };

  explicit Seats(int size);

  // Moves the epoch of `rank` on to `epoch`; called by that rank only. Epochs wrap, and ranks are never 2^30 apart.
  void Arrive(int rank, uint32_t epoch);
  bool HasArrived(int rank, uint32_t epoch) const;
  // The calling rank is one of "all" and has arrived.
  Outcome WaitForAll(uint32_t epoch, double timeout_s);
  void Abort() noexcept;

  // Around reading other ranks' memory. A rank that an abort drives out of a collective waits for the readers before its
  // memory may change or go; a reader never waits between the two calls. BeginReading is false after an abort.
  bool BeginReading(int rank);
  void EndReading(int rank) { seats_[rank].reading.store(false); }
  void WaitForReaders() const;

 private:
  // The word is the epoch in its upper 31 bits and the abort in bit 0: one load tells both, and a sleeper that has not
  // yet slept cannot miss an abort, because the kernel compares the word.
  struct alignas(64) Seat {
    std::atomic<uint32_t> word{0};
    std::atomic<uint32_t> sleepers{0};
    std::atomic<bool> reading{false};
  };
  static bool Reached(uint32_t word, uint32_t epoch);
  Outcome Sleep(Seat& seat, uint32_t epoch, int64_t deadline_ns);

  int size_;
  bool spins_;
  std::atomic<bool> aborted_{false};
  std::unique_ptr<Seat[]> seats_;
};

}  // namespace tessera::comm
