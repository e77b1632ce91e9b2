"""Writes the models of `make_family_fixtures.py` as GGUF files, the way llama.cpp's converters do."""

import json
import math
import re

import gguf
import numpy as np
import torch
from safetensors.torch import load_file

# GGUF's name of the architecture, and whether query and key rows are reordered, by `model_type`.
ARCHITECTURES = {
    "qwen3_moe": ("qwen3moe", False),
    "qwen2_moe": ("qwen2moe", False),
    "mixtral": ("llama", True),
    "olmoe": ("olmoe", False),
    "granitemoe": ("granitemoe", True),
    "glm4_moe": ("glm4moe", False),
    "minimax_m2": ("minimax-m2", False),
    # Its rows are side by side in `transformers` too.
    "ernie4_5_moe": ("ernie4_5-moe", False),
    "hunyuan_v1_moe": ("hunyuan-moe", False),
    "gpt_oss": ("gpt-oss", False),
    "smollm3": ("smollm3", True),
    "phi3": ("phi3", False),
    "mistral": ("llama", True),
    "ministral3": ("mistral3", True),
    "olmo2": ("olmo2", False),
    "olmo3": ("olmo2", False),
    "exaone4": ("exaone4", False),
    "seed_oss": ("seed_oss", False),
    "arcee": ("arcee", True),
    "gemma3_text": ("gemma3", False),
    "gemma4_text": ("gemma4", False),
    "qwen3_5_text": ("qwen35", False),
    "qwen3_5_moe_text": ("qwen35moe", False),
    "qwen3_next": ("qwen3next", False),
    "lfm2": ("lfm2", False),
    "lfm2_moe": ("lfm2moe", False),
    "granitemoehybrid": ("granitehybrid", True),
    "nemotron_h": ("nemotron_h", False),
}

MODELS = [
    "qwen3_moe", "qwen2_moe", "mixtral", "olmoe", "granitemoe", "glm4_moe", "glm4_moe_groups", "glm4_moe_mtp",
    "minimax_m2", "ernie4_5_moe", "hunyuan_v1_moe", "gpt_oss", "gpt_oss_mxfp4",
    "smollm3", "phi3", "phi3_long", "mistral_small", "ministral3", "olmo2", "olmo3", "exaone4", "seed_oss",
    "arcee", "gemma3", "gemma3_modern", "gemma3_untold", "gemma3_62", "gemma4", "gemma4_plain",
    "gemma4_keys", "gemma4_moe", "qwen3_5", "qwen3_5_tied", "qwen3_5_bf16",
    "qwen3_5_moe", "qwen3_5_moe_apart", "qwen3_next", "lfm2", "lfm2_bf16", "lfm2_moe", "granite_4_h",
    "granite_4_h_moe", "nemotron_h", "nemotron_h_moe",
]


# Ends of the names of tensors in 32 bits, beside vectors.
WIDE = (
    ".bias", "_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d.weight", "ssm_a", "ssm_d", "shortconv.conv.weight",
)


