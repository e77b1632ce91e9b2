"""What the reference scripts share: opening a directory with `transformers` so that its numbers can be trusted."""

import json
import math
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.integrations.mxfp4 import convert_moe_packed_tensors

# The numbers of a code of four bits.
FP4 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0])

SCALED_LLAMA = ("minicpm", "fm9g", "fm9g7b")


def granite_config(config):
    """The Granite configuration that computes what MiniCPM's and FM9G's own code computes.

    `transformers` has no MiniCPM, but Granite has all of its three scales. Granite also lets the attention scale be
    chosen, which therefore has to be given: Llama's.
    """
    scaled = ("scale_emb", "scale_depth", "dim_model_base", "auto_map")
    granite = {k: v for k, v in config.items() if k not in scaled}
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    granite["model_type"] = "granite"
    granite["architectures"] = ["GraniteForCausalLM"]
    granite["attention_multiplier"] = 1 / math.sqrt(head_dim)
    if "scale_emb" in config:
        granite["embedding_multiplier"] = config["scale_emb"]
    if "scale_depth" in config:
        granite["residual_multiplier"] = config["scale_depth"] / math.sqrt(config["num_hidden_layers"])
    if "dim_model_base" in config:
        granite["logits_scaling"] = config["hidden_size"] / config["dim_model_base"]
    return granite


def open_model(directory, dtype=torch.float32):
    """Opens a model directory as it lies on disk, with plain (eager) attention, whose arithmetic is the definition.

    Every call gives a fresh model: dynamic rope keeps state inside the module, from one prompt to the next.
    """
    directory = Path(directory).resolve()
    config = json.loads((directory / "config.json").read_text())
    quantized = config.pop("quantization_config", None)
    if config["model_type"] not in SCALED_LLAMA and not quantized:
        return load(directory, dtype)
    with tempfile.TemporaryDirectory() as changed:
        for file in directory.iterdir():
            if file.name.endswith(".safetensors") and quantized:
                save_file(dequantized(load_file(file)), Path(changed) / file.name, metadata={"format": "pt"})
            elif file.name != "config.json":
                (Path(changed) / file.name).symlink_to(file)
        if config["model_type"] in SCALED_LLAMA:
            config = granite_config(config)
        (Path(changed) / "config.json").write_text(json.dumps(config))
        return load(changed, dtype)


def dequantized(tensors):
    """The tensors of a file with the numbers that MXFP4 and FP8 stand for, in float32."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith("_scale_inv"):
            continue
        if tensor.dtype == torch.float8_e4m3fn:
            out[name] = dequantized_fp8(tensor, tensors[f"{name}_scale_inv"])
            continue
        if name.endswith("_blocks"):
            scales = tensors[name.replace("_blocks", "_scales")]
            out[name.removesuffix("_blocks")] = convert_moe_packed_tensors(tensor, scales, dtype=torch.float32)
        elif not name.endswith("_scales"):
            out[name] = tensor
    return out


def dequantized_fp8(codes, scales):
    """Numbers of a matrix with a scale for each block of 128 rows and columns, those at the ends being smaller.

    `transformers` itself divides a matrix into as many equal blocks as there are scales, which is another thing.
    """
    rows, columns = codes.shape
    return codes.float() * scales.repeat_interleave(128, 0)[:rows].repeat_interleave(128, 1)[:, :columns]


def load(directory, dtype):
    model, report = AutoModelForCausalLM.from_pretrained(
        directory, dtype=dtype, attn_implementation="eager", experts_implementation="eager", output_loading_info=True
    )
    # Layers after the last predict further tokens; `transformers` does not read them.
    beyond = f"model.layers.{model.config.num_hidden_layers}."
    report["unexpected_keys"] = [name for name in report["unexpected_keys"] if not name.startswith(beyond)]
    # A name that does not match is only a warning there, and would leave random weights behind.
    for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if report[problem]:
            raise SystemExit(f"{directory}: {problem}: {sorted(report[problem])}")
    return model.eval()


@torch.no_grad()
def prompt_logits(model, tokens):
    """Logits of every prompt position, [prompt_len, vocab], as float32, from one pass over the whole prompt."""
    return model(input_ids=torch.tensor([tokens])).logits[0].float()


@torch.no_grad()
def greedy(model, tokens, count, margin_min=0.0):
    """`count` greedy tokens, decoded one at a time over the KV cache, and the smallest margin of the first over the
    second logit, relative to the largest absolute one. No token stops it, only a margin of at most `margin_min`."""
    out, margin = [], math.inf
    step = model(input_ids=torch.tensor([tokens]), use_cache=True)
    for _ in range(count):
        logits = step.logits[0, -1].float()
        first, second = logits.topk(2).values.tolist()
        margin = min(margin, (first - second) / logits.abs().max().item())
        out.append(int(logits.argmax()))
        if margin <= margin_min:
            break
        step = model(input_ids=torch.tensor([out[-1:]]), past_key_values=step.past_key_values, use_cache=True)
    return out, margin
