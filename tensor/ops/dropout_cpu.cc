// SPDX-License-Identifier: Apache-2.0
#include "tensor/ops/dropout.h"
#include "tensor/ops/elementwise_cpu.h"

namespace tessera::ops::cpu::TESSERA_ISA {
namespace {

constexpr int64_t kLanes =
    32;  // Philox blocks made side by side; with fewer the compiler unrolls instead of vectorising

// RngKey::Bits of the 4 * kLanes elements from 4 * `counter` on: Philox4x32 of rng.h, lane by lane so that it vectorises.
void PhiloxLanes(uint64_t key, uint64_t counter, uint32_t* bits) {
  uint32_t c0[kLanes], c1[kLanes], c2[kLanes], c3[kLanes];
  for (int64_t i = 0; i < kLanes; ++i) {
    const uint64_t block = counter + static_cast<uint64_t>(i);
    c0[i] = static_cast<uint32_t>(block);
    c1[i] = static_cast<uint32_t>(block >> 32);
    c2[i] = c3[i] = 0;
  }
  uint32_t k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    for (int64_t i = 0; i < kLanes; ++i) {
      const uint64_t p0 = uint64_t{0xD2511F53u} * c0[i];
      const uint64_t p1 = uint64_t{0xCD9E8D57u} * c2[i];
      c0[i] = static_cast<uint32_t>(p1 >> 32) ^ c1[i] ^ k0;
      c1[i] = static_cast<uint32_t>(p1);
      c2[i] = static_cast<uint32_t>(p0 >> 32) ^ c3[i] ^ k1;
      c3[i] = static_cast<uint32_t>(p0);
    }
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  for (int64_t i = 0; i < kLanes; ++i) {
    bits[4 * i] = c0[i];
    bits[4 * i + 1] = c1[i];
    bits[4 * i + 2] = c2[i];
    bits[4 * i + 3] = c3[i];
  }
}

template <class A>
void DropoutAs(const DropoutArgs& args) {
  const A scale = args.p < 1 ? static_cast<A>(1 / (1 - args.p)) : A(0);
  // Uniform(i) = (Bits(i) >> 8) * 2^-24 < p, in integers.
  const uint32_t dropped_below = static_cast<uint32_t>(std::ceil(args.p * 0x1p24));
  const Layout index = Layout::Contiguous(args.x.shape());  // its offsets count the elements
  const Layout* const layouts[] = {&args.y.layout, &args.x.layout, &index};
  const auto run = [&](const int64_t* offsets, int64_t n, const int64_t* steps) {
    ReadRun<A> x(args.x, offsets[1], n, steps[1]);
    WriteRun<A> y(args.y, offsets[0], steps[0]);
    alignas(64) uint32_t bits[kBlock + 4 * kLanes];
    ForEachBlock(n, [&](int64_t begin, int64_t count) {
      const uint64_t first = static_cast<uint64_t>(offsets[2] + begin);
      const int64_t skipped = static_cast<int64_t>(first % 4);
      for (int64_t made = 0; made < skipped + count; made += 4 * kLanes) {
        PhiloxLanes(args.key.bits(), first / 4 + static_cast<uint64_t>(made / 4), bits + made);
      }
      const uint32_t* own = bits + skipped;
      const A* from = x.Block(begin, count);
      Map(count, y.Block(begin), [&](int64_t i) {
        const A kept = from[i] * scale;
        return (own[i] >> 8) < dropped_below ? A(0) : kept;
      });
      y.Commit(begin, count);
    });
  };
  StridedLoop<3>(layouts).ForEach(run);
}

}  // namespace

void Dropout(const DropoutArgs& args) {
  DispatchAccumulator(args.x.dtype, [&](auto tag) { DropoutAs<typename decltype(tag)::type>(args); });
}

}  // namespace tessera::ops::cpu::TESSERA_ISA
