#!/usr/bin/env python3
"""Writes tiny GGUF files with the Python package `gguf`, the way the usual converters do.

Models are the fixtures of `make_fixtures.py` and `make_family_fixtures.py`, so that their expected logits hold for the
GGUF files too. Tokenizers are that of `models/storyteller` (byte-level BPE) and one that `sentencepiece` trains here on
the same kind of stories, each with texts and the ids that the original gives for them.
"""

import argparse
import io
import json
import math
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import sentencepiece
import tokenizers
import torch
from safetensors.torch import load_file

import gguf_families
from gguf_families import llama3_factors, neighbours, tensor_names

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "crates/interbed-model/tests/fixtures"
DEFAULT_OUT = FIXTURES / "gguf"

# Case, and into how many parts it is cut.
MODELS = {
    "llama2_mha": 1,
    "llama3_gqa_tied": 1,
    "llama_bias": 1,
    "llama_f16": 3,
    "llama_head_dim_24": 1,
    "mistral_sliding": 1,
    "qwen2_bf16": 1,
    "qwen3": 1,
    "granite_attention": 1,
    "minicpm": 1,
    "rope_linear": 1,
    "rope_yarn": 1,
}
# Families whose query and key rows are reordered, by `model_type`, with GGUF's name of the architecture.
NEIGHBOURS = {"llama": "llama", "mistral": "llama", "minicpm": "minicpm", "granite": "granite"}

TEXTS = [
    "",
    " ",
    "Once upon a time there was a little fox.",
    "  two spaces, then\ttab and\n\nnew lines \n",
    "It's 1234567 o'clock, isn't it? We'll see... 3.14",
    "héllo wörld — “quotes” ½ ² 你好，世界 привет 🙂👍🏽",
    "CamelCase snake_case kebab-case http://example.org/?a=b&c=[d]",
    "a\u0301 \u00e1 \u200b zero width",
    "     many     gaps     ",
    "\x00\x01 control \x7f",
    "the the the thethethe THE",
    "def f(x):\n    return x + 1  # comment\n",
]


