#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes arch.json and arch.f32, the golden logits of arch_test.c: one small random model of each architecture.

    make_arch.py OUT_FOLDER        (needs torch, transformers, numpy; CPU builds are enough)

The files here came from Python 3.11, torch 2.15.0, transformers 5.24.0, numpy 2.4.6 on x86-64.

No weights are stored: both sides draw them from a seed (splitmix64, as in test/support/tiny_model.h) as the GGUF holds
them, tensor after tensor in the order of "tensors". Here they are turned back into what transformers expects: rows of Wq and
Wk unpermuted for the llama architecture, 1 taken off Gemma's norms. transformers runs in float32 with eager attention.

    arch.json   {"tokens": ids, "positions": whose logits are stored, "n_vocab", "cases": [{"name", "arch",
                 "u32": {key: value}, "f32": {key: value}, "tensors": [[name, n_in, n_out (0: vector), amplitude, add]], "seed"}]}
    arch.f32    [case][position][n_vocab] little-endian float32
"""
import json, os, sys
import numpy as np, torch
from transformers import (Gemma3ForCausalLM, Gemma3TextConfig, LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM, Qwen2Config,
                          Qwen2ForCausalLM, Qwen3Config, Qwen3ForCausalLM)

N_VOCAB, N_TOKENS, WINDOW = 291, 100, 21  # the window ends inside a block of 16 keys
POSITIONS = [3, 20, 21, 40, 63, 64, 77, 99]
TOKENS = [3 + (i * i * 31 + i * 7) % 256 for i in range(N_TOKENS)]
MASK = (1 << 64) - 1
DRAWS = np.uint64(5)  # kn_tiny_fill draws the value, then four bytes that it overwrites

class Random:
    def __init__(self, seed): self.state = (seed + 1) & MASK
    def uniform(self, n, amplitude):
        with np.errstate(over="ignore"):
            z = np.uint64(self.state) + np.uint64(0x9e3779b97f4a7c15) * (DRAWS * np.arange(n, dtype=np.uint64) + np.uint64(1))
            self.state = (self.state + 0x9e3779b97f4a7c15 * n * int(DRAWS)) & MASK
            z = (z ^ z >> np.uint64(30)) * np.uint64(0xbf58476d1ce4e5b9)
            z = (z ^ z >> np.uint64(27)) * np.uint64(0x94d049bb133111eb)
            z = z ^ z >> np.uint64(31)
        return ((z >> np.uint64(40)).astype(np.float32) * np.float32(2.0**-23) - np.float32(1)) * np.float32(amplitude)

def case(name, arch, seed, n_layer=3, n_embd=96, n_head=4, n_kv=2, d=32, n_ff=128, base=10000.0, eps=1e-5, untied=False, bias=False, qk_norm=False,
         window=0, linear=0, llama3=None, softcap=0):
    gemma = arch == "gemma3"
    q, kv = n_head * d, n_kv * d
    u32 = {"block_count": n_layer, "context_length": 512, "embedding_length": n_embd, "feed_forward_length": n_ff, "attention.head_count": n_head,
           "attention.head_count_kv": n_kv, "attention.key_length": d, "attention.value_length": d}
    f32 = {"attention.layer_norm_rms_epsilon": eps, "rope.freq_base": base}
    if window: u32["attention.sliding_window"] = window
    if linear: f32["rope.scaling.factor"] = float(linear)
    if softcap: f32["final_logit_softcapping"] = float(softcap)
    a, a_q, a_ff = 1.7 / n_embd**0.5, 1.7 / q**0.5, 1.7 / n_ff**0.5
    tensors = [["token_embd.weight", n_embd, N_VOCAB, 0.15 if gemma else 0.3, 0]]
    for l in range(n_layer):
        row = [["attn_norm.weight", n_embd, 0, 0.1, 1], ["attn_q.weight", n_embd, q, 2 * a, 0], ["attn_k.weight", n_embd, kv, 2 * a, 0],
               ["attn_v.weight", n_embd, kv, a, 0], ["attn_output.weight", q, n_embd, a_q, 0], ["ffn_norm.weight", n_embd, 0, 0.1, 1],
               ["ffn_gate.weight", n_embd, n_ff, a, 0], ["ffn_up.weight", n_embd, n_ff, a, 0], ["ffn_down.weight", n_ff, n_embd, a_ff, 0]]
        if bias: row += [["attn_q.bias", q, 0, 0.7, 0], ["attn_k.bias", kv, 0, 0.7, 0], ["attn_v.bias", kv, 0, 0.3, 0]]
        if qk_norm or gemma: row += [["attn_q_norm.weight", d, 0, 0.4, 1], ["attn_k_norm.weight", d, 0, 0.4, 1]]
        if gemma: row += [["post_attention_norm.weight", n_embd, 0, 0.2, 0.6], ["post_ffw_norm.weight", n_embd, 0, 0.2, 0.6]]
        tensors += [["blk.%d.%s" % (l, t[0])] + t[1:] for t in row]
    tensors.append(["output_norm.weight", n_embd, 0, 0.1, 1])
    if untied: tensors.append(["output.weight", n_embd, N_VOCAB, 0.2, 0])

    rope = {"rope_type": "default", "rope_theta": base}
    if linear: rope = {"rope_type": "linear", "rope_theta": base, "factor": float(linear)}
    if llama3: rope = {"rope_type": "llama3", "rope_theta": base, **llama3}
    common = dict(vocab_size=N_VOCAB, hidden_size=n_embd, intermediate_size=n_ff, num_hidden_layers=n_layer, num_attention_heads=n_head,
                  num_key_value_heads=n_kv, head_dim=d, max_position_embeddings=512, rms_norm_eps=eps, tie_word_embeddings=not untied,
                  attn_implementation="eager")
    if name.startswith("mistral"):
        model = MistralForCausalLM(MistralConfig(**common, rope_parameters=rope, sliding_window=window))
    elif arch == "llama":
        model = LlamaForCausalLM(LlamaConfig(**common, rope_parameters=rope))
    elif arch == "qwen2":
        common.pop("head_dim")
        model = Qwen2ForCausalLM(Qwen2Config(**common, rope_parameters=rope, use_sliding_window=False))
    elif arch == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**common, rope_parameters=rope))
    else:
        scalar = n_embd // n_head if n_layer == 62 else d
        model = Gemma3ForCausalLM(Gemma3TextConfig(**common, sliding_window=window, query_pre_attn_scalar=scalar, final_logit_softcapping=float(softcap) if softcap else None,
            rope_parameters={"full_attention": rope, "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}}))

    names = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight", "output.weight": "lm_head.weight"}
    parts = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
             "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "post_ffw_norm": "post_feedforward_layernorm",
             "ffn_norm": "pre_feedforward_layernorm" if gemma else "post_attention_layernorm", "post_attention_norm": "post_attention_layernorm"}
    random, state = Random(seed), {}
    for full, n_in, n_out, amplitude, add in tensors:
        x = random.uniform(n_in * max(n_out, 1), amplitude) + np.float32(add)
        x = torch.from_numpy(x.reshape(n_out, n_in) if n_out else x)
        if full in names:
            to = names[full]
        else:
            _, l, part, kind = full.split(".")
            to = "model.layers.%s.%s.%s" % (l, parts[part], kind)
            if arch == "llama" and part in ("attn_q", "attn_k"):  # the converter's permutation undone: pairs (2i, 2i+1) to (i, i + d/2)
                x = x.reshape(n_out // d, d // 2, 2, n_in).transpose(1, 2).reshape(n_out, n_in)
        state[to] = x - 1 if gemma and "norm" in full else x
    missing, extra = model.load_state_dict(state, strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"} and (untied or model.lm_head.weight is model.model.embed_tokens.weight), (missing, extra)
    with torch.no_grad():
        logits = model.eval().float()(torch.tensor([TOKENS])).logits[0, POSITIONS].numpy()
    out = {"name": name, "arch": arch, "seed": seed, "u32": u32, "f32": f32, "tensors": tensors}
    if llama3:  # as the converter writes it: what divides each frequency
        plain = base ** (-np.arange(0, d, 2) / d)
        out["rope_freqs"] = []
        for f in plain:
            wave, old = 2 * np.pi / f, llama3["original_max_position_embeddings"]
            low, high = old / llama3["low_freq_factor"], old / llama3["high_freq_factor"]
            smooth = (old / wave - llama3["low_freq_factor"]) / (llama3["high_freq_factor"] - llama3["low_freq_factor"])
            out["rope_freqs"].append(float(np.float32(1 if wave < high else llama3["factor"] if wave > low else
                                                      1 / ((1 - smooth) / llama3["factor"] + smooth))))
    print("%-16s logits from %.2f to %.2f, deviation %.2f" % (name, logits.min(), logits.max(), logits.std()))
    return out, logits.astype("<f4")

def main():
    cases = [case("llama", "llama", 1), case("llama-untied", "llama", 2, untied=True, d=48, n_head=2, n_kv=2),
             case("llama-3.1", "llama", 3, base=5000.0, llama3={"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}),
             case("llama-linear", "llama", 4, linear=4), case("mistral", "llama", 5, window=WINDOW, untied=True),
             case("qwen2", "qwen2", 6, bias=True, n_embd=128, base=1e6), case("qwen3", "qwen3", 7, qk_norm=True, d=48, base=1e6, eps=1e-6),
             case("gemma3", "gemma3", 8, n_layer=7, n_kv=1, d=64, base=1e6, eps=1e-6, window=WINDOW, softcap=3),
             case("gemma3-scaled", "gemma3", 9, n_layer=6, d=48, base=1e6, eps=1e-6, window=WINDOW, linear=8),
             case("gemma3-27b", "gemma3", 10, n_layer=62, n_embd=64, n_ff=64, n_kv=2, d=32, base=1e6, eps=1e-6, window=WINDOW, linear=8)]
    with open(os.path.join(sys.argv[1], "arch.json"), "w") as f:
        f.write('{"n_vocab": %d, "tokens": %s,\n"positions": %s, "cases": [\n' % (N_VOCAB, json.dumps(TOKENS), json.dumps(POSITIONS)))
        f.write(",\n".join(json.dumps(c, separators=(",", ":")) for c, _ in cases) + "\n]}\n")
    np.stack([l for _, l in cases]).tofile(os.path.join(sys.argv[1], "arch.f32"))

main()
