// SPDX-License-Identifier: Apache-2.0
#include "tensor/context.h"

#include "tensor/allocator.h"
#include "tensor/cuda/allocator.h"
#include "tensor/error.h"
#include "tensor/thread_pool.h"

namespace tessera {

Context& CurrentContext() {
  thread_local Context context;
  return context;
}

Allocator& Context::allocator_for(Device where) const {
  if (where.is_cpu()) return cpu_allocator != nullptr ? *cpu_allocator : CpuAllocator();
  if (where.is_meta()) return MetaAllocator();
  if constexpr (kBuiltWithCuda) return CudaAllocator(where.index);
  throw Error(Str("allocate: device ", where, " is not part of this build (configure with -Dcuda=enabled)"));
}

ThreadPool& Context::pool() const { return thread_pool != nullptr ? *thread_pool : ThreadPool::Global(); }

RngKey Context::NextRandomKey(std::string_view path) {
  return RngKey(seed)
      .With(static_cast<uint64_t>(step))
      .With(static_cast<uint64_t>(micro_step))
      .With(static_cast<uint64_t>(rank))
      .With(path)
      .With(random_calls++);
}

ContextGuard::ContextGuard(const Context& context) : previous_(CurrentContext()) { CurrentContext() = context; }
ContextGuard::~ContextGuard() { CurrentContext() = previous_; }

}  // namespace tessera
