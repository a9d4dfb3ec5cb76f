#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""PyTorch's times for what gpu_bench measures, in the same form; bench/gpu.sh runs it where PyTorch is installed."""
import statistics
import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError:
    sys.exit("no PyTorch here")
if not torch.cuda.is_available():
    sys.exit("no GPU here")


def microseconds(function, repeats=15):
    for _ in range(5):
        function()
    times = []
    for _ in range(repeats):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(10):
            function()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 100)
    return statistics.median(times)


def line(name, us, amount, unit):
    print(f"{name:<60} {us:9.1f} us {amount / us:9.1f} {unit}")


def random(*shape, dtype):
    return torch.randn(*shape, device="cuda", dtype=dtype)


def linear(rows, width, out, dtype):
    name = f"torch linear {str(dtype)[6:]} {rows} x {width} -> {out}"
    x, w, b, dy = random(rows, width, dtype=dtype), random(out, width, dtype=dtype), random(out, dtype=dtype), None
    dy = random(rows, out, dtype=dtype)
    tera = 2.0 * rows * width * out / 1e6
    line(f"{name}, bias", microseconds(lambda: F.linear(x, w, b)), tera, "TFLOP/s")
    line(f"{name}, bias, then gelu", microseconds(lambda: F.gelu(F.linear(x, w, b), approximate="tanh")), tera, "TFLOP/s")
    line(f"{name}, dx", microseconds(lambda: dy @ w), tera, "TFLOP/s")
    line(f"{name}, dweight", microseconds(lambda: dy.t() @ x), tera, "TFLOP/s")


def rms_norm(rows, width, dtype):
    name = f"torch rms_norm {str(dtype)[6:]} {rows} x {width}"
    x = random(rows, width, dtype=dtype).requires_grad_()
    w = random(width, dtype=dtype).requires_grad_()
    dy = random(rows, width, dtype=dtype)
    giga = 2.0 * rows * width * x.element_size() / 1e3
    with torch.no_grad():
        line(f"{name}, forward", microseconds(lambda: F.rms_norm(x, (width,), w, 1e-5)), giga, "GB/s")
    y = F.rms_norm(x, (width,), w, 1e-5)
    backward = microseconds(lambda: torch.autograd.grad(y, (x, w), dy, retain_graph=True))
    line(f"{name}, dx, dweight", backward, 1.5 * giga, "GB/s")


print(f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}")
torch.backends.cuda.matmul.allow_tf32 = False
linear(8192, 4096, 4096, torch.bfloat16)
linear(8192, 768, 3072, torch.bfloat16)
linear(4096, 2048, 2048, torch.float32)
rms_norm(16384, 4096, torch.bfloat16)
rms_norm(65536, 768, torch.bfloat16)
rms_norm(16384, 4096, torch.float32)
