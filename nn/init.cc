// SPDX-License-Identifier: Apache-2.0
#include "nn/init.h"

#include <algorithm>
#include <cmath>

#include "tensor/ops/copy.h"
#include "tensor/ops/fill.h"
#include "tensor/rng.h"
#include "tensor/thread_pool.h"

namespace tessera::nn {

Init Init::KaimingUniform(int64_t fan_in) {
  return Uniform(fan_in > 0 ? 1 / std::sqrt(static_cast<double>(fan_in)) : 0);
}

void FillInit(const Init& init, uint64_t seed, std::string_view path, int64_t begin, const Tensor& out) {
  if (init.kind == Init::Kind::kConstant || out.device().is_meta()) {
    ops::Fill({.out = out.Write(), .value = init.value});
    return;
  }
  const RngKey key = RngKey(seed).With("init").With(path);
  // Drawn in f64 and rounded once, so that an f32 and an f64 model start from the same numbers; in parts, because a whole
  // embedding in f64 would be more than its rank holds of the model.
  constexpr int64_t kPart = int64_t{1} << 20;
  const Tensor values = EmptyOn(kCpu, {std::min(kPart, out.numel())}, DType::kF64, MemoryTag::kWorkspace);
  double* data = values.Write().as<double>();
  for (int64_t start = 0; start < out.numel(); start += kPart) {
    const int64_t count = std::min(kPart, out.numel() - start);
    ParallelFor(count, 16384, [&](int64_t first, int64_t last) {
      for (int64_t i = first; i < last; ++i) {
        const uint64_t element = static_cast<uint64_t>(begin + start + i);
        data[i] = init.kind == Init::Kind::kNormal
                      ? init.value * key.Normal(element)
                      : init.value * (2.0 * static_cast<double>(key.Uniform(element)) - 1.0);
      }
    });
    const Tensor part = out.WithLayout(Layout::Contiguous({count}, out.layout().offset() + start));
    ops::Copy({.x = values.WithLayout(Layout::Contiguous({count})).Read(), .out = part.Write()});
  }
}

}  // namespace tessera::nn
