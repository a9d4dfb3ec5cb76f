#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Golden training traces of a tiny GPT and a tiny Llama, from plain torch operations.

An independent reference for the framework's own training: both sides build weights and tokens from the
integer formulas below, so no weights are stored. README.md beside this file states formulas and format.

  python make_golden.py           writes {gpt,llama}_{f64,f32}.txt beside this file
  python make_golden.py --check   compares the model maths with transformers, and the traces with a re-summed run
"""
import argparse
import math
import pathlib

import numpy as np
import torch

HERE = pathlib.Path(__file__).resolve().parent
MASK = (1 << 64) - 1
STEPS, BATCH, SEQ, VOCAB, DIM, HEADS, LAYERS = 20, 36, 16, 67, 32, 4, 2
KV_HEADS, FFN, THETA, EPS = 2, 88, 10000.0, 1e-5
LR, BETAS, ADAM_EPS, DECAY, CLIP = 3e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
IGNORE = -100


def splitmix64(z):
    z = (z + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def fnv1a64(text):
    h = 0xCBF29CE484222325
    for byte in text.encode("utf-8"):
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def unit(path, k):
    """f64 in [0, 1)."""
    return (splitmix64((fnv1a64(path) + k) & MASK) >> 11) * 2.0**-53


def filled(path, shape, centre=0.0, scale=1.0):
    """f64 tensor; element k in row-major order is centre + scale * (2 * unit(path, k) - 1)."""
    n = math.prod(shape)
    values = [centre + scale * (2.0 * unit(path, k) - 1.0) for k in range(n)]
    return torch.tensor(np.array(values, dtype=np.float64)).reshape(shape)


def batch(step):
    """Inputs and targets of one step, both (BATCH, SEQ)."""
    inputs, targets = [], []
    for sample in range(BATCH):
        r = step * BATCH + sample
        tok = [splitmix64(1000003 * r) % VOCAB]
        for t in range(SEQ):
            tok.append((5 * tok[t] + 7 + splitmix64(1000003 * r + t + 1) % 3) % VOCAB)
        inputs.append(tok[:SEQ])
        targets.append([IGNORE if splitmix64(7777 + 17 * r + t) % 11 == 0 else tok[t + 1] for t in range(SEQ)])
    return torch.tensor(inputs), torch.tensor(targets)


def gpt_shapes():
    s = {"wte.weight": (VOCAB, DIM), "wpe.weight": (SEQ, DIM)}
    for i in range(LAYERS):
        b = f"blocks.{i}."
        s |= {b + "ln_1.weight": (DIM,), b + "ln_1.bias": (DIM,),
              b + "attn.c_attn.weight": (3 * DIM, DIM), b + "attn.c_attn.bias": (3 * DIM,),
              b + "attn.c_proj.weight": (DIM, DIM), b + "attn.c_proj.bias": (DIM,),
              b + "ln_2.weight": (DIM,), b + "ln_2.bias": (DIM,),
              b + "mlp.c_fc.weight": (4 * DIM, DIM), b + "mlp.c_fc.bias": (4 * DIM,),
              b + "mlp.c_proj.weight": (DIM, 4 * DIM), b + "mlp.c_proj.bias": (DIM,)}
    return s | {"ln_f.weight": (DIM,), "ln_f.bias": (DIM,)}


def llama_shapes():
    kv = DIM // HEADS * KV_HEADS
    s = {"embed_tokens.weight": (VOCAB, DIM)}
    for i in range(LAYERS):
        b = f"layers.{i}."
        s |= {b + "input_layernorm.weight": (DIM,),
              b + "self_attn.q_proj.weight": (DIM, DIM), b + "self_attn.k_proj.weight": (kv, DIM),
              b + "self_attn.v_proj.weight": (kv, DIM), b + "self_attn.o_proj.weight": (DIM, DIM),
              b + "post_attention_layernorm.weight": (DIM,),
              b + "mlp.gate_proj.weight": (FFN, DIM), b + "mlp.up_proj.weight": (FFN, DIM),
              b + "mlp.down_proj.weight": (DIM, FFN)}
    return s | {"norm.weight": (DIM,), "lm_head.weight": (VOCAB, DIM)}


def make_params(shapes, dtype):
    params = {}
    for path, shape in shapes.items():
        if len(shape) == 2:
            centre, scale = 0.0, 0.08
        elif path.endswith(".weight"):
            centre, scale = 1.0, 0.1
        else:
            centre, scale = 0.0, 0.02
        params[path] = filled(path, shape, centre, scale).to(dtype).requires_grad_()
    return params


def layer_norm(x, weight, bias):
    c = x - x.mean(-1, keepdim=True)
    return c * torch.rsqrt((c * c).mean(-1, keepdim=True) + EPS) * weight + bias


def rms_norm(x, weight):
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + EPS) * weight


def gelu_tanh(x):
    return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x * x * x)))


def rope_tables(seq, head_dim, dtype):
    """cos and sin, (seq, head_dim / 2), computed in f64."""
    freq = THETA ** (-torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    angle = torch.outer(torch.arange(seq, dtype=torch.float64), freq)
    return angle.cos().to(dtype), angle.sin().to(dtype)


def rope(x, cos, sin):
    """Half-split rotation of x (B, H, T, D): element d pairs with d + D/2."""
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def attention(q, k, v):
    """Causal; q (B, Hq, T, D), k and v (B, Hkv, T, D); query head h reads key head h / (Hq / Hkv)."""
    group, seq = q.shape[1] // k.shape[1], q.shape[2]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    future = torch.ones(seq, seq, dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(-1) @ v


def heads(x, n):
    return x.view(x.shape[0], x.shape[1], n, -1).transpose(1, 2)


def merge(x):
    return x.transpose(1, 2).flatten(2)


def gpt_logits(p, tokens):
    x = p["wte.weight"][tokens] + p["wpe.weight"][: tokens.shape[1]]
    for i in range(LAYERS):
        b = f"blocks.{i}."
        linear = lambda y, name: y @ p[b + name + ".weight"].T + p[b + name + ".bias"]
        y = layer_norm(x, p[b + "ln_1.weight"], p[b + "ln_1.bias"])
        q, k, v = (heads(z, HEADS) for z in linear(y, "attn.c_attn").split(DIM, -1))
        x = x + linear(merge(attention(q, k, v)), "attn.c_proj")
        y = layer_norm(x, p[b + "ln_2.weight"], p[b + "ln_2.bias"])
        x = x + linear(gelu_tanh(linear(y, "mlp.c_fc")), "mlp.c_proj")
    return layer_norm(x, p["ln_f.weight"], p["ln_f.bias"]) @ p["wte.weight"].T


def llama_logits(p, tokens):
    x = p["embed_tokens.weight"][tokens]
    cos, sin = rope_tables(tokens.shape[1], DIM // HEADS, x.dtype)
    for i in range(LAYERS):
        b = f"layers.{i}."
        linear = lambda y, name: y @ p[b + name + ".weight"].T
        y = rms_norm(x, p[b + "input_layernorm.weight"])
        q = rope(heads(linear(y, "self_attn.q_proj"), HEADS), cos, sin)
        k = rope(heads(linear(y, "self_attn.k_proj"), KV_HEADS), cos, sin)
        v = heads(linear(y, "self_attn.v_proj"), KV_HEADS)
        x = x + linear(merge(attention(q, k, v)), "self_attn.o_proj")
        y = rms_norm(x, p[b + "post_attention_layernorm.weight"])
        gate = linear(y, "mlp.gate_proj")
        x = x + linear(gate * torch.sigmoid(gate) * linear(y, "mlp.up_proj"), "mlp.down_proj")
    return rms_norm(x, p["norm.weight"]) @ p["lm_head.weight"].T


MODELS = {"gpt": (gpt_shapes, gpt_logits), "llama": (llama_shapes, llama_logits)}
DTYPES = {"f64": torch.float64, "f32": torch.float32}


def token_loss_sum(logits, targets):
    keep = targets != IGNORE
    logp = logits.log_softmax(-1)
    return -logp.gather(-1, targets.clamp(min=0)[..., None])[..., 0][keep].sum()


def total_norm(tensors):
    """L2 norm over all elements, summed in f64 whatever the dtype."""
    return math.sqrt(math.fsum((t.detach().double() ** 2).sum().item() for t in tensors))


def train(model, dtype, micro=BATCH):
    """Rows (loss, grad_norm, weight_norm) of every step, and the final norm of every parameter."""
    shapes, logits = MODELS[model]
    p = make_params(shapes(), dtype)
    opt = torch.optim.AdamW(
        [{"params": [q for q in p.values() if q.dim() == 2], "weight_decay": DECAY},
         {"params": [q for q in p.values() if q.dim() < 2], "weight_decay": 0.0}],
        lr=LR, betas=BETAS, eps=ADAM_EPS, foreach=False)
    rows = []
    for step in range(STEPS):
        inputs, targets = batch(step)
        count, loss = (targets != IGNORE).sum().item(), 0.0
        opt.zero_grad()
        for i in range(0, BATCH, micro):
            part = token_loss_sum(logits(p, inputs[i:i + micro]), targets[i:i + micro]) / count
            part.backward()
            loss += part.item()
        norm = total_norm(q.grad for q in p.values())
        factor = min(1.0, CLIP / (norm + 1e-6))
        for q in p.values():
            q.grad.mul_(factor)
        opt.step()
        rows.append((loss, norm, total_norm(p.values())))
    return rows, {path: total_norm([q]) for path, q in p.items()}


def write(model, name):
    rows, norms = train(model, DTYPES[name])
    text = [
        "# SPDX-License-Identifier: Apache-2.0",
        f"# Made by make_golden.py with torch {torch.__version__.split('+')[0]}: tiny {model}, {name}, AdamW, {STEPS} steps.",
        "# step <i> <loss before the update> <gradient norm before clipping> <norm of all weights after the update>",
        "# param <path> <norm after the last step>"]
    text += [f"step {i} " + " ".join(f"{v:.17g}" for v in row) for i, row in enumerate(rows)]
    text += [f"param {path} {norm:.17g}" for path, norm in norms.items()]
    (HERE / f"{model}_{name}.txt").write_text("\n".join(text) + "\n")
    print(f"{model}_{name}: loss {rows[0][0]:.6f} -> {rows[-1][0]:.6f}, grad norm {rows[0][1]:.4f} -> {rows[-1][1]:.4f}")


def hf_gpt(p):
    from transformers import GPT2Config, GPT2LMHeadModel
    net = GPT2LMHeadModel(GPT2Config(
        vocab_size=VOCAB, n_positions=SEQ, n_embd=DIM, n_head=HEADS, n_layer=LAYERS, activation_function="gelu_new",
        layer_norm_epsilon=EPS, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, attn_implementation="sdpa")).double()
    theirs = dict(net.named_parameters())
    name = lambda path: "transformer." + path.replace("blocks.", "h.")
    # Conv1D stores (in, out).
    transposed = lambda path: path.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))
    return net, {path: (theirs[name(path)], transposed(path)) for path in p}


def hf_llama(p):
    from transformers import LlamaConfig, LlamaForCausalLM
    net = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCAB, hidden_size=DIM, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, max_position_embeddings=SEQ, rms_norm_eps=EPS, rope_theta=THETA,
        tie_word_embeddings=False, attn_implementation="sdpa")).double()

    class Tables(torch.nn.Module):  # theirs are made in f32 even for an f64 model
        def forward(self, x, position_ids=None, **_):
            cos, sin = rope_tables(x.shape[1], DIM // HEADS, x.dtype)
            return torch.cat((cos, cos), -1)[None], torch.cat((sin, sin), -1)[None]

    cos, _ = net.model.rotary_emb(torch.zeros(1, SEQ, DIM, dtype=torch.float64), torch.arange(SEQ)[None])
    mine = rope_tables(SEQ, DIM // HEADS, torch.float64)[0]
    assert (cos[0] - torch.cat((mine, mine), -1)).abs().max() < 1e-5
    net.model.rotary_emb = Tables()
    for module in net.modules():  # theirs normalises in f32
        if type(module).__name__ == "LlamaRMSNorm":
            module.forward = lambda x, w=module.weight: torch.nn.functional.rms_norm(x, (DIM,), w, EPS)
    theirs = dict(net.named_parameters())
    return net, {path: (theirs[path if path == "lm_head.weight" else "model." + path], False) for path in p}


def check():
    worst = 0.0
    for model, hf in (("gpt", hf_gpt), ("llama", hf_llama)):
        shapes, logits = MODELS[model]
        p = make_params(shapes(), torch.float64)
        net, theirs = hf(p)
        assert len(theirs) == len(list(net.parameters()))
        with torch.no_grad():
            for path, (q, flip) in theirs.items():
                q.copy_(p[path].T if flip else p[path])
        inputs, targets = batch(0)
        a = token_loss_sum(logits(p, inputs), targets) / (targets != IGNORE).sum()
        b = torch.nn.functional.cross_entropy(net(inputs).logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORE)
        a.backward()
        b.backward()
        grad = max((p[path].grad - (q.grad.T if flip else q.grad)).abs().max().item() for path, (q, flip) in theirs.items())
        print(f"{model}: loss {a.item():.15f}, minus transformers {abs(a.item() - b.item()):.2e}, worst gradient element {grad:.2e}")
        worst = max(worst, abs(a.item() - b.item()), grad)
        for name, dtype in DTYPES.items():
            (r1, n1), (r2, n2) = train(model, dtype), train(model, dtype, micro=6)
            d = [max(abs(x[i] - y[i]) for x, y in zip(r1, r2)) for i in range(3)]
            path = max(n1, key=lambda k: abs(n1[k] - n2[k]))
            print(f"  {name} re-summed in 6 micro-batches: loss {d[0]:.1e}, grad norm {d[1]:.1e}, weight norm {d[2]:.1e}, "
                  f"worst parameter norm {abs(n1[path] - n2[path]):.1e} ({path})")
    assert worst < 1e-12, worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    if args.check:
        return check()
    for model in MODELS:
        for name in DTYPES:
            write(model, name)


if __name__ == "__main__":
    main()