def neighbours(rows, heads):
    """Puts the rows that are rotated together side by side."""
    return rows.reshape(heads, 2, rows.shape[0] // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


def llama3_factors(config, head_dim):
    rope, theta = config["rope_scaling"], config["rope_theta"]
    frequencies = 1.0 / (theta ** (np.arange(0, head_dim, 2, dtype=np.float32) / head_dim))
    context, low, high = (rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor"))
    factors = []
    for frequency in frequencies:
        wavelength = 2 * math.pi / frequency
        if wavelength < context / high:
            factors.append(1.0)
        elif wavelength > context / low:
            factors.append(rope["factor"])
        else:
            smooth = (context / wavelength - low) / (high - low)
            factors.append(1 / ((1 - smooth) / rope["factor"] + smooth))
    return np.array(factors, dtype=np.float32)


def tensor_names(architecture, layers):
    arch = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    return gguf.get_tensor_name_map(arch, layers)


def experts_together(tensors):
    """Joins the experts of a layer, and splits gates from ups; gives names as if there were one expert."""
    out, alone = {}, {}
    for name, tensor in tensors.items():
        if match := re.fullmatch(r"(.*\.experts)\.(\d+)\.(.*)", name):
            alone.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        elif name.endswith("input_linear.weight"):
            gates, ups = tensor.chunk(2, dim=1)
            stem = name.removesuffix(".block_sparse_moe.input_linear.weight")
            out[f"{stem}.mlp.experts.gate_proj.weight"], out[f"{stem}.mlp.experts.up_proj.weight"] = gates, ups
        elif name.endswith("mlp.experts.gate_up_proj"):
            stem = name.removesuffix("gate_up_proj")
            out[f"{stem}gate_proj.weight"], out[f"{stem}up_proj.weight"] = tensor.chunk(2, dim=1)
        elif name.endswith("mlp.experts.down_proj"):
            out[f"{name}.weight"] = tensor
        elif name.endswith("output_linear.weight"):
            out[name.replace("block_sparse_moe.output_linear", "mlp.experts.down_proj")] = tensor
        else:
            out[name] = tensor
    return out | {name: torch.stack([tensors[i] for i in range(len(tensors))]) for name, tensors in alone.items()}


def gpt_oss(tensors):
    """Turns experts' matrices around, and puts even and odd rows of gate_up into tensors of their own."""
    out = {}
    for name, tensor in tensors.items():
        stem, _, last = name.rpartition(".")
        if last == "sinks":
            out[f"{name}.weight"] = tensor
        elif match := re.fullmatch(r"(gate_up|down)_proj(_bias|_blocks|_scales)?", last):
            kind = {"_bias": "bias", "_blocks": "weight", "_scales": None, None: "weight"}[match[2]]
            if kind is None:
                continue
            if match[2] == "_blocks":
                tensor = gguf_mxfp4(tensor, tensors[name.replace("_blocks", "_scales")])
            elif kind == "weight":
                tensor = tensor.transpose(1, 2)
            if match[1] == "down":
                out[f"{stem}.down_proj.{kind}"] = tensor
            else:
                out[f"{stem}.gate_proj.{kind}"], out[f"{stem}.up_proj.{kind}"] = tensor[:, 0::2], tensor[:, 1::2]
        else:
            out[name] = tensor
    return out


def gguf_mxfp4(blocks, scales):
    """Bytes of whole rows: of each block its scale, then number i and number i + 16 in byte i."""
    codes = torch.stack((blocks & 15, blocks >> 4), dim=-1).flatten(-2)
    packed = codes[..., :16] | codes[..., 16:] << 4
    return torch.cat((scales.unsqueeze(-1), packed), dim=-1).flatten(-2)


def qwen3_5(tensors, config):
    """Puts value heads in turns by their key heads, and the layer that guesses behind the others."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key_rows, width = keys * config["linear_key_head_dim"], config["linear_value_head_dim"]
    layers = config["num_hidden_layers"]

    def turns(rows, width=width):
        shape = rows.shape
        return rows.reshape(keys, values // keys, width, *shape[1:]).transpose(0, 1).reshape(shape)

    guessing = {"fc": "eh_proj", "pre_fc_norm_embedding": "enorm", "pre_fc_norm_hidden": "hnorm",
                "norm": "shared_head_norm"}
    out = {}
    for name, tensor in tensors.items():
        part = name.partition(".linear_attn.")[2].removesuffix(".weight")
        if part in ("in_proj_qkv", "conv1d"):
            tensor = tensor.reshape(tensor.shape[0], tensor.shape[-1])
            tensor = torch.cat((tensor[: 2 * key_rows], turns(tensor[2 * key_rows :])))
        elif part == "in_proj_z":
            tensor = turns(tensor)
        elif part in ("in_proj_a", "in_proj_b", "A_log", "dt_bias"):
            tensor = turns(tensor, 1)
        elif part == "out_proj":
            tensor = turns(tensor.T).T
        if part == "A_log":
            tensor = -torch.exp(tensor.to(torch.float32))
        if name.endswith("norm.weight") and part != "norm":
            tensor = tensor.to(torch.float32) + 1
        name = name.replace("dt_bias", "dt_proj.bias").replace("mtp.layers.0", f"model.layers.{layers}")
        if name.startswith("mtp."):
            stem = name.removeprefix("mtp.").removesuffix(".weight")
            # The package has no name for these in this architecture.
            name = f"blk.{layers}.nextn.{guessing[stem]}.weight"
        out[name] = tensor
    return out


def gemma4(tensors):
    """Gives tensors that the package has no names for those that converters give them."""
    known = {
        "router.scale": "ffn_gate_inp.scale", "router.per_expert_scale": "ffn_down_exps.scale",
        "layer_scalar": "layer_output_scale.weight", "experts.gate_up_proj": "ffn_gate_up_exps.weight",
        "experts.down_proj": "ffn_down_exps.weight",
    }
    out = {}
    for name, tensor in tensors.items():
        match = re.fullmatch(r"model\.layers\.(\d+)\.(.*)", name)
        known_here = known.get(match[2]) if match else None
        out[f"blk.{match[1]}.{known_here}" if known_here else name] = tensor
    return out


def add_gemma4(writer, config):
    layers, sliding = config["num_hidden_layers"], config["head_dim"]
    types = config.get("layer_types") or [
        f"{'full' if layer % 6 == 0 else 'sliding'}_attention" for layer in range(1, layers + 1)]
    slides = [kind == "sliding_attention" for kind in types]
    full, shared = config["global_head_dim"], config.get("num_kv_shared_layers", 0)
    writer.add_shared_kv_layers(shared)
    writer.add_embedding_length_per_layer_input(config["hidden_size_per_layer_input"])
    writer.add_sliding_window(config["sliding_window"])
    writer.add_sliding_window_pattern(slides)
    for add, width in (
        (writer.add_key_length, full), (writer.add_value_length, full), (writer.add_rope_dimension_count, full),
        (writer.add_key_length_swa, sliding), (writer.add_value_length_swa, sliding),
        (writer.add_rope_dimension_count_swa, sliding),
    ):
        add(width)
    inner = config["intermediate_size"]
    if config.get("use_double_wide_mlp"):
        inner = [inner if layer < layers - shared else 2 * inner for layer in range(layers)]
    writer.add_feed_forward_length(inner)
    kv_heads, of_full = config["num_key_value_heads"], config.get("num_global_key_value_heads")
    writer.add_head_count_kv([kv_heads if slides else of_full for slides in slides] if of_full else kv_heads)
    if config.get("enable_moe_block"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    rope = config["rope_parameters"]
    writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
    pairs, rotated = full // 2, int(full * rope["full_attention"]["partial_rotary_factor"] / 2)
    factors = [1.0] * rotated + [1e30] * (pairs - rotated)
    writer.add_tensor("rope_freqs.weight", np.array(factors, dtype=np.float32))


def qwen3_next(tensors, config):
    """Takes the inputs of delta rules apart, as far as the converter does."""
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    width, shared = config["linear_key_head_dim"], values // keys * config["linear_value_head_dim"]
    out = {}
    for name, tensor in tensors.items():
        part = name.partition(".linear_attn.")[2].removesuffix(".weight")
        if part == "A_log":
            tensor = -torch.exp(tensor.to(torch.float32))
        elif part == "conv1d":
            tensor = tensor.reshape(tensor.shape[0], tensor.shape[-1])
        elif name.endswith("norm.weight") and part != "norm":
            tensor = tensor.to(torch.float32) + 1
        if part == "in_proj_qkvz":
            groups = tensor.reshape(keys, 2 * width + 2 * shared, -1).split([width, width, shared, shared], dim=1)
            *qkv, z = [rows.reshape(-1, tensor.shape[-1]) for rows in groups]
            out[name.replace("qkvz", "qkv")] = torch.cat(qkv)
            out[name.replace("qkvz", "z")] = z
        else:
            out[name.replace("dt_bias", "dt_proj.bias")] = tensor
    return out


def lfm2(tensors):
    """Takes out the dimension of the taps that is 1, and gives names that the package knows."""
    out = {}
    for name, tensor in tensors.items():
        if name.endswith(".conv.conv.weight"):
            tensor = tensor.squeeze(1)
        name = name.replace(".expert_bias", ".expert_bias.bias")
        out[name.removeprefix("model.") if ".experts." in name else name] = tensor
    return out


def lfm2_network_width(config):
    """The width of a dense network, which converters work out."""
    width = config.get("block_ff_dim", config.get("intermediate_size"))
    if not config.get("block_auto_adjust_ff_dim"):
        return width
    width = int(config["block_ffn_dim_multiplier"] * int(2 * width / 3))
    return -(-width // config["block_multiple_of"]) * config["block_multiple_of"]


def groups_of(config):
    return config.get("mamba_n_groups", config.get("n_groups"))


def mamba(tensors, config):
    """Gives vectors of state spaces two dimensions, and cuts what Granite's shared networks have in one piece."""
    out = {}
    for name, tensor in tensors.items():
        last = name.rpartition(".")[2]
        if name.endswith("conv1d.weight"):
            tensor = tensor.squeeze(1)
        elif last == "A_log":
            tensor = -torch.exp(tensor.to(torch.float32)).reshape(-1, 1)
        elif last == "D":
            tensor = tensor.reshape(-1, 1)
        elif name.endswith(("mamba.norm.weight", "mixer.norm.weight")):
            tensor = tensor.reshape(groups_of(config), -1)
        name = name.replace("dt_bias", "dt_proj.bias")
        stem, shared, matrix = name.partition("shared_mlp.")
        kind = "mlp.shared_experts" if config.get("num_local_experts") else "mlp"
        if matrix == "input_linear.weight":
            out[f"{stem}{kind}.gate_proj.weight"], out[f"{stem}{kind}.up_proj.weight"] = tensor.chunk(2)
        elif shared:
            out[f"{stem}{kind}.down_proj.weight"] = tensor
        else:
            out[name] = tensor
    return out


def add_state_space(writer, config, kind):
    if kind == "granitemoehybrid":
        types = config["layer_types"]
        taps, state, heads, width = (config[f"mamba_{k}"] for k in ("d_conv", "d_state", "n_heads", "d_head"))
        is_attention = [kind == "attention" for kind in types]
        for name, key in (("attention_scale", "attention_multiplier"), ("embedding_scale", "embedding_multiplier"),
                          ("residual_scale", "residual_multiplier"), ("logit_scale", "logits_scaling")):
            getattr(writer, f"add_{name}")(config[key])
        writer.add_expert_shared_feed_forward_length(config["shared_intermediate_size"])
        writer.add_rope_scaling_finetuned(False)
    else:
        pattern = config["hybrid_override_pattern"]
        taps, state, heads, width = (config[k] for k in ("conv_kernel", "ssm_state_size", "mamba_num_heads", "mamba_head_dim"))
        is_attention = [letter == "*" for letter in pattern]
        inner = config.get("moe_intermediate_size", config.get("intermediate_size"))
        writer.add_feed_forward_length([inner if letter in "-E" else 0 for letter in pattern])
        if "n_routed_experts" in config:
            writer.add_expert_feed_forward_length(inner)
            writer.add_expert_shared_feed_forward_length(config["moe_shared_expert_intermediate_size"])
            writer.add_expert_shared_count(config["n_shared_experts"])
            writer.add_expert_weights_norm(config["norm_topk_prob"])
            writer.add_expert_weights_scale(config["routed_scaling_factor"])
    writer.add_vocab_size(config["vocab_size"])
    writer.add_ssm_conv_kernel(taps)
    writer.add_ssm_state_size(state)
    writer.add_ssm_group_count(groups_of(config))
    writer.add_ssm_inner_size(heads * width)
    writer.add_ssm_time_step_rank(heads)
    writer.add_head_count_kv([config["num_key_value_heads"] if own else 0 for own in is_attention])


def add_parameters(writer, config, kind):
    heads, hidden, layers = (config[k] for k in ("num_attention_heads", "hidden_size", "num_hidden_layers"))
    predicting = config.get("num_nextn_predict_layers", config.get("mtp_num_hidden_layers", 0))
    rope = config.get("rope_scaling") or config.get("rope_parameters") or {}
    rope = rope.get("full_attention", rope)
    rope_type = rope.get("rope_type", rope.get("type", "default"))
    head_dim = config.get("head_dim") or hidden // heads
    writer.add_block_count(layers + predicting)
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(hidden)
    # Layers of these kinds differ.
    differ = kind == "gemma4_text"
    if kind.startswith("lfm2"):
        writer.add_feed_forward_length(lfm2_network_width(config))
    elif "intermediate_size" in config and not differ and kind != "nemotron_h":
        writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    kv_heads = config["num_key_value_heads"]
    if kind.startswith("lfm2"):
        kv_heads = [kv_heads if layer == "full_attention" else 0 for layer in config["layer_types"]]
    if not differ and kind not in ("granitemoehybrid", "nemotron_h"):
        writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(config.get("rms_norm_eps", 1e-5))
    theta = rope.get("rope_theta", config.get("rope_theta"))
    if config.get("head_dim") and not differ:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if rope_type == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope_type == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        if "beta_fast" in rope:
            writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
            writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        if "attention_factor" in rope:
            writer.add_rope_scaling_yarn_attn_factor(rope["attention_factor"])
    experts = next((config[k] for k in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
                    if k in config), None)
    if experts:
        writer.add_expert_count(experts)
        used = next(config[k] for k in ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts")
                    if k in config)
        writer.add_expert_used_count(used[0] if isinstance(used, list) else used)
    if "n_group" in config:
        writer.add_expert_group_count(config["n_group"])
        writer.add_expert_group_used_count(config["topk_group"])
    if config.get("scoring_func") == "sigmoid":
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)

    if kind in ("qwen2_moe", "qwen3_moe", "qwen3_5_moe_text", "qwen3_next"):
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    if kind in ("qwen2_moe", "qwen3_5_moe_text", "qwen3_next"):
        writer.add_expert_shared_feed_forward_length(config["shared_expert_intermediate_size"])
    if kind in ("mixtral", "granitemoe", "smollm3", "mistral", "ministral3", "arcee"):
        writer.add_vocab_size(config["vocab_size"])
        writer.add_rope_dimension_count(head_dim)
    if kind == "granitemoe":
        writer.add_attention_scale(config["attention_multiplier"])
        writer.add_embedding_scale(config["embedding_multiplier"])
        writer.add_residual_scale(config["residual_multiplier"])
        writer.add_logit_scale(config["logits_scaling"])
    if kind == "glm4_moe":
        writer.add_rope_dimension_count(int(head_dim * config["partial_rotary_factor"]))
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_count(config["n_shared_experts"])
        writer.add_leading_dense_block_count(config["first_k_dense_replace"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
        writer.add_expert_weights_scale(config["routed_scaling_factor"])
        writer.add_expert_weights_norm(config["norm_topk_prob"])
        writer.add_nextn_predict_layers(predicting)
    if kind == "minimax_m2":
        writer.add_expert_feed_forward_length(config["intermediate_size"])
        writer.add_rope_dimension_count(config["rotary_dim"])
    if kind == "ernie4_5_moe":
        writer.add_interleave_moe_layer_step(config["moe_layer_interval"])
        writer.add_leading_dense_block_count(config["moe_layer_start_index"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_expert_shared_count(config["moe_num_shared_experts"])
        # So the converter reckons; it fits the sizes of the published model, and those here.
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"] // config["num_key_value_heads"])
    if kind == "hunyuan_v1_moe":
        writer.add_expert_shared_feed_forward_length(config["intermediate_size"])
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"][0])
        writer.add_expert_shared_count(config["num_shared_expert"][0])
        # Alpha is in the base; files of the published model also have a context that goes with it.
        theta *= rope["alpha"] ** (head_dim / (head_dim - 2))
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
        writer.add_rope_scaling_factor(1.0)
    if kind == "gpt_oss":
        writer.add_sliding_window(config["sliding_window"])
        writer.add_expert_feed_forward_length(config["intermediate_size"])
    if kind == "ministral3":
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if kind == "gemma3_text":
        # Which layers have the window, and their base, is left to readers.
        writer.add_sliding_window(config["sliding_window"])
        theta = theta or 1000000.0
        local = config.get("rope_local_base_freq", 10000.0)
        if "rope_parameters" in config:
            local = config["rope_parameters"]["sliding_attention"]["rope_theta"]
        if local != 10000.0:
            writer.add_rope_freq_base_swa(local)
    if kind == "gemma4_text":
        add_gemma4(writer, config)
    if kind in ("olmo3", "exaone4"):
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])
    if kind == "olmo3":
        writer.add_rope_freq_base_swa(theta)
    if kind == "exaone4":
        writer.add_vocab_size(config["vocab_size"])
    if kind == "phi3":
        length, original = config["max_position_embeddings"], config["original_max_position_embeddings"]
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_dimension_count(int(head_dim * config["partial_rotary_factor"]))
        writer.add_sliding_window(config["sliding_window"])
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(length / original) / math.log(original)))
        writer.add_tensor("rope_factors_long.weight", np.array(rope["long_factor"], dtype=np.float32))
        writer.add_tensor("rope_factors_short.weight", np.array(rope["short_factor"], dtype=np.float32))
    if kind.startswith(("qwen3_5", "qwen3_next")):
        values = config["linear_num_value_heads"]
        writer.add_ssm_conv_kernel(config["linear_conv_kernel_dim"])
        writer.add_ssm_state_size(config["linear_key_head_dim"])
        writer.add_ssm_group_count(config["linear_num_key_heads"])
        writer.add_ssm_time_step_rank(values)
        writer.add_ssm_inner_size(values * config["linear_value_head_dim"])
        writer.add_rope_dimension_count(int(head_dim * rope["partial_rotary_factor"]))
        if "mrope_section" in rope:
            writer.add_rope_dimension_sections([*rope["mrope_section"], 0])
        if "layer_types" in config:
            recurrent = [kind == "linear_attention" for kind in config["layer_types"]]
            writer.add_array(f"{writer.arch}.attention.recurrent_layers", recurrent + [False] * predicting)
        else:
            writer.add_full_attention_interval(config["full_attention_interval"])
        if predicting:
            writer.add_nextn_predict_layers(predicting)
    if kind.startswith("lfm2"):
        writer.add_vocab_size(config["vocab_size"])
        writer.add_shortconv_l_cache(config["conv_L_cache"])
    if kind == "lfm2_moe":
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
        writer.add_leading_dense_block_count(config["num_dense_layers"])
        writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID)
    if kind in ("granitemoehybrid", "nemotron_h"):
        add_state_space(writer, config, kind)
    if rope_type == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_factors(config, head_dim))
    if theta:
        writer.add_rope_freq_base(theta)
    if "bos_token_id" in config:
        writer.add_bos_token_id(config["bos_token_id"])
    writer.add_eos_token_id(config["eos_token_id"])
    return layers + predicting


