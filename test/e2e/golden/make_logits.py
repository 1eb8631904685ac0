#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the golden logits that logits_test.c compares with.

    make_logits.py MODEL.gguf OUT_FOLDER        (needs torch, transformers, gguf, numpy; CPU builds are enough)

The files here came out byte for byte from Python 3.11, torch 2.15.0, transformers 5.24.0, gguf 0.19.0, numpy 2.4.6 on x86-64.

transformers runs the dequantised GGUF in float32. Three prompts (a few, about 200 and several hundred tokens), written
for this test. Out:
    logits.f32    [3][n_vocab] little-endian float32: logits after each prompt's last token
    logits.json   per prompt: its token ids, the 64 greedy tokens after it, and at each of the 64 steps the gap between
                  the best and the second logit (where the gap is tiny, any float order may choose the other token)
"""
import json, os, sys
import numpy as np, torch
from transformers import AutoModelForCausalLM, AutoTokenizer

SHORT = "The harbour lights went out one by one, and then"

MEDIUM = """A lighthouse keeper writes down the weather every morning. On Monday the wind came from the north and the sea
was grey and rough. On Tuesday fog lay over the bay until noon; three boats waited outside the breakwater and blew
their horns. On Wednesday the sky cleared, and the keeper counted eleven sails before breakfast. On Thursday he
painted the railing white, because salt had eaten the old paint down to the iron. On Friday a letter arrived from the
port authority, which asked for the exact number of hours that the lamp had burned in the last quarter. He added the
figures twice: 31 nights in the first month, 28 in the second, 31 in the third, each about thirteen hours long. On
Saturday he carried the answer to the village himself, bought bread, coffee and two new wicks, and was home before
the lamp had to be lit. On Sunday he rested. The most important thing that he learned in this week was"""

LONG_PART = """Section {n}. The workshop keeps {a} machines of type {t}. Each machine has a log, and every entry of the log names
the operator, the hour, the material and the result. When a part fails its inspection, the operator measures it
again at {b} points and writes the mean beside the drawing number. Parts of {m} are stored on shelf {s}; they must
be turned once a month, oiled twice a year, and never stacked more than {c} high. A visitor may watch but not touch.
If the alarm rings, leave by the {d} door, meet at the old {e}, and wait until the foreman has read all the names.
"""

def long_text():
    rows = [(4, "A", 3, "brass", 12, 5, "north", "oak"), (7, "B", 5, "steel", 31, 2, "south", "well"),
            (2, "C", 9, "copper", 8, 6, "east", "gate"), (5, "D", 4, "bronze", 17, 3, "west", "bridge"),
            (9, "E", 6, "tin", 26, 4, "north", "mill")]
    return "".join(LONG_PART.format(n=i + 1, a=a, t=t, b=b, m=m, s=s, c=c, d=d, e=e)
                   for i, (a, t, b, m, s, c, d, e) in enumerate(rows)) + "Question: where do people meet? Answer:"

def main():
    gguf, out = sys.argv[1], sys.argv[2]
    folder, name = os.path.split(os.path.abspath(gguf))
    tok = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    rows, prompts = [], []
    with torch.no_grad():
        for label, text in (("short", SHORT), ("medium", MEDIUM.replace("\n", " ")), ("long", long_text())):
            ids = tok(text, add_special_tokens=False)["input_ids"]
            o = model(torch.tensor([ids]), use_cache=True)
            logits = o.logits[0, -1]
            rows.append(logits.numpy().astype("<f4"))
            greedy, gaps = [], []
            while len(greedy) < 64:
                top = torch.topk(logits, 2)
                greedy.append(int(top.indices[0]))
                gaps.append(round(float(top.values[0] - top.values[1]), 5))
                o = model(top.indices[:1][None], past_key_values=o.past_key_values, use_cache=True)
                logits = o.logits[0, -1]
            prompts.append({"name": label, "tokens": ids, "greedy": greedy, "gaps": gaps})
            print(label, len(ids), "tokens, least gap", min(gaps), repr(tok.decode(greedy)[:100]))
    np.stack(rows).tofile(os.path.join(out, "logits.f32"))
    with open(os.path.join(out, "logits.json"), "w") as f:
        body = ",\n".join(json.dumps(p) for p in prompts)
        f.write('{"n_vocab": %d, "prompts": [\n%s\n]}\n' % (len(rows[0]), body))

main()
