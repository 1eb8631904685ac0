#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes a GGUF's weights as 32-bit floats, the reference of `kinema bench quality --reference`.

    gguf_to_f32.py MODEL.gguf OUT.gguf

Needs the Python packages gguf and numpy. The metadata is copied; every tensor becomes F32 by the gguf package's own
dequantisers, so that the reference shares none with Kinema. SmolLM2-135M takes 0.54 GB.
"""
import sys

import gguf
import numpy as np


def copy_fields(reader, writer):
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name in ("general.architecture", "general.file_type", "general.quantization_version"):
            continue
        kind = field.types[0]
        if kind == gguf.GGUFValueType.ARRAY:
            writer.add_array(name, field.contents())
        else:
            writer.add_key_value(name, field.contents(), kind)


def main():
    if len(sys.argv) != 3:
        print(__doc__, file=sys.stderr)
        return 2
    reader = gguf.GGUFReader(sys.argv[1])
    arch = reader.get_field("general.architecture").contents()
    writer = gguf.GGUFWriter(sys.argv[2], arch)
    copy_fields(reader, writer)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for t in reader.tensors:
        shape = tuple(int(n) for n in reversed(t.shape))
        values = gguf.dequantize(t.data, t.tensor_type).astype(np.float32).reshape(shape)
        writer.add_tensor(t.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