def write_family(directory, out):
    config = json.loads((directory / "config.json").read_text())
    tensors = load_file(directory / "model.safetensors")
    kind = config["model_type"]
    architecture, reordered = ARCHITECTURES[kind]
    if "n_routed_experts" in config and kind == "nemotron_h":
        architecture = "nemotron_h_moe"
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    writer = gguf.GGUFWriter(out / f"{directory.name}.gguf", architecture)
    writer.add_name(directory.name)
    blocks = add_parameters(writer, config, kind)
    names = tensor_names(architecture, blocks)

    if kind == "qwen3_next":
        tensors = experts_together(qwen3_next(tensors, config))
    elif kind in ("granitemoehybrid", "nemotron_h"):
        tensors = experts_together(mamba(tensors, config))
    elif kind.startswith("qwen3_5"):
        tensors = experts_together(qwen3_5(tensors, config))
    elif kind == "gemma4_text":
        tensors = gemma4(tensors)
    elif kind.startswith("lfm2"):
        tensors = lfm2(experts_together(tensors))
    else:
        tensors = gpt_oss(tensors) if kind == "gpt_oss" else experts_together(tensors)
    for name, values in tensors.items():
        name = name.replace("e_score_correction_bias", "e_score_correction.bias")
        if re.search(r"\.mixer\.experts\.(up|down)_proj", name):
            name = name.replace("backbone.", "model.").replace("mixer.", "mlp.")
        new_name = name if name.startswith("blk.") else names.get_name(name, try_suffixes=(".weight", ".bias"))
        if new_name is None:
            raise SystemExit(f"{directory.name}: GGUF has no name for {name}")
        if reordered and re.search(r"\.[qk]_proj\.", name):
            values = torch.from_numpy(neighbours(values.numpy(), heads if ".q_proj." in name else kv_heads))
        if values.dtype == torch.uint8:
            writer.add_tensor(new_name, values.contiguous().numpy(), raw_dtype=gguf.GGMLQuantizationType.MXFP4)
            continue
        # As converters do: vectors, norms and routers in 32 bits, matrices in 16.
        wide = values.dim() == 1 or new_name.endswith(WIDE)
        if values.dtype == torch.bfloat16 and not wide:
            data = values.contiguous().view(torch.int16).numpy().view(np.uint8)
            writer.add_tensor(new_name, data, raw_dtype=gguf.GGMLQuantizationType.BF16)
            continue
        values = values.to(torch.float32)
        if kind == "gemma3_text" and name.endswith("norm.weight"):
            values = values + 1
        data = (values if wide else values.to(torch.float16)).contiguous().numpy()
        if not wide and not np.array_equal(data.astype(np.float32), values.numpy()) and ".nextn." not in new_name:
            raise SystemExit(f"{directory.name}: {name} is not the same in 16 bits")
        writer.add_tensor(new_name, data)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
