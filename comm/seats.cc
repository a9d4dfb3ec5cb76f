// SPDX-License-Identifier: Apache-2.0
#include "comm/seats.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <ctime>
#include <thread>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace tessera::comm {
namespace {

constexpr int64_t kSpinNs = 5'000;

int64_t NowNs() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

void Pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t), "the kernel reads the bare word");

void FutexWait(std::atomic<uint32_t>& word, uint32_t expected, int64_t nanoseconds) {
  timespec time{nanoseconds / 1'000'000'000, nanoseconds % 1'000'000'000};
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAIT_PRIVATE, expected, &time, nullptr, 0);
}

void FutexWakeAll(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace

Seats::Seats(int size)
    : size_(size),
      spins_(static_cast<unsigned>(size) <= std::thread::hardware_concurrency()),
      seats_(std::make_unique<Seat[]>(static_cast<size_t>(size))) {}

bool Seats::Reached(uint32_t word, uint32_t epoch) {
  return static_cast<int32_t>((word & ~1u) - epoch * 2) >= 0;  // modulo 2^32: epochs wrap
}

void Seats::Arrive(int rank, uint32_t epoch) {
  Seat& seat = seats_[rank];
  // An addition, so that an abort at the same time keeps its bit.
  seat.word.fetch_add(epoch * 2 - (seat.word.load(std::memory_order_relaxed) & ~1u));
  if (seat.sleepers.load() != 0) FutexWakeAll(seat.word);
}

bool Seats::HasArrived(int rank, uint32_t epoch) const { return Reached(seats_[rank].word.load(), epoch); }

Seats::Outcome Seats::WaitForAll(uint32_t epoch, double timeout_s) {
  int64_t start_ns = 0;  // of waiting: the clock is read only where there is something to wait for
  for (int rank = 0; rank < size_; ++rank) {
    Seat& seat = seats_[rank];
    for (int turn = 1;; ++turn) {
      const uint32_t word = seat.word.load();
      if ((word & 1u) != 0) return Outcome::kAborted;
      if (Reached(word, epoch)) break;
      if (start_ns == 0) start_ns = NowNs();
      if (spins_ && (turn % 16 != 0 || NowNs() - start_ns < kSpinNs)) {
        Pause();
        continue;
      }
      const double timeout_ns = std::min(timeout_s * 1e9, 4e18 - static_cast<double>(start_ns));
      const Outcome outcome = Sleep(seat, epoch, start_ns + static_cast<int64_t>(timeout_ns));
      if (outcome != Outcome::kMet) return outcome;
      break;
    }
  }
  return Outcome::kMet;
}

Seats::Outcome Seats::Sleep(Seat& seat, uint32_t epoch, int64_t deadline_ns) {
  Outcome outcome;
  seat.sleepers.fetch_add(1);  // before the word is read: Arrive writes the word, then reads the sleepers
  while (true) {
    const uint32_t word = seat.word.load();
    outcome = (word & 1u) != 0 ? Outcome::kAborted : Outcome::kMet;
    if (outcome == Outcome::kAborted || Reached(word, epoch)) break;
    const int64_t left_ns = deadline_ns - NowNs();
    outcome = Outcome::kTimedOut;
    if (left_ns <= 0) break;
    FutexWait(seat.word, word, left_ns);
  }
  seat.sleepers.fetch_sub(1);
  return outcome;
}

void Seats::Abort() noexcept {
  aborted_.store(true);  // before any waiter can see its bit: see BeginReading
  for (int rank = 0; rank < size_; ++rank) {
    seats_[rank].word.fetch_or(1u);
    FutexWakeAll(seats_[rank].word);
  }
}

bool Seats::BeginReading(int rank) {
  // Sequentially consistent: whoever saw the abort and then no reader here comes before this store, so the load below
  // sees the abort.
  seats_[rank].reading.store(true);
  if (!aborted_.load()) return true;
  seats_[rank].reading.store(false);
  return false;
}

void Seats::WaitForReaders() const {
  for (int rank = 0; rank < size_; ++rank) {
    while (seats_[rank].reading.load()) std::this_thread::yield();
  }
}

}  // namespace tessera::comm
