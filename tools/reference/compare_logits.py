#!/usr/bin/env python3
"""Compares logits that Interbed wrote with those of `transformers` for the same model directory and tokens.

    interbed logits MODEL --tokens 1,2,3 > logits.json
    compare_logits.py MODEL --tokens 1,2,3 --json logits.json

The file is a JSON object {"logits": [[...], ...]} with one row a token. The relative error of a row is its largest
difference over its largest absolute reference logit.
"""

import argparse
import json
from pathlib import Path

import torch
import transformers

from reference import open_model, prompt_logits


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="model directory")
    parser.add_argument("--tokens", required=True, help="token ids, separated by commas")
    parser.add_argument("--json", type=Path, required=True, help="file with the logits that Interbed wrote")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"],
                        help="type in which the reference computes (default float32)")
    parser.add_argument("--tolerance", type=float, help="exit with 1 if the relative error is larger")
    args = parser.parse_args()
    transformers.logging.disable_progress_bar()

    tokens = [int(token) for token in args.tokens.split(",")]
    got = torch.tensor(json.loads(args.json.read_text())["logits"])
    want = prompt_logits(open_model(args.model, getattr(torch, args.dtype)), tokens)
    if got.shape != want.shape:
        raise SystemExit(f"shape: expected {list(want.shape)}, got {list(got.shape)}")
    errors = (got - want).abs().amax(-1) / want.abs().amax(-1)
    agree = got.argmax(-1) == want.argmax(-1)
    worst = int(errors.argmax())
    print(f"max relative error {errors.max():.3e} (at token {worst} of {len(tokens)}), mean {errors.mean():.3e}")
    print(f"argmax agrees for {int(agree.sum())} of {len(tokens)} tokens")
    for position in (~agree).nonzero().flatten().tolist():
        first, second = want[position].topk(2).values.tolist()
        margin = (first - second) / want[position].abs().max()
        print(f"  differs at token {position}, where the reference's margin is {margin:.3e}")
    # Written so that an error that is no number fails, too.
    if args.tolerance is not None and not errors.max() <= args.tolerance:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
