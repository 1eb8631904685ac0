#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs llama.cpp for `kinema bench engine`, which starts it in the environment of `make bench-peers`.

    peer_llamacpp.py --model GGUF --threads N --flash on|off --tokens FILE

FILE holds token ids as text, so that both engines see the same prompts: sequence i starts at token 7 * i. Orders come as
lines on standard input, each answered by one JSON object on a line of standard output:

    context N_CTX N_SEQS    a fresh context for N_SEQS sequences of up to N_CTX tokens each; cache of 16-bit floats
    prefill N               N tokens in every sequence, one after the other -> {"seconds": s}
    decode AT N             N greedy tokens after position AT in every sequence, together in one batch -> {"seconds": s}
    memory                  {"resident": bytes, "peak": bytes, "before": bytes before the model was loaded}
    close                   gives the context back

It ends with its standard input. Each mode has a process of its own, so that memory can be told apart.
"""
import argparse
import json
import sys
import time

import llama_cpp

N_BATCH = 2048


def resident():
    with open("/proc/self/status") as f:
        fields = dict(line.split(":", 1) for line in f)
    return {name: int(fields[key].split()[0]) * 1024 for name, key in (("resident", "VmRSS"), ("peak", "VmHWM"))}


class Context:
    def __init__(self, model, n_ctx, n_seqs, threads, flash):
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = n_ctx * n_seqs
        params.n_batch = N_BATCH
        params.n_ubatch = 512
        params.n_seq_max = n_seqs
        params.n_threads = threads
        params.n_threads_batch = threads
        if hasattr(params, "flash_attn_type"):
            params.flash_attn_type = 1 if flash else 0
        else:
            params.flash_attn = flash
        self.n_seqs = n_seqs
        self.ctx = llama_cpp.llama_init_from_model(model, params)
        if not self.ctx:
            raise RuntimeError("llama.cpp could not make a context")
        self.n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
        self.batch = llama_cpp.llama_batch_init(N_BATCH, 0, 1)
        self.first = [0] * n_seqs  # the token that follows each prompt

    def close(self):
        llama_cpp.llama_batch_free(self.batch)
        llama_cpp.llama_free(self.ctx)

    def memory(self):
        return llama_cpp.llama_get_memory(self.ctx)

    def run(self, rows):
        """rows: (token, position, sequence, wants logits)"""
        b = self.batch
        b.n_tokens = len(rows)
        for i, (token, pos, seq, logits) in enumerate(rows):
            b.token[i] = token
            b.pos[i] = pos
            b.n_seq_id[i] = 1
            b.seq_id[i][0] = seq
            b.logits[i] = logits
        status = llama_cpp.llama_decode(self.ctx, b)
        if status:
            raise RuntimeError(f"llama_decode gave {status} at position {rows[0][1]}")

    def best(self, row):
        logits = llama_cpp.llama_get_logits_ith(self.ctx, row)  # waits until they are there
        best, value = 0, logits[0]
        for i in range(0, self.n_vocab, 997):  # a cheap stand-in for argmax: Python must not be what is measured
            if logits[i] > value:
                best, value = i, logits[i]
        return best

    def prefill(self, tokens, n):
        llama_cpp.llama_memory_clear(self.memory(), True)
        seconds = 0.0
        for seq in range(self.n_seqs):
            for at in range(0, n, N_BATCH):
                part = tokens[7 * seq + at:7 * seq + min(at + N_BATCH, n)]
                rows = [(t, at + i, seq, at + i == n - 1) for i, t in enumerate(part)]
                begin = time.perf_counter()
                self.run(rows)
                if at + len(part) == n:
                    self.first[seq] = self.best(-1)
                seconds += time.perf_counter() - begin
        return seconds

    def decode(self, at, n):
        for seq in range(self.n_seqs):
            if not llama_cpp.llama_memory_seq_rm(self.memory(), seq, at, -1):
                raise RuntimeError("llama.cpp could not cut a sequence back")
        tokens = list(self.first)
        begin = time.perf_counter()
        for i in range(n):
            self.run([(tokens[seq], at + i, seq, True) for seq in range(self.n_seqs)])
            tokens = [self.best(seq) for seq in range(self.n_seqs)]
        return time.perf_counter() - begin


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--flash", choices=("on", "off"), default="on")
    parser.add_argument("--tokens")
    args = parser.parse_args()
    if args.version:
        print("llama-cpp-python", llama_cpp.__version__)
        return 0

    @llama_cpp.llama_log_callback
    def silent(level, text, user):
        pass

    llama_cpp.llama_log_set(silent, None)
    llama_cpp.llama_backend_init()
    with open(args.tokens) as f:
        tokens = [int(word) for word in f.read().split()]
    before = resident()["resident"]
    model_params = llama_cpp.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(args.model.encode(), model_params)
    if not model:
        print(f"peer: llama.cpp cannot open {args.model}", file=sys.stderr)
        return 1
    system = llama_cpp.llama_print_system_info().decode().strip()
    print(json.dumps({"version": "llama-cpp-python " + llama_cpp.__version__, "system": system}), flush=True)
    context = None
    for line in sys.stdin:
        order, *words = line.split()
        numbers = [int(word) for word in words]
        answer = {}
        if context and order in ("context", "close"):
            context.close()
            context = None
        if order == "context":
            context = Context(model, *numbers, args.threads, args.flash == "on")
        elif order == "prefill":
            answer["seconds"] = context.prefill(tokens, *numbers)
        elif order == "decode":
            answer["seconds"] = context.decode(*numbers)
        elif order == "memory":
            answer = {**resident(), "before": before}
        elif order != "close":
            print(f"peer: there is no order {order}", file=sys.stderr)
            return 1
        print(json.dumps(answer), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
