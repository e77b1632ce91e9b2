#!/usr/bin/env python3
"""Writes blocks of MXFP4 and FP8 as checkpoints hold them, with the numbers that they stand for.

All files are little-endian and without headers.

- `mxfp4.scales` `[40]`, `mxfp4.blocks` `[40, 16]`: as gpt-oss has them, number 2i in the low half of byte i and number
  2i + 1 in the high half. `mxfp4.gguf_blocks` `[40, 17]`: the same as GGUF has them, the scale first, number i in the low
  half of byte i and number i + 16 in the high half. `mxfp4.f32` `[40, 32]`: what both stand for.
- `e4m3.f32` `[256]`: the number of each code of FP8, as PyTorch has it; two are NaN.
- `fp8.codes` `[130, 132]`, `fp8.scales` (f32) `[2, 2]`: a matrix with a scale for each block of 128 rows and columns.
  `fp8.f32`: the float32 nearest to the product of each code and its scale.

Scale 255 is NaN. `transformers` and `gguf` do not know that; for all other scales they give these numbers, save that
`gguf` has no -0. Numbers too large for float32 are infinite: some with scale 253, and more with 254.
"""

import argparse
from pathlib import Path

import gguf
import torch
from gguf import GGMLQuantizationType
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

from gguf_families import gguf_mxfp4
from reference import FP4, dequantized_fp8

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/interbed-model/tests/fixtures/decoders"
# The least, whose numbers float32 has only as subnormals; usual ones; the largest; and NaN.
SCALES = [0, 1, 2, 3, 4, 20, 64, 100, *range(112, 132), 140, 160, 190, 220, 240, 250, 251, 252, 253, 254, 255, 127]


def write_mxfp4(out):
    generator = torch.Generator().manual_seed(4)
    scales = torch.tensor(SCALES, dtype=torch.uint8)
    codes = torch.randint(0, 16, (len(SCALES), 32), generator=generator)
    # Every code, in an order in which no two halves of a byte are the same; with every kind of scale.
    every = torch.tensor([(7 * i + 3 * (i // 16)) % 16 for i in range(32)])
    for block in (0, 1, SCALES.index(127), SCALES.index(252), SCALES.index(254), SCALES.index(255)):
        codes[block] = every
    blocks = (codes[:, 0::2] | codes[:, 1::2] << 4).to(torch.uint8)
    in_gguf = gguf_mxfp4(blocks.unsqueeze(1), scales.unsqueeze(1))

    exact = FP4[codes].double() * torch.pow(2.0, scales.double() - 127).unsqueeze(1)
    numbers = exact.float()
    finite_scales = scales != 255
    numbers[~finite_scales] = torch.nan

    theirs = convert_moe_packed_tensors(blocks[None, :, None], scales[None, :, None], dtype=torch.float32)
    theirs = theirs[0].transpose(0, 1)
    # Scale and number are multiplied there, and 2 ** -127 is subnormal; the product must not be flushed to zero.
    same = theirs.contiguous().view(torch.int32) == numbers.view(torch.int32)
    assert same[finite_scales].all(), "transformers reads other numbers"
    read = torch.from_numpy(gguf.quants.dequantize(in_gguf.numpy(), GGMLQuantizationType.MXFP4))
    assert torch.equal(read[finite_scales], numbers[finite_scales]), "gguf reads other numbers"

    write(out / "mxfp4.scales", scales)
    write(out / "mxfp4.blocks", blocks)
    write(out / "mxfp4.gguf_blocks", in_gguf)
    write(out / "mxfp4.f32", numbers)


def write_fp8(out):
    generator = torch.Generator().manual_seed(8)
    every = torch.arange(256, dtype=torch.uint8)
    write(out / "e4m3.f32", every.view(torch.float8_e4m3fn).float())
    # All codes but the two that are NaN, which no matrix holds.
    codes = torch.randint(0, 254, (130, 132), generator=generator)
    codes = (codes + (codes >= 127)).to(torch.uint8)
    scales = torch.tensor([[0.0123456789, 3.1e-5], [1.7e-4, 0.7654321]])
    write(out / "fp8.codes", codes)
    write(out / "fp8.scales", scales)
    write(out / "fp8.f32", dequantized_fp8(codes.view(torch.float8_e4m3fn), scales))


def write(path, tensor):
    array = tensor.contiguous().numpy()
    path.write_bytes(array.astype(array.dtype.newbyteorder("<")).tobytes())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    out = parser.parse_args().out
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    write_mxfp4(out)
    write_fp8(out)


if __name__ == "__main__":
    main()
