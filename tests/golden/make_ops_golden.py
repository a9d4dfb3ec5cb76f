#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden values of single operations and optimizers, from torch in f64; writes ops.txt beside this file.

Inputs and output gradients are filled(name, shape) of make_golden.py, centre 0 and scale 1 unless said here, and are
written out too. `<op>.y` is the result, `<op>.dy` the gradient fed to it, `<op>.d<input>` the gradient of an input.
"""
import torch
import torch.nn.functional as F

from make_golden import EPS, HERE, IGNORE, attention, filled, rope, rope_tables, splitmix64, unit

LINES = []


def put(name, t):
    t = t.detach()
    values = [f"{v:.17g}" for v in t.double().flatten().tolist()]
    LINES.append(" ".join(["tensor", name, str(t.dim()), *map(str, t.shape), *values]))


def op(name, fn, shapes, scale=1.0):
    """Writes inputs, result, output gradient and input gradients of y = fn(*inputs)."""
    args = {k: filled(f"{name}.{k}", s, 0.0, scale).requires_grad_() for k, s in shapes.items()}
    y = fn(*args.values())
    dy = filled(f"{name}.dy", y.shape)
    y.backward(dy)
    for k, v in args.items():
        put(f"{name}.{k}", v)
    put(f"{name}.y", y)
    put(f"{name}.dy", dy)
    for k, v in args.items():
        put(f"{name}.d{k}", v.grad)


def attention_bthd(q, k, v):
    q, k, v = (z.transpose(1, 2) for z in (q, k, v))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    assert (y - attention(q, k, v)).abs().max() < 1e-14
    return y.transpose(1, 2)


def rope_bthd(x):
    cos, sin = rope_tables(x.shape[1], x.shape[-1], x.dtype)
    return rope(x.transpose(1, 2), cos, sin).transpose(1, 2)


def cross_entropy():
    rows, vocab = 7, 11
    x = filled("cross_entropy.x", (rows, vocab), 0.0, 3.0).requires_grad_()
    targets = torch.tensor([IGNORE if i in (2, 5) else splitmix64(42 + i) % vocab for i in range(rows)])
    loss = F.cross_entropy(x, targets, ignore_index=IGNORE)
    loss.backward()
    put("cross_entropy.x", x)
    put("cross_entropy.targets", targets)
    put("cross_entropy.row_loss", F.cross_entropy(x, targets, ignore_index=IGNORE, reduction="none"))
    put("cross_entropy.loss", loss)
    put("cross_entropy.dx", x.grad)


STEPS, SIZE = 5, 7


def gradient(step):
    return torch.tensor([2.0 * unit("g", step * SIZE + k) - 1.0 for k in range(SIZE)], dtype=torch.float64)


def trace(name, make):
    """Row s of `<name>.trace` is the parameter after step s."""
    p = filled("opt.p", (SIZE,)).requires_grad_()
    opt, rows = make([p]), []
    for step in range(STEPS):
        p.grad = gradient(step)
        opt.step()
        rows.append(p.detach().clone())
    put(f"{name}.trace", torch.stack(rows))


def lion(name, zero_at=None, lr=1e-3, b1=0.9, b2=0.99, decay=0.1):
    p, rows = filled("opt.p", (SIZE,)), []
    m = torch.zeros_like(p)
    for step in range(STEPS):
        g = gradient(step)
        if zero_at is not None:
            g[zero_at] = 0.0
        update = torch.sign(b1 * m + (1.0 - b1) * g) + decay * p
        p = p - lr * update
        m = b2 * m + (1.0 - b2) * g
        rows.append(p)
    put(f"{name}.trace", torch.stack(rows))


def main():
    torch.set_num_threads(1)
    op("softmax", lambda x: x.softmax(-1), {"x": (3, 9)})
    op("softmax_wide", lambda x: x.softmax(-1), {"x": (3, 9)}, scale=40.0)
    op("layer_norm", lambda x, w, b: F.layer_norm(x, w.shape, w, b, EPS), {"x": (5, 12), "weight": (12,), "bias": (12,)})
    op("rms_norm", lambda x, w: F.rms_norm(x, w.shape, w, EPS), {"x": (5, 12), "weight": (12,)})
    for suffix, scale in (("", 1.0), ("_wide", 6.0)):
        op("gelu_tanh" + suffix, lambda x: F.gelu(x, approximate="tanh"), {"x": (4, 5)}, scale)
        op("gelu_erf" + suffix, F.gelu, {"x": (4, 5)}, scale)
        op("silu" + suffix, F.silu, {"x": (4, 5)}, scale)
    op("swiglu", lambda gate, up: F.silu(gate) * up, {"gate": (4, 5), "up": (4, 5)})
    op("attention", attention_bthd, {"q": (2, 5, 4, 6), "k": (2, 5, 2, 6), "v": (2, 5, 2, 6)})
    op("rope", rope_bthd, {"x": (2, 5, 3, 8)})
    cross_entropy()
    put("opt.p", filled("opt.p", (SIZE,)))
    put("opt.g", torch.stack([gradient(s) for s in range(STEPS)]))
    adam = dict(lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, foreach=False)
    sgd = dict(lr=0.1, momentum=0.9, weight_decay=0.01, foreach=False)
    trace("adamw", lambda p: torch.optim.AdamW(p, **adam))
    trace("adam_l2", lambda p: torch.optim.Adam(p, **adam))
    trace("sgd_momentum", lambda p: torch.optim.SGD(p, **sgd))
    trace("sgd_nesterov", lambda p: torch.optim.SGD(p, nesterov=True, **sgd))
    lion("lion")
    lion("lion_zero", zero_at=3)
    head = f"""# SPDX-License-Identifier: Apache-2.0
# Made by make_ops_golden.py with torch {torch.__version__.split('+')[0]}, f64.
# tensor <name> <rank> <dims...> <values, row-major...>
# <op>.<input>, <op>.y (result), <op>.dy (gradient fed in), <op>.d<input> (gradient out).
# Inputs are uniform in [-1, 1); *_wide: softmax +-40, gelu and silu +-6; cross_entropy.x +-3.
# Norms over the last dimension, eps 1e-5. attention: (B, T, H, D), causal, scale 1/sqrt(D), query head h reads key head h/2.
# rope: (B, T, H, D), half-split, theta 10000, positions 0..T-1. cross_entropy: mean over targets that are not -100.
# <optimizer>.trace: row s is the parameter after step s; it starts at opt.p; the gradient of step s is row s of opt.g.
# adamw, adam_l2: lr 0.01, betas 0.9 0.95, eps 1e-8, decay 0.1. sgd_*: lr 0.1, momentum 0.9, decay 0.01 (L2), no dampening.
# lion: lr 0.001, betas 0.9 0.99, decay 0.1. lion_zero: the same with element 3 of every gradient set to 0."""
    (HERE / "ops.txt").write_text("\n".join([*head.split("\n"), *LINES]) + "\n")
    print(f"ops.txt: {len(LINES)} tensors")


if __name__ == "__main__":
    main()
