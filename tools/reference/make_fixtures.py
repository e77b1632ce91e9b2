#!/usr/bin/env python3
"""Writes tiny random models of every architecture and rope type, with what `transformers` computes for them.

Each case becomes a directory with `config.json`, `model.safetensors` (or three shards and an index), `expected.json`
(prompt, 64 greedy tokens) and `expected.safetensors` (logits of the prompt). Weights are chosen so that nothing can be
left out unnoticed: norms are not ones, biases are not zeros, and seeds are searched until no greedy choice is close.
"""

import argparse
import itertools
import json
import math
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from reference import SCALED_LLAMA, granite_config, greedy, open_model, prompt_logits

DEFAULT_OUT = Path(__file__).resolve().parents[2] / "crates/interbed-model/tests/fixtures"
GREEDY_TOKENS = 64
MARGIN_MIN = 1e-3
# A model that repeats one token tests nothing.
DISTINCT_MIN = 10
VOCAB = 64

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "granite": "GraniteForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "fm9g": "FM9GForCausalLM",
}


def config(model_type, dtype="float32", modern=False, rope=None, theta=10000.0, **fields):
    """A `config.json` in one of the two spellings in use: the classic one, and the one of transformers 5 (`modern`)."""
    out = {
        "architectures": [ARCHITECTURES[model_type]],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": True,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if modern:
        out |= {"dtype": dtype, "rope_parameters": {"rope_type": "default"} | (rope or {}) | {"rope_theta": theta}}
    else:
        out |= {"torch_dtype": dtype, "rope_scaling": rope, "rope_theta": theta}
    out |= fields
    # A field given as `...` is one that real files leave out, so that the default counts.
    return {k: v for k, v in out.items() if v is not ...}


LLAMA3_ROPE = {
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
SCALES = {"scale_emb": 3, "scale_depth": 1.4, "dim_model_base": 16}
SCALED = {"num_hidden_layers": 3, "tie_word_embeddings": False}


def cases():
    """(name, what it is about, config, length of the prompt, options); cases of one `weights` group share weights."""
    llama2 = {"num_key_value_heads": ..., "rope_theta": ..., "rope_scaling": ..., "tie_word_embeddings": ...}
    layer_types = ["sliding_attention", "full_attention", "sliding_attention"]
    yield "llama2_mha", "one key head a query head, untied; defaults left out", config("llama", **llama2), 24, {}
    yield (
        "llama3_gqa_tied", "grouped queries, tied head, llama3 rope; three shards",
        config("llama", rope=LLAMA3_ROPE, theta=500.0, num_attention_heads=6, hidden_size=48), 40, {"shards": 3},
    )
    yield (
        "llama3_bf16", "the same kind in bfloat16",
        config("llama", "bfloat16", modern=True, rope=LLAMA3_ROPE, theta=500.0, num_attention_heads=6, hidden_size=48),
        40, {},
    )
    yield "llama_f16", "float16", config("llama", "float16", num_key_value_heads=1), 24, {}
    yield "llama_head_dim_24", "head_dim is not hidden / heads", config("llama", modern=True, head_dim=24), 24, {}
    yield (
        "llama_head_dim_20", "head_dim is no multiple of a vector",
        config("llama", head_dim=20, hidden_size=36, num_attention_heads=2, num_key_value_heads=1), 25, {},
    )
    yield "llama_bias", "biases on all linear layers", config("llama", attention_bias=True, mlp_bias=True), 24, {}
    yield (
        "mistral_sliding", "window smaller than the prompt",
        config("mistral", sliding_window=8, head_dim=None, tie_word_embeddings=False), 32, {},
    )
    yield (
        "mistral_sliding_modern", "window smaller than the prompt, larger head_dim",
        config("mistral", modern=True, sliding_window=13, head_dim=12, rms_norm_eps=1e-6), 32, {},
    )
    yield (
        "qwen2", "biases on q, k, v; a window that is switched off",
        config("qwen2", use_sliding_window=False, sliding_window=6, max_window_layers=1, rms_norm_eps=1e-6), 32, {},
    )
    yield "qwen2_bf16", "bfloat16", config("qwen2", "bfloat16", num_attention_heads=6, hidden_size=48), 32, {}
    yield (
        "qwen2_sliding", "layers from max_window_layers on slide",
        config("qwen2", use_sliding_window=True, sliding_window=8, max_window_layers=1, num_hidden_layers=3), 32, {},
    )
    yield (
        "qwen2_layer_types", "layer_types says which layers slide",
        config("qwen2", modern=True, use_sliding_window=True, sliding_window=8, max_window_layers=3, num_hidden_layers=3,
               layer_types=layer_types), 32, {},
    )
    yield "qwen3", "norms on q and k, explicit head_dim", config("qwen3", head_dim=16, attention_bias=False), 32, {}
    yield (
        "qwen3_modern", "layer_types, biases, untied",
        config("qwen3", modern=True, head_dim=12, attention_bias=True, use_sliding_window=True, sliding_window=9,
               max_window_layers=3, num_hidden_layers=3, layer_types=layer_types, tie_word_embeddings=False), 32, {},
    )
    yield (
        "granite_attention", "its own attention scale, with biases",
        config("granite", modern=True, attention_multiplier=0.2, embedding_multiplier=2.0, residual_multiplier=0.5,
               logits_scaling=0.5, attention_bias=True, tie_word_embeddings=False), 24, {},
    )
    minicpm = config("minicpm", **SCALED, **SCALES)
    fm9g = config("fm9g", **SCALED, **SCALES)
    same = {"weights": "scaled"}
    yield "granite", "the multipliers that MiniCPM's scales amount to", granite_config(minicpm), 28, same
    yield "minicpm", "the same weights, MiniCPM's configuration", minicpm, 28, same
    yield "fm9g", "the same weights, FM9G's configuration", fm9g, 28, same
    yield (
        "rope_linear", "positions divided by a factor",
        config("llama", rope={"type": "linear", "factor": 2.5}), 30, {},
    )
    yield (
        "rope_dynamic_long", "prompt longer than max_position_embeddings",
        config("llama", modern=True, rope={"rope_type": "dynamic", "factor": 3.0}, theta=100.0,
               max_position_embeddings=16), 32, {},
    )
    yield (
        "rope_dynamic_crossing", "decoding crosses max_position_embeddings",
        config("llama", rope={"type": "dynamic", "factor": 2.0}, theta=100.0, max_position_embeddings=48), 30, {},
    )
    yield (
        "rope_yarn", "yarn with its defaults",
        config("qwen2", rope={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, theta=1000.0), 30, {},
    )
    yield (
        "rope_yarn_full", "attention_factor, betas, no truncation",
        config("llama", modern=True, theta=100.0, num_key_value_heads=1, head_dim=16,
               rope={"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 32, "attention_factor": 1.3,
                     "beta_fast": 4.0, "beta_slow": 1.5, "truncate": False}), 30, {},
    )
    yield (
        "rope_yarn_mscale", "mscale and mscale_all_dim, original length left out",
        config("llama", theta=100.0, num_key_value_heads=1, head_dim=16,
               rope={"rope_type": "yarn", "factor": 4.0, "mscale": 3.0, "mscale_all_dim": 0.5, "beta_fast": 16}), 30, {},
    )
    yield (
        "rope_llama3", "all three bands of llama3 rope",
        config("llama", rope=LLAMA3_ROPE, theta=100.0, head_dim=16), 30, {},
    )


def random_weights(model, seed):
    """Weights of a size at which logits differ clearly; norms around one and biases around zero, but neither at it."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, parameter in sorted(model.named_parameters()):
        noise = torch.randn(parameter.shape, generator=generator)
        if "norm" in name:
            out[name] = 1 + 0.3 * noise
        elif name.endswith(".bias"):
            out[name] = 0.3 * noise
        elif "embed_tokens" in name:
            out[name] = noise
        else:
            out[name] = noise * 1.5 / math.sqrt(parameter.shape[-1])
    return out


def save_weights(directory, weights, shards):
    if shards == 1:
        save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})
        return
    names, index = sorted(weights), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        # Dealt out like cards, so that one layer's tensors lie in several files.
        part = {name: weights[name] for name in names[shard::shards]}
        save_file(part, directory / file, metadata={"format": "pt"})
        index |= {name: file for name in part}
    total = sum(w.numel() * w.element_size() for w in weights.values())
    write_json(directory / "model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": index})


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2) + "\n")


def prompt_of(seed, length):
    return torch.randint(2, VOCAB, (length,), generator=torch.Generator().manual_seed(1000 + seed)).tolist()


def search(config, prompt_len, first_seed):
    """The first seed whose greedy tokens are all clear and not all the same, and its weights."""
    dtype = getattr(torch, config.get("torch_dtype") or config["dtype"])
    readable = AutoConfig.for_model(**(granite_config(config) if config["model_type"] in SCALED_LLAMA else config))
    for seed in itertools.count(first_seed):
        model = AutoModelForCausalLM.from_config(readable, attn_implementation="eager", dtype=torch.float32).eval()
        weights = {k: v.to(dtype).contiguous() for k, v in random_weights(model, seed).items()}
        # Tied heads are in the model, but not among its named parameters.
        model.load_state_dict(weights, strict=False)
        tokens, margin = greedy(model, prompt_of(seed, prompt_len), GREEDY_TOKENS, MARGIN_MIN)
        if margin > MARGIN_MIN and len(set(tokens)) >= DISTINCT_MIN:
            return seed, weights, tokens


def make_case(directory, config, prompt_len, shards, first_seed):
    """Writes one case, and computes what is expected from the files as they then lie there."""
    seed, weights, tokens_searched = search(config, prompt_len, first_seed)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_json(directory / "config.json", config)
    save_weights(directory, weights, shards)

    prompt = prompt_of(seed, prompt_len)
    tokens, margin = greedy(open_model(directory), prompt, GREEDY_TOKENS)
    if tokens != tokens_searched:
        raise SystemExit(f"{directory.name}: the files do not say what the model in memory said")
    expected = {"logits_f32": prompt_logits(open_model(directory), prompt)}
    dtype = weights["model.norm.weight"].dtype
    if dtype == torch.bfloat16:
        expected["logits_f32_of_bf16"] = expected["logits_f32"].clone()
        expected["logits_bf16"] = prompt_logits(open_model(directory, dtype), prompt)
    if dtype == torch.float16:
        expected["logits_f16"] = prompt_logits(open_model(directory, dtype), prompt)
    save_file(expected, directory / "expected.safetensors")
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "seed": seed}
    (directory / "expected.json").write_text(
        f'{{\n  "prompt": {prompt},\n  "greedy": {tokens},\n  "margin_min": {margin:.6f},\n'
        f'  "made_by": {json.dumps(made_by)}\n}}\n'
    )
    return seed, margin, len(set(tokens))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="directory of the fixtures (default: the tests')")
    parser.add_argument("--only", nargs="*", help="names of the cases to write (default: all)")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)

    print(f"{'case':24} {'type':8} {'dtype':9} {'spelling':8} {'seed':>4} {'margin':>8} {'distinct':>8} {'KiB':>5}  about")
    total, group_seed = 0, {}
    for name, about, config, prompt_len, options in cases():
        if args.only and name not in args.only:
            continue
        directory, group = args.out / name, options.get("weights")
        seed, margin, distinct = make_case(
            directory, config, prompt_len, options.get("shards", 1), group_seed.get(group, 0)
        )
        if group and group_seed.setdefault(group, seed) != seed:
            raise SystemExit(f"{name}: does not compute what the other cases with its weights compute")
        size = sum(f.stat().st_size for f in directory.iterdir())
        total += size
        spelling = "modern" if "rope_parameters" in config else "classic"
        dtype = config.get("torch_dtype") or config["dtype"]
        print(
            f"{name:24} {config['model_type']:8} {dtype:9} {spelling:8} {seed:4} {margin:8.5f} {distinct:8} "
            f"{size / 1024:5.0f}  {about}",
            flush=True,
        )
    print(f"{total / 1024:.0f} KiB in all")


if __name__ == "__main__":
    main()
