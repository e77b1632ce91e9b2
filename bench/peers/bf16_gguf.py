#!/usr/bin/env python3
"""Turns a bf16 Hugging Face directory of a Llama into a GGUF file to measure speed with.

Only for speed: there is no tokenizer, rope factors and the order of rotated pairs are left out. What is computed takes
as long as in a proper file, what comes out is not the model's answer."""

import argparse
import json
import sys
from pathlib import Path

import gguf
import numpy
from safetensors import safe_open

NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
LAYER_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class NotConvertible(Exception):
    """This model cannot be converted; the message says why."""


def convert(source: Path, target: Path) -> None:
    """Writes `target` from the directory `source`. Whatever fails or interrupts it, no part of a file stays."""
    partial = target.with_name(target.name + ".partial")
    try:
        write(source, partial)
        partial.rename(target)
    finally:
        partial.unlink(missing_ok=True)


def write(source: Path, target: Path) -> None:
    config = json.loads((source / "config.json").read_text())
    if config.get("model_type") not in ("llama", "mistral"):
        raise NotConvertible(f"{source} is a {config.get('model_type')}; only llama and mistral are converted here")
    writer = gguf.GGUFWriter(target, "llama", use_temp_file=False)
    heads, hidden = config["num_attention_heads"], config["hidden_size"]
    head_size = config.get("head_dim") or hidden // heads
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.get("num_key_value_heads", heads))
    writer.add_key_length(head_size)
    writer.add_value_length(head_size)
    writer.add_rope_dimension_count(head_size)
    writer.add_rope_freq_base(float(config.get("rope_theta", 10000.0)))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_tokenizer_model("no_vocab")
    files = sorted(source.glob("*.safetensors"))
    if not files:
        raise NotConvertible(f"{source} holds no *.safetensors; make it with `interbed synth`")
    for file in files:
        # NumPy has no bf16, so the bits come through PyTorch.
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():
                add(writer, gguf_name(name), tensors.get_tensor(name))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add(writer, name: str, tensor) -> None:
    import torch

    if tensor.dim() == 1:
        writer.add_tensor(name, tensor.to(torch.float32).numpy())
        return
    bits = tensor.to(torch.bfloat16).contiguous().view(torch.int16).numpy().view(numpy.uint8)
    writer.add_tensor(name, bits, raw_dtype=gguf.GGMLQuantizationType.BF16)


def gguf_name(name: str) -> str:
    """The name that GGUF gives a tensor."""
    if name in NAMES:
        return NAMES[name]
    layer, _, rest = name.removeprefix("model.layers.").partition(".")
    stem, _, suffix = rest.rpartition(".")
    if stem not in LAYER_NAMES:
        raise NotConvertible(f"{name}: not a tensor of a Llama; this model cannot be converted here")
    return f"blk.{layer}.{LAYER_NAMES[stem]}.{suffix}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="Hugging Face directory, for instance from `interbed synth`")
    parser.add_argument("target", type=Path, help="GGUF file to write")
    options = parser.parse_args()
    try:
        convert(options.source, options.target)
    except NotConvertible as problem:
        sys.exit(str(problem))
    print(options.target)


if __name__ == "__main__":
    sys.exit(main())
