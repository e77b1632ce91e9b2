#!/usr/bin/env python3
"""A vocabulary with marks for spaces and what the package `tokenizers` makes of texts with it.

Writes crates/interbed-model/tests/fixtures/marked_spaces.json: a small `tokenizer.json` with the rules of Gemma 4's
(its tokens are trained on the texts below and on tests/fixtures/stories.txt), and texts with their ids.
"""

import json
import random
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

FIXTURES = Path(__file__).resolve().parents[2] / "crates/interbed-model/tests/fixtures"
SPACE = "\u2581"
SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<|tool>", "<tool|>", "<|tool_call>", "<tool_call|>",
           "<|tool_response>", "<tool_response|>", '<|"|>', "<|think|>", "<|channel>", "<channel|>", "<|turn>", "<turn|>"]
RUN = 31

TEXTS = [
    "Hello, world! What's up?  Two   three    many" + " " * 40 + "end",
    " leading and trailing ", "", " ", "\n", "\n" * RUN, "\n" * (RUN + 1), "\n" * 70, "a\n\n\nb \n c\n \n\n d\r\n\r\ne\t\tf",
    "def f(x):\n    if x > 0:\n        return [x, 2 * x]\n\n\n    return {'a': None}\n",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01 \u3053\u3093\u306b\u3061\u306f\u4e16\u754c \uc548\ub155\ud558\uc138\uc694 \u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440 \u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947",
    "caf\u00e9 cafe\u0301 na\u00efve \U0001f680 \U0001f468\u200d\U0001f469\u200d\U0001f467 \u00a0\u200b\ufeff\u2028x",
    "\u2581already\u2581marked\u2581\u2581 text", "<0x0A> <0xFF> \x00\x07\x7f", "1234567890 3.14 1,000 x86_64",
    "<|turn>user\nHi there<turn|>\n<|turn>model\n<|channel>thought\n<channel|>Yes.<turn|>\n",
    '<|tool_call>call:f{a:<|"|>x y\n<|"|>,n:3}<tool_call|><|tool_response>response:f{value:<|"|>z<|"|>}<tool_response|>',
    "<bos>a <eos> b<pad>", "<|tool_cal", "<table>\n<tr>\n\n</table>", "the\nthe\n\nthe\n \nthe",
]


def byte(number):
    return f"<0x{number:02X}>"


def trained(texts):
    """The tokens and merges of words, as SentencePiece makes them: a mark only at the beginning of a token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Replace(" ", SPACE)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split("\n", "removed"), pre_tokenizers.Split(SPACE, "merged_with_next")])
    # Letters that are rare become bytes.
    trainer = trainers.BpeTrainer(vocab_size=700, limit_alphabet=110, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    model = json.loads(tokenizer.to_str())["model"]
    return sorted(model["vocab"], key=model["vocab"].get), model["merges"]


def runs(one):
    tokens = [one * length for length in range(2, RUN + 1)]
    return tokens, [[one * first, one * (length - first)] for length in range(2, RUN + 1) for first in range(1, length)]


def vocabulary():
    stories = (FIXTURES / "stories.txt").read_text(encoding="utf-8")[:60_000]
    words, merges = trained([stories, *(text * 3 for text in TEXTS)])
    (lines, line_merges), (spaces, space_merges) = runs("\n"), runs(SPACE)
    tokens = [*SPECIAL, *map(byte, range(256)), "\n", *lines, *spaces]
    tokens += [word for word in words if word not in tokens]
    if SPACE not in tokens:
        tokens.append(SPACE)
    known = set(map(tuple, line_merges + space_merges))
    return tokens, line_merges + space_merges + [merge for merge in merges if tuple(merge) not in known]


def more_texts(tokens):
    draw = random.Random(7)
    plain = [token.replace(SPACE, " ") for token in tokens[len(SPECIAL) + 256:]]
    odd = ["\n", "\n\n\n", "  ", "\u00e9", "\u4f60", "\U0001f680", "\t", "<", "|>", *SPECIAL]
    for _ in range(80):
        yield "".join(draw.choice(odd if draw.random() < 0.2 else plain) for _ in range(draw.randint(1, 25)))


def main():
    tokens, merges = vocabulary()
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    around = [{"SpecialToken": {"id": "<bos>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    content = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": id, "content": token, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True} for id, token in enumerate(SPECIAL)],
        "normalizer": replace,
        "pre_tokenizer": {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
        "post_processor": {
            "type": "TemplateProcessing", "single": around,
            "pair": [*around, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<bos>": {"id": "<bos>", "ids": [SPECIAL.index("<bos>")], "tokens": ["<bos>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": {token: id for id, token in enumerate(tokens)}, "merges": merges},
    }
    tokenizer = Tokenizer.from_str(json.dumps(content))
    texts = []
    for text in [*TEXTS, *more_texts(tokens)]:
        ids = tokenizer.encode(text).ids
        texts.append([text, ids, tokenizer.decode(ids, skip_special_tokens=False)])
    path = FIXTURES / "marked_spaces.json"
    path.write_text(json.dumps({"tokenizer": content, "texts": texts}, ensure_ascii=False) + "\n", encoding="utf-8")
    print(f"{path}: {len(tokens)} tokens, {len(merges)} merges, {len(texts)} texts")


if __name__ == "__main__":
    main()
