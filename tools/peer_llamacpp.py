#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures llama.cpp on the work that `kinema bench engine` does; run by it in the environment of `make bench-peers`.

    peer_llamacpp.py --model GGUF --lengths 512,4096 --threads N --decode N --repeat N --tokens FILE

FILE holds token ids as text, so that both engines see the same prompt. Prints one JSON object: per flash attention
setting, per length, the lists of prefill and decode speeds in tokens per second.
Prefill is one llama_decode of the whole prompt in logical batches of n_batch; decode is greedy, one token at a time after
the prompt. The cache is 16-bit floats, its default.
"""
import argparse
import json
import sys
import time

import llama_cpp


def evaluate(ctx, tokens, start, n_batch):
    for at in range(0, len(tokens), n_batch):
        part = tokens[at:at + n_batch]
        ids = (llama_cpp.llama_token * len(part))(*part)  # the batch borrows it
        batch = llama_cpp.llama_batch_get_one(ids, len(part))
        status = llama_cpp.llama_decode(ctx, batch)
        if status:
            raise RuntimeError(f"llama_decode gave {status} at token {start + at}")


def best_token(ctx, n_vocab):
    logits = llama_cpp.llama_get_logits_ith(ctx, -1)
    best, value = 0, logits[0]
    for i in range(0, n_vocab, 997):  # a cheap stand-in for argmax: Python must not be what is measured
        if logits[i] > value:
            best, value = i, logits[i]
    return best


def measure(model, tokens, length, threads, flash, repeat, n_decode):
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = length + n_decode + 8
    params.n_batch = 2048
    params.n_ubatch = 512
    params.n_threads = threads
    params.n_threads_batch = threads
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 1 if flash else 0
    else:
        params.flash_attn = flash
    ctx = llama_cpp.llama_init_from_model(model, params)
    if not ctx:
        raise RuntimeError("llama.cpp could not make a context")
    n_vocab = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))
    prefill, decode = [], []
    try:
        for _ in range(repeat + 1):  # the first round warms up
            llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(ctx), True)
            begin = time.perf_counter()
            evaluate(ctx, tokens[:length], 0, params.n_batch)
            prefill.append(length / (time.perf_counter() - begin))
            token = best_token(ctx, n_vocab)
            begin = time.perf_counter()
            for i in range(n_decode):
                evaluate(ctx, [token], length + i, 1)
                token = best_token(ctx, n_vocab)
            decode.append(n_decode / (time.perf_counter() - begin))
    finally:
        llama_cpp.llama_free(ctx)
    return {"prefill": prefill[1:], "decode": decode[1:]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--version", action="store_true")
    parser.add_argument("--model")
    parser.add_argument("--lengths", default="512,4096")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--repeat", type=int, default=3)
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
    model_params = llama_cpp.llama_model_default_params()
    model_params.n_gpu_layers = 0
    model = llama_cpp.llama_model_load_from_file(args.model.encode(), model_params)
    if not model:
        print(f"peer: llama.cpp cannot open {args.model}", file=sys.stderr)
        return 1
    rows = []
    for length in (int(n) for n in args.lengths.split(",")):
        for flash in (False, True):
            row = measure(model, tokens, length, args.threads, flash, args.repeat, args.decode)
            row.update(length=length, flash=flash)
            rows.append(row)
    llama_cpp.llama_model_free(model)
    system = llama_cpp.llama_print_system_info()
    print(json.dumps({"version": "llama-cpp-python " + llama_cpp.__version__, "system": system.decode().strip(), "rows": rows}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
