#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes dequant.bin beside this script: golden vectors for the reference dequantisers.

    pip install gguf numpy && python make_dequant.py        (made with gguf 0.19.0, numpy 2.4.6)

Blocks are random bytes from a fixed seed (scales kept finite and moderate); the values come from gguf.quants.dequantize
of the gguf Python package. File: for each type, u32 id, u32 n_values, u32 n_bytes, then the bytes, then n_values
floats, little-endian. F16 and BF16 include subnormals and infinities.
"""
import os, struct
import numpy as np, gguf
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as T

rng = np.random.default_rng(20240601)
# offsets of f16 fields in a block
HALVES = {T.Q4_0: [0], T.Q4_1: [0, 2], T.Q5_0: [0], T.Q5_1: [0, 2], T.Q8_0: [0], T.Q4_K: [0, 2], T.Q5_K: [0, 2], T.Q6_K: [208]}
out = b""
for t in (T.F32, T.F16, T.BF16, *HALVES):
    values, size = GGML_QUANT_SIZES[t]
    n = 3 if values > 1 else 64
    raw = rng.integers(0, 256, (n, size), dtype=np.uint8)
    for at in HALVES.get(t, []):
        raw[:, at:at + 2] = rng.normal(0, 1, (n, 1)).astype("<f2").view(np.uint8)
    if t == T.F32:
        raw = rng.normal(0, 1, (n, 1)).astype("<f4").view(np.uint8)
    if t == T.F16:
        raw.view("<u2")[:6, 0] = (0, 0x8000, 1, 0x83ff, 0x7c00, 0xfc00)
        keep = np.isfinite(raw.view("<f2")[:, 0]) | (np.arange(n) < 6)
        raw[~keep] = 0
    if t == T.BF16:
        raw.view("<u2")[:4, 0] = (0, 0x8000, 0x7f80, 0xff80)
        raw[4:, 1] &= 0xbf  # below 2: finite
    flat = raw.reshape(1, -1)
    x = gguf.quants.dequantize(flat, t).astype("<f4").ravel()
    assert x.size == n * values and not np.isnan(x).any(), t
    out += struct.pack("<3I", int(t), x.size, flat.size) + flat.tobytes() + x.tobytes()
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "dequant.bin"), "wb") as f:
    f.write(out)
