"""Tokenizers whose tokens come from more than `tokenizer.json`, and what `transformers` makes of texts.

Writes crates/interbed-model/tests/fixtures/tokenizers.json: for each case the files of a directory (`tokenizer.json` as
the name of a base and what is different from it), and for each text the ids that the tokenizer gives without special
tokens around it, and the text of these ids with and without special ones.
"""

import json
import pathlib
import tempfile

from transformers import AutoTokenizer, PreTrainedTokenizerFast

OUT = pathlib.Path(__file__).parents[2] / "crates/interbed-model/tests/fixtures/tokenizers.json"

TEXTS = [
    "a b",
    "<s>a</s> b",
    "a <x> b",
    "a  <x>  b<x>c",
    "<x>\n\n<y>\n a",
    "a<y>b <y> c",
    "A <X> B",
    "<img> a <aud>b",
    "<tool>a</tool> <tool> b",
    "<pad><unk><mask>ab",
    "ab cd<z>ab<z> ab",
    "the<end>\n<end> the",
]


def added(content, id, **flags):
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": id, "content": content} | usual | flags


def flags(content, **changes):
    entry = added(content, 0, **changes)
    del entry["id"]
    return entry


def byte_level(tokens, normalizer=None):
    alphabet = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    letters = [chr(code) for code in alphabet] + [chr(0x100 + index) for index in range(256 - len(alphabet))]
    vocab = {letter: id for id, letter in enumerate(letters)}
    for word in ["th", "the", "ab", "<z>"]:
        vocab[word] = len(vocab)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(content, len(vocab) + index, **more) for index, (content, more) in enumerate(tokens)],
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
                  "vocab": vocab, "merges": [["t", "h"], ["th", "e"], ["a", "b"]]},
    }


def sentencepiece(tokens):
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for byte in range(256):
        vocab[f"<0x{byte:02X}>"] = len(vocab)
    for piece in ["▁", "a", "b", "c", "▁a", "ab", "▁ab", "<", ">", "x", "y"]:
        vocab[piece] = len(vocab)
    special = [("<unk>", 0), ("<s>", 1), ("</s>", 2)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [added(content, id) for content, id in special]
        + [added(content, len(vocab) + index, **more) for index, (content, more) in enumerate(tokens)],
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]},
        "pre_tokenizer": None, "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": vocab, "merges": [["▁", "a"], ["a", "b"], ["▁a", "b"]]},
    }


PLAIN = [("<s>", {}), ("</s>", {})]
BASES = {"byte_level": byte_level([]), "sentencepiece": sentencepiece([])}
LOWER = {"type": "Lowercase"}
CLASS = {"tokenizer_class": "PreTrainedTokenizerFast"}


