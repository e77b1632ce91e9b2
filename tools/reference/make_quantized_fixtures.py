#!/usr/bin/env python3
"""Writes blocks of every quantised type with the numbers that the Python package `gguf` reads from them.

- `TYPE.blocks`, `TYPE.f32`: random bytes with finite scales, and their numbers.
- `numbers.f32`: numbers to encode; `TYPE.gguf_blocks`: what `gguf` makes of them, for the types that both encode.
- `TYPE.encoded`, `TYPE.encoded_f32`: what Interbed makes of them, and what `gguf` reads from that. The former is written
  by Interbed's own test, so it takes two rounds after a change of the encoder (see README.md).
"""

import argparse
from pathlib import Path

import numpy
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/interbed-kernels/tests/fixtures/quantized"
NUMBERS = 1024

# Where the half floats of a block are; they must be finite, for NaN equals nothing.
HALVES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q2_K": [80, 82],
    "Q3_K": [108],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
    "IQ4_NL": [0],
    "MXFP4": [],
}
# The same of types whose blocks are random apart from all others.
LATER_HALVES = {
    "IQ4_XS": [0],
    "IQ3_S": [0],
    "IQ3_XXS": [0],
    "IQ2_S": [0],
    "IQ2_XS": [0],
    "IQ2_XXS": [0],
    "IQ1_M": [],
    "IQ1_S": [0],
}


def random_blocks(name, rng):
    """Whole blocks of 1024 numbers, every byte random except that halves are finite."""
    length, size = GGML_QUANT_SIZES[GGMLQuantizationType[name]]
    blocks = rng.integers(0, 256, (NUMBERS // length, size), dtype=numpy.uint8)
    for at in (HALVES | LATER_HALVES)[name]:
        # Exponents 0 .. 29: zeros and subnormals too, no infinity.
        bits = rng.integers(0, 30 << 10, len(blocks), dtype=numpy.uint16) | rng.choice([0, 0x8000], len(blocks)).astype("u2")
        bits[0] = 0x8003
        blocks[:, at : at + 2] = bits.astype("<u2").view(numpy.uint8).reshape(-1, 2)
    if name == "IQ1_M":
        # The half float is in the upper halves of four bytes. Exponents are below 24 here; the first is subnormal.
        blocks[:, 55] &= 0xDF
        blocks[0, 49:56:2] &= 0x0F
        blocks[0, 49] |= 0x30
        blocks[0, 55] |= 0x80
    if name == "MXFP4":
        # Every kind of exponent: the two least are encoded differently, 252 is the largest whose numbers are all
        # finite.
        blocks[:, 0] = numpy.resize([0, 1, 2, 120, 127, 128, 140, 252], len(blocks))
    return blocks


def write_blocks(name, rng, out):
    """Writes random blocks, and their numbers."""
    blocks = random_blocks(name, rng)
    floats = quants.dequantize(blocks, GGMLQuantizationType[name]).astype("<f4")
    assert floats.size == NUMBERS and numpy.isfinite(floats).all(), name
    (out / f"{name.lower()}.blocks").write_bytes(blocks.tobytes())
    (out / f"{name.lower()}.f32").write_bytes(floats.tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    rng = numpy.random.default_rng(20)

    for name in HALVES:
        write_blocks(name, rng, out)
    later = numpy.random.default_rng(21)
    for name in LATER_HALVES:
        write_blocks(name, later, out)

    # Blocks of different sizes and skews, one of zeros, one of a single sign.
    numbers = rng.normal(size=(NUMBERS // 32, 32)) * rng.uniform(0.01, 3, (NUMBERS // 32, 1))
    numbers += rng.uniform(-1, 1, (NUMBERS // 32, 1))
    numbers[3] = 0
    numbers[5] = numpy.abs(numbers[5]) + 0.5
    numbers[6] = -numpy.abs(numbers[6]) - 0.5
    numbers = numbers.astype("<f4").reshape(1, -1)
    (out / "numbers.f32").write_bytes(numbers.tobytes())
    for name in ["Q8_0", "Q4_0"]:
        blocks = quants.quantize(numbers, GGMLQuantizationType[name])
        (out / f"{name.lower()}.gguf_blocks").write_bytes(blocks.tobytes())
    for name in ["Q8_0", "Q4_0", "Q4_K", "MXFP4"]:
        encoded = out / f"{name.lower()}.encoded"
        if not encoded.exists():
            print(f"{encoded.name} is missing: run Interbed's test with INTERBED_WRITE_FIXTURES=1, then this again")
            continue
        blocks = numpy.frombuffer(encoded.read_bytes(), dtype=numpy.uint8).reshape(1, -1)
        floats = quants.dequantize(blocks, GGMLQuantizationType[name]).astype("<f4")
        (out / f"{name.lower()}.encoded_f32").write_bytes(floats.tobytes())


if __name__ == "__main__":
    main()