def write_model(name, parts, out):
    directory = FIXTURES / name
    config = json.loads((directory / "config.json").read_text())
    tensors = {}
    for file in sorted(directory.glob("model*.safetensors")):
        tensors |= load_file(file)
    kind = config["model_type"]
    architecture = NEIGHBOURS.get(kind, kind)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    head_dim = config.get("head_dim") or hidden // heads
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope_type = rope.get("rope_type", rope.get("type", "default"))

    path = out / f"{name}.gguf"
    size = math.ceil((len(tensors) + 1) / parts) if parts > 1 else 0
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=size)
    writer.add_name(name)
    writer.add_context_length(config["max_position_embeddings"] if "max_position_embeddings" in config else 2048)
    writer.add_embedding_length(hidden)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(rope.get("rope_theta", config.get("rope_theta", 10000.0)))
    writer.add_rope_dimension_count(head_dim)
    if head_dim * heads != hidden:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if kind == "mistral":
        writer.add_sliding_window(config["sliding_window"])
    if kind == "minicpm":
        writer.add_embedding_scale(float(config["scale_emb"]))
        writer.add_residual_scale(config["scale_depth"] / layers**0.5)
        writer.add_logit_scale(hidden / config["dim_model_base"])
    if kind == "granite":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if rope_type == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope_type == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    writer.add_bos_token_id(config["bos_token_id"] if "bos_token_id" in config else 1)
    writer.add_eos_token_id(config["eos_token_id"] if "eos_token_id" in config else 2)

    if rope_type == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config, head_dim))
    names = tensor_names(architecture, layers)
    for tensor, values in tensors.items():
        new_name = names.get_name(tensor, try_suffixes=(".weight", ".bias"))
        raw = None
        if values.dim() < 2:
            data = values.to(torch.float32).numpy()
        elif values.dtype == torch.bfloat16:
            raw = gguf.GGMLQuantizationType.BF16
            data = values.view(torch.int16).numpy().view(np.uint16)
        else:
            data = values.numpy()
        if kind in NEIGHBOURS and ".q_proj." in tensor:
            data = neighbours(data, heads)
        if kind in NEIGHBOURS and ".k_proj." in tensor:
            data = neighbours(data, kv_heads)
        if raw is not None:
            data = np.ascontiguousarray(data).view(np.uint8)
        writer.add_tensor(new_name, data, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_byte_level(out):
    directory = ROOT / "models/storyteller"
    files = {name: json.loads((directory / name).read_text()) for name in ("tokenizer.json", "tokenizer_config.json")}
    vocab = files["tokenizer.json"]["model"]["vocab"]
    special = {token["id"]: token["content"] for token in files["tokenizer.json"]["added_tokens"]}
    spelt = {id: token for token, id in vocab.items()} | special
    tokens = [spelt[id] for id in range(len(spelt))]
    writer = gguf.GGUFWriter(out / "byte_level.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("llama-bpe")
    writer.add_token_list(tokens)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    writer.add_token_types([control if id in special else normal for id in range(len(tokens))])
    merges = files["tokenizer.json"]["model"]["merges"]
    writer.add_token_merges([" ".join(merge) if isinstance(merge, list) else merge for merge in merges])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(1)
    writer.add_chat_template(files["tokenizer_config.json"]["chat_template"])
    finish(writer)
    tokenizer = tokenizers.Tokenizer.from_file(str(directory / "tokenizer.json"))
    texts = TEXTS + ["<|user|>\nHello!<|end|>\n<|assistant|>\n", "<|begin_of_text|>x <|end_of_text|> y"]
    cases = [{"text": text, "ids": tokenizer.encode(text).ids} for text in texts]
    (out / "byte_level.json").write_text(json.dumps(cases, indent=1) + "\n")


def write_sentencepiece(out):
    sys.path.insert(0, str(ROOT / "tools/train"))
    import itertools

    import stories

    corpus = list(itertools.islice(stories.documents(7, chat_share=0.0), 600))
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(corpus), model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True,
        normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True,
        split_digits=True, character_coverage=1.0, minloglevel=2, num_threads=1,
    )
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    tokens, scores, types = [], [], []
    for id in range(processor.get_piece_size()):
        tokens.append(processor.id_to_piece(id))
        scores.append(processor.get_score(id))
        kind = gguf.TokenType.NORMAL
        if processor.is_unknown(id):
            kind = gguf.TokenType.UNKNOWN
        elif processor.is_control(id):
            kind = gguf.TokenType.CONTROL
        elif processor.is_byte(id):
            kind = gguf.TokenType.BYTE
        types.append(kind)
    writer = gguf.GGUFWriter(out / "sentencepiece.gguf", "llama")
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(types)
    writer.add_bos_token_id(processor.bos_id())
    writer.add_eos_token_id(processor.eos_id())
    writer.add_unk_token_id(processor.unk_id())
    writer.add_add_bos_token(True)
    writer.add_add_eos_token(False)
    finish(writer)
    texts = TEXTS[1:] + corpus[:5]
    cases = [{"text": text, "ids": [processor.bos_id()] + processor.encode(text)} for text in texts]
    (out / "sentencepiece.json").write_text(json.dumps(cases, indent=1) + "\n")


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT)
    parser.add_argument("--families", nargs="*", help="write only models of `make_family_fixtures.py`: these, or all")
    args = parser.parse_args()
    if args.families is None:
        shutil.rmtree(args.out, ignore_errors=True)
        args.out.mkdir(parents=True)
    for name in args.families or gguf_families.MODELS:
        gguf_families.write_family(FIXTURES / name, args.out)
        print(name)
    if args.families is not None:
        return
    for name, parts in MODELS.items():
        write_model(name, parts, args.out)
        print(name)
    write_byte_level(args.out)
    write_sentencepiece(args.out)


if __name__ == "__main__":
    main()