def cases():
    ends = {"bos_token": "<s>", "eos_token": "</s>"} | CLASS
    yield "tokens beyond the vocabulary", byte_level(PLAIN), {
        "tokenizer_config.json": ends | {"added_tokens_decoder": {
            "260": flags("<s>"), "261": flags("</s>"), "263": flags("<y>", special=False), "262": flags("<x>")}}}
    yield "ids with a gap", byte_level(PLAIN), {
        "tokenizer_config.json": ends | {"added_tokens_decoder": {
            "270": flags("<x>"), "300": flags("<end>", rstrip=True), "9": flags("<y>")}}}
    yield "flags that differ", byte_level(PLAIN + [("<x>", {}), ("<y>", {"rstrip": True}), ("<end>", {})]), {
        "tokenizer_config.json": ends | {"added_tokens_decoder": {
            "262": flags("<x>", lstrip=True, rstrip=True), "263": flags("<y>", special=False),
            "264": flags("<end>", rstrip=True)}}}
    yield "single words", byte_level(PLAIN + [("ab", {"special": False})]), {
        "tokenizer_config.json": ends | {"added_tokens_decoder": {
            "258": flags("ab", single_word=True, special=False), "262": flags("<y>", single_word=True)}}}
    yield "normalized tokens", byte_level(PLAIN, LOWER), {
        "tokenizer_config.json": ends | {"added_tokens_decoder": {
            "262": flags("<X>", normalized=True, special=False), "263": flags("<y>", normalized=False)}}}
    yield "defaults of flags", byte_level(PLAIN, LOWER), {
        "tokenizer_config.json": ends | {"added_tokens_decoder": {
            "262": {"content": "<X>"}, "263": {"content": "<Y>", "special": True}}}}
    yield "additional special tokens", byte_level(PLAIN), {
        "tokenizer_config.json": ends | {"additional_special_tokens": ["<x>", "<z>", "</s>", "<y>"]}}
    yield "additional special tokens that are plain in the file", byte_level(PLAIN + [("<x>", {"special": False})]), {
        "tokenizer_config.json": ends | {"additional_special_tokens": ["<x>", "<tool>"]}}
    yield "extra special tokens in a list", byte_level(PLAIN), {
        "tokenizer_config.json": ends | {"extra_special_tokens": ["<img>", "<aud>"]}}
    yield "extra special tokens by name", byte_level(PLAIN), {
        "tokenizer_config.json": ends | {"extra_special_tokens": {"image_token": "<img>", "audio": "<aud>"}}}
    yield "extra and additional ones", byte_level(PLAIN), {
        "tokenizer_config.json": ends | {
            "extra_special_tokens": {"image_token": "<img>"}, "additional_special_tokens": ["<x>", "<y>"]}}
    yield "a list of extra ones beside additional ones", byte_level(PLAIN), {
        "tokenizer_config.json": ends | {
            "extra_special_tokens": ["<img>"], "additional_special_tokens": ["<x>", "<y>"]}}
    yield "named tokens that the file lacks", byte_level([]), {
        "tokenizer_config.json": {
            "bos_token": "<s>", "eos_token": "<end>", "pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>",
            "image_token": "<img>"} | CLASS}
    yield "named tokens in words of their own", byte_level(PLAIN), {
        "tokenizer_config.json": {
            "bos_token": "<s>",
            "eos_token": {"__type": "AddedToken", "content": "<end>", "lstrip": False, "rstrip": True,
                          "normalized": False, "single_word": False, "special": True},
            "extra_special_tokens": [
                {"__type": "AddedToken", "content": "<x>", "lstrip": True, "rstrip": False, "normalized": False,
                 "single_word": False, "special": True}, "<y>"]} | CLASS}
    yield "a map of special tokens", byte_level(PLAIN), {
        "tokenizer_config.json": {"eos_token": "</s>"} | CLASS,
        "special_tokens_map.json": {
            "bos_token": {"content": "<s>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False},
            "eos_token": "<end>", "pad_token": "<pad>", "additional_special_tokens": ["<x>"]}}
    yield "a map beside a decoder", byte_level(PLAIN), {
        "tokenizer_config.json": ends | {"added_tokens_decoder": {"262": flags("<x>")}},
        "special_tokens_map.json": {"eos_token": "<end>", "pad_token": "<pad>"}}
    yield "added tokens of old", byte_level(PLAIN), {
        "tokenizer_config.json": ends | {"additional_special_tokens": ["<x>"]},
        "added_tokens.json": {"<x>": 262, "<tool>": 263, "<end>": 264}}
    yield "no configuration", byte_level(PLAIN + [("<x>", {})]), {
        "special_tokens_map.json": {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<x>"}}
    yield "sentencepiece", sentencepiece([]), {
        "tokenizer_config.json": ends | {"unk_token": "<unk>", "added_tokens_decoder": {
            "0": flags("<unk>"), "1": flags("<s>"), "2": flags("</s>", rstrip=True),
            "270": flags("<x>", rstrip=True), "271": flags("<y>", normalized=True, special=False)}}}
    yield "sentencepiece with additional ones", sentencepiece([("<end>", {"rstrip": True})]), {
        "tokenizer_config.json": ends | {"additional_special_tokens": ["<x>", "<end>"], "eos_token": "<end>"}}


def main():
    written = []
    for name, tokenizer, files in cases():
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            for file, content in ({"tokenizer.json": tokenizer} | files).items():
                (folder / file).write_text(json.dumps(content), encoding="utf-8")
            kind = AutoTokenizer if "tokenizer_config.json" in files else PreTrainedTokenizerFast
            loaded = kind.from_pretrained(folder)
            texts = []
            for text in TEXTS:
                ids = loaded.encode(text, add_special_tokens=False)
                texts.append({"text": text, "ids": ids, "decoded": loaded.decode(ids),
                              "without_special": loaded.decode(ids, skip_special_tokens=True)})
            ids = {"bos_token": loaded.bos_token_id, "eos_token": loaded.eos_token_id}
            base = next(base for base in BASES if BASES[base]["model"] == tokenizer["model"])
            changes = {key: value for key, value in tokenizer.items() if value != BASES[base][key]}
            written.append({"name": name, "base": base, "changes": changes, "files": files, "ids": ids,
                            "tokens": len(loaded), "texts": texts})
    bases, lines = json.dumps(BASES, ensure_ascii=False), (json.dumps(case, ensure_ascii=False) for case in written)
    OUT.write_text('{"bases": %s, "cases": [\n%s\n]}\n' % (bases, ",\n".join(lines)), encoding="utf-8")


if __name__ == "__main__":
    main()
