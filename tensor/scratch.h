// SPDX-License-Identifier: Apache-2.0
// Work memory that belongs to a thread: the packing buffers of matrix products, the score blocks of attention.
//
// A kernel that packs needs some hundred kilobytes on every thread it runs on, and must not ask the system for them in
// each call. A slot grows to the largest request so far and lives as long as its thread. It belongs to no model, so the
// allocator's counts by tag do not include it; the users of a slot state the bound.
//
//   float* panel = static_cast<float*>(ThreadScratch(ScratchSlot::kGemmB, bytes));
#pragma once

#include <cstdint>

namespace tessera {

enum class ScratchSlot : uint8_t { kGemmA, kGemmB, kGemmTile, kAttention };
inline constexpr int kScratchSlotCount = 5;

// Aligned to 64 bytes, contents undefined; valid until this thread asks for the same slot again.
void* ThreadScratch(ScratchSlot slot, int64_t bytes);

}  // namespace tessera
