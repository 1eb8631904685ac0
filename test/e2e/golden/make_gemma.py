#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes gemma_tokens.json, gemma.json and gemma.f32 beside this script: what gemma_test.c compares with.

    pip install gguf sentencepiece protobuf torch transformers numpy
    python make_gemma.py gemma-3-270m-q4_k_m.gguf

The files here came from Python 3.11, sentencepiece 0.2.3, protobuf 7.36.2, torch 2.15.0, transformers 5.24.0, gguf 0.19.0, numpy 2.4.6.

Tokens: the reference is the sentencepiece library itself, with the GGUF's pieces, scores and types in a model of its own (BPE, byte
fallback, no normalisation, no dummy prefix). It never recognises control tokens, so that rule is applied around it: text is
cut at control tokens first. The strings are those of tokens.json with Gemma's own tokens in some; a text that sentencepiece
alters before it cuts is left out. Strings: [{"text", "ids" (control tokens recognised), "plain" (not; where it differs)}].

Logits: transformers in float32 with the dequantised weights of the GGUF (Gemma's norms without their 1). Three prompts, as in make_logits.py:
    gemma.f32    [3][N_KEPT] little-endian float32: logits of the kept ids after each prompt's last token
    gemma.json   {"kept": ids, per prompt: token ids, the 64 greedy tokens, the gaps between the best two logits}
Of 262144 logits every 64th is kept, and the best 64 of each prompt: the file stays small.
"""
import importlib.util, json, os, sys
import numpy as np, torch
import sentencepiece as spm
from sentencepiece import sentencepiece_model_pb2 as pb
from gguf import GGUFReader, dequantize
from transformers import Gemma3ForCausalLM, Gemma3TextConfig

here = os.path.dirname(os.path.abspath(__file__))
reader = GGUFReader(sys.argv[1])
field = lambda k: reader.fields[k].contents()
tokens, kinds, scores = (field("tokenizer.ggml." + k) for k in ("tokens", "token_type", "scores"))

def reference():
    m = pb.ModelProto()
    for text, kind, score in zip(tokens, kinds, scores):
        p = m.pieces.add()
        # user-defined tokens are stored with blanks, sentencepiece looks them up with its mark
        p.piece, p.score, p.type = text.replace(" ", "\u2581"), score, 2 if text == "<unk>" else kind
    m.trainer_spec.model_type = 2
    m.trainer_spec.byte_fallback = True
    m.trainer_spec.vocab_size = len(tokens)
    m.trainer_spec.unk_id, m.trainer_spec.bos_id, m.trainer_spec.eos_id, m.trainer_spec.pad_id = 3, 2, 1, 0
    m.normalizer_spec.name = "identity"
    m.normalizer_spec.add_dummy_prefix = False
    m.normalizer_spec.remove_extra_whitespaces = False
    m.normalizer_spec.escape_whitespaces = True
    return spm.SentencePieceProcessor(model_proto=m.SerializeToString())

def write_tokens(sp):
    control = sorted((t for t, k in zip(tokens, kinds) if k == 3), key=len, reverse=True)
    first = {c[0] for c in control}
    by_text = {t: i for i, (t, k) in enumerate(zip(tokens, kinds)) if k == 3}
    user = [t for t, k in zip(tokens, kinds) if k == 4]
    def with_control(s):
        ids, at, start = [], 0, 0
        while at < len(s):
            hit = next((c for c in control if s.startswith(c, at)), None) if s[at] in first else None
            hit_user = max((u for u in user if s.startswith(u, at)), key=len, default="")
            if hit and len(hit) > len(hit_user):
                ids += sp.encode(s[start:at]) + [by_text[hit]]
                start = at = at + len(hit)
            else:
                at += max(1, len(hit_user))
        return ids + sp.encode(s[start:])
    texts = [e["text"] for e in json.load(open(os.path.join(here, "tokens.json")))]
    texts += [t.replace("<|im_end|>", "<end_of_turn>").replace("<|im_start|>", "<start_of_turn>").replace("<|endoftext|>", "<eos>") for t in texts if "<|" in t]
    texts += ["<bos>a", "a<eos>b<pad><unk><mask>", "<unused0><unused99>", "[multimodal]x", "<start_of_image>", "<table><tr><td>1</td></tr></table>", "<h1>t</h1>\n",
              "\u2581", "a\u2581b", "\u2581\u2581\u2581", " \u2581 ", "<0x0A>", "<0x41>x", "\n" * 40, " " * 40, "\t" * 40, "a" + " " * 33 + "b", "aaaa aaaaaaa", "ababab" * 9,
              "Gemma is tokenized by scores.", "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n", "<start_of_turn", "<<start_of_turn>>"]
    out = []
    for s in dict.fromkeys(texts):
        if "\x00" in s:
            continue  # the library ends a piece there
        e = {"text": s, "ids": with_control(s)}
        plain = sp.encode(s)
        if plain != e["ids"]:
            e["plain"] = plain
        out.append(e)
    with open(os.path.join(here, "gemma_tokens.json"), "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(e, separators=(",", ":")) for e in out) + "\n]\n")
    print(len(out), "strings,", sum("plain" in e for e in out), "with control tokens")

def load_model():
    g = lambda k: field("gemma3." + k)
    n_layer, d = g("block_count"), g("attention.key_length")
    config = Gemma3TextConfig(vocab_size=len(tokens), hidden_size=g("embedding_length"), intermediate_size=g("feed_forward_length"), num_hidden_layers=n_layer,
        num_attention_heads=g("attention.head_count"), num_key_value_heads=g("attention.head_count_kv"), head_dim=d, query_pre_attn_scalar=d,
        max_position_embeddings=g("context_length"), rms_norm_eps=g("attention.layer_norm_rms_epsilon"), sliding_window=g("attention.sliding_window"),
        attn_implementation="eager", rope_parameters={"full_attention": {"rope_type": "default", "rope_theta": g("rope.freq_base")},
                                                      "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0}})
    parts = {"attn_norm": "input_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj",
             "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
             "attn_q_norm": "self_attn.q_norm", "attn_k_norm": "self_attn.k_norm", "post_attention_norm": "post_attention_layernorm",
             "ffn_norm": "pre_feedforward_layernorm", "post_ffw_norm": "post_feedforward_layernorm"}
    state = {}
    for t in reader.tensors:
        x = torch.from_numpy(np.array(dequantize(t.data, t.tensor_type), dtype=np.float32))
        p = t.name.split(".")
        to = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}.get(t.name) or "model.layers.%s.%s.weight" % (p[1], parts[p[2]])
        state[to] = x - 1 if "norm" in t.name else x
    model = Gemma3ForCausalLM(config)
    missing, extra = model.load_state_dict(state, strict=False)
    assert not extra and set(missing) <= {"lm_head.weight"}, (missing, extra)
    model.tie_weights()
    return model.eval()

def write_logits(sp):
    spec = importlib.util.spec_from_file_location("make_logits", os.path.join(here, "make_logits.py"))
    texts = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(texts)
    model, rows, prompts = load_model(), [], []
    with torch.no_grad():
        for label, text in (("short", texts.SHORT), ("medium", texts.MEDIUM.replace("\n", " ")), ("long", texts.long_text())):
            ids = [2] + sp.encode(text)
            o = model(torch.tensor([ids]), use_cache=True, logits_to_keep=1)
            logits = o.logits[0, -1]
            rows.append(logits.numpy())
            greedy, gaps = [], []
            while len(greedy) < 64:
                top = torch.topk(logits, 2)
                greedy.append(int(top.indices[0]))
                gaps.append(round(float(top.values[0] - top.values[1]), 5))
                o = model(top.indices[:1][None], past_key_values=o.past_key_values, use_cache=True)
                logits = o.logits[0, -1]
            prompts.append({"name": label, "tokens": ids, "greedy": greedy, "gaps": gaps})
            print(label, len(ids), "tokens, least gap", min(gaps), repr(sp.decode(greedy)[:100]))
    kept = sorted(set(range(0, len(tokens), 64)).union(*(np.argsort(r)[-64:].tolist() for r in rows)))
    np.stack([r[kept] for r in rows]).astype("<f4").tofile(os.path.join(here, "gemma.f32"))
    with open(os.path.join(here, "gemma.json"), "w") as f:
        body = ",\n".join(json.dumps(p) for p in prompts)
        f.write('{"n_vocab": %d, "kept": %s, "prompts": [\n%s\n]}\n' % (len(tokens), json.dumps(kept, separators=(",", ":")), body))

sp = reference()
write_tokens(sp)
write_logits(sp)
