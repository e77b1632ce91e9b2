#!/usr/bin/env python3
"""Writes tiny random models of further families, most of them mixtures of experts, with what `transformers` computes.

Each case is a directory as those of `make_fixtures.py`, whose weights have the names and shapes that published
checkpoints of the family have. Weights are chosen so that nothing can be left out unnoticed: besides what
`make_fixtures.py` takes care of, no choice of experts is close, every expert of every layer is used, and every tensor
that the model reads changes its logits.
"""

import argparse
import copy
import itertools
import json
import math
import shutil
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForCausalLM

from make_fixtures import DEFAULT_OUT, DISTINCT_MIN, GREEDY_TOKENS, MARGIN_MIN, VOCAB, prompt_of, write_json
from reference import FP4, dequantized_fp8, greedy, open_model, prompt_logits

# Between the score of the last expert that is chosen and that of the first that is not; routers compare scores.
ROUTER_MARGIN_MIN = 2e-4
# How often every expert of every layer has to be chosen, over the prompt and the greedy tokens.
USES_MIN = 3
# How far logits computed in bfloat16 may be from those in float32, relative to the largest, in cases that say so: the
# norm of a delta rule's result enlarges small numbers with their errors.
BF16_ERROR_MAX = 0.03
# How much logits have to change, relative to the largest, when one tensor is not what it should be.
INFLUENCE_MIN = 1e-3
# How far logits computed in float32 may be from those in float64, relative to the largest, in cases that say so: many
# layers that norm what they add enlarge errors.
F32_ERROR_MAX = 2.5e-6


# Ends of the names of matrices whose results are added to the hidden states.
OUTPUTS = ("out_proj.weight", "o_proj.weight", "down_proj.weight")


class TooClose(Exception):
    pass


def family(model_type, architecture, layers, rope=None, theta=10000.0, modern=False, **fields):
    """A `config.json` in one of the two spellings in use, as `make_fixtures.config`."""
    out = {
        "architectures": [architecture],
        "model_type": model_type,
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_act": "silu",
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    if modern:
        out |= {"dtype": "float32", "rope_parameters": {"rope_type": "default"} | (rope or {}) | {"rope_theta": theta}}
    else:
        out |= {"torch_dtype": "float32", "rope_scaling": rope, "rope_theta": theta}
    out |= fields
    # A field given as `...` is one that real files leave out, so that the default counts.
    return {k: v for k, v in out.items() if v is not ...}


def mixtures():
    """(name, what it is about, config, options)."""
    qwen3 = {"head_dim": 8, "attention_bias": False, "moe_intermediate_size": 16, "use_sliding_window": False}
    yield (
        "qwen3_moe", "softmax of all, the chosen sum to one",
        family("qwen3_moe", "Qwen3MoeForCausalLM", 2, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
               decoder_sparse_step=1, mlp_only_layers=[], rms_norm_eps=1e-6, tie_word_embeddings=True, **qwen3),
        {"matters": {"norm_topk_prob": False}},
    )
    yield (
        "qwen3_moe_dense_layer", "mlp_only_layers, three of four experts",
        family("qwen3_moe", "Qwen3MoeForCausalLM", 3, num_experts=4, num_experts_per_tok=3, norm_topk_prob=True,
               decoder_sparse_step=1, mlp_only_layers=[1], intermediate_size=40, **qwen3),
        {"matters": {"norm_topk_prob": False}},
    )
    yield (
        "qwen3_moe_fused", "experts of a layer in one tensor, every second layer dense",
        family("qwen3_moe", "Qwen3MoeForCausalLM", 3, modern=True, num_experts=6, num_experts_per_tok=2,
               norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=None, intermediate_size=40, **qwen3),
        {"publish": as_it_is, "matters": {"norm_topk_prob": False}},
    )
    yield (
        "qwen3_moe_unnormalized", "norm_topk_prob left out, so false; tied",
        family("qwen3_moe", "Qwen3MoeForCausalLM", 2, num_experts=5, num_experts_per_tok=2, norm_topk_prob=...,
               decoder_sparse_step=1, mlp_only_layers=[], tie_word_embeddings=True, **qwen3),
        {"matters": {"norm_topk_prob": True}},
    )
    yield (
        "qwen2_moe", "a shared expert behind a gate, biases on q, k, v",
        family("qwen2_moe", "Qwen2MoeForCausalLM", 2, num_experts=5, num_experts_per_tok=2, norm_topk_prob=False,
               moe_intermediate_size=16, shared_expert_intermediate_size=24, decoder_sparse_step=1, rms_norm_eps=1e-6,
               use_sliding_window=False, sliding_window=8, max_window_layers=1),
        {"matters": {"norm_topk_prob": True}},
    )
    yield (
        "mixtral", "w1, w3, w2",
        family("mixtral", "MixtralForCausalLM", 2, num_local_experts=6, num_experts_per_tok=2, intermediate_size=16,
               sliding_window=None, output_router_logits=False), {"publish": mixtral},
    )
    yield (
        "olmoe", "norms over the whole width of q and k, as many key heads, the chosen do not sum to one",
        family("olmoe", "OlmoeForCausalLM", 2, num_experts=5, num_experts_per_tok=3, intermediate_size=16,
               num_key_value_heads=4, norm_topk_prob=False, clip_qkv=None, attention_bias=False, rms_norm_eps=...),
        {"matters": {"norm_topk_prob": True}},
    )
    yield (
        "granitemoe", "softmax of the chosen, Granite's multipliers",
        family("granitemoe", "GraniteMoeForCausalLM", 2, num_local_experts=6, num_experts_per_tok=3,
               intermediate_size=16, attention_multiplier=0.2, embedding_multiplier=2.0, residual_multiplier=0.5,
               logits_scaling=0.5, attention_bias=False), {"publish": granitemoe},
    )
    glm4 = {
        "moe_intermediate_size": 16, "n_shared_experts": 1, "first_k_dense_replace": 1, "partial_rotary_factor": 0.5,
        "attention_bias": True, "norm_topk_prob": True, "head_dim": 8,
    }
    yield (
        "glm4_moe", "sigmoid and a bias for the choice, a shared expert, a dense layer first",
        family("glm4_moe", "Glm4MoeForCausalLM", 2, n_routed_experts=6, num_experts_per_tok=3, n_group=1, topk_group=1,
               routed_scaling_factor=1.0, use_qk_norm=False, num_nextn_predict_layers=0, **glm4),
        {"matters": {"norm_topk_prob": False, "partial_rotary_factor": 1.0}},
    )
    yield (
        "glm4_moe_groups", "one of two groups, a scale, norms on q and k",
        family("glm4_moe", "Glm4MoeForCausalLM", 2, n_routed_experts=8, num_experts_per_tok=2, n_group=2, topk_group=1,
               routed_scaling_factor=2.5, use_qk_norm=True, num_nextn_predict_layers=0, **glm4),
        {"matters": {"n_group": 1, "routed_scaling_factor": 1.0, "norm_topk_prob": False}},
    )
    yield (
        "glm4_moe_mtp", "a layer after the last that predicts the token after the next",
        family("glm4_moe", "Glm4MoeForCausalLM", 2, n_routed_experts=5, num_experts_per_tok=2, n_group=1, topk_group=1,
               routed_scaling_factor=2.5, use_qk_norm=True, num_nextn_predict_layers=1, **glm4),
        {"extra": glm4_mtp},
    )
    yield (
        "minimax_m2", "sigmoid and a bias for the choice, norms over the whole width, half of a head rotated",
        family("minimax_m2", "MiniMaxM2ForCausalLM", 2, num_local_experts=5, num_experts_per_tok=2,
               intermediate_size=16, head_dim=16, rotary_dim=8, scoring_func="sigmoid", use_routing_bias=True,
               use_qk_norm=True, qk_norm_type="per_layer", shared_intermediate_size=0, use_mtp=False,
               rms_norm_eps=1e-6), {"publish": mixtral, "matters": {"rotary_dim": 16}},
    )
    yield (
        "ernie4_5_moe", "softmax and a bias for the choice, two shared experts in one, neighbours are rotated",
        family("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", 2, moe_num_experts=6, moe_k=3, moe_num_shared_experts=2,
               intermediate_size=64, moe_intermediate_size=16, moe_layer_start_index=1, moe_layer_end_index=1,
               moe_layer_interval=1, use_bias=False, tie_word_embeddings=True, theta=500.0), {"publish": ernie},
    )
    yield (
        "hunyuan_v1_moe", "q and k rotated before their norms, a shared expert, alpha stretches the base",
        family("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", 2, num_experts=5, moe_topk=[2, 2],
               moe_intermediate_size=[16, 16], num_shared_expert=[1, 1], intermediate_size=16, head_dim=8,
               attention_head_dim=8, use_qk_norm=True, use_mixed_mlp_moe=True, use_cla=False, attention_bias=False,
               mlp_bias=False, norm_topk_prob=True, tie_word_embeddings=True,
               rope={"type": "dynamic", "alpha": 50.0, "factor": 1.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                     "mscale_all_dim": 0.0}), {"matters": {"rope_scaling": None}},
    )
    yarn = {
        "rope_type": "yarn", "factor": 8.0, "beta_fast": 4.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 32,
    }
    gpt_oss = {
        "num_experts_per_tok": 2, "intermediate_size": 32, "head_dim": 8, "sliding_window": 4, "attention_bias": True,
        "swiglu_limit": 7.0, "rope": yarn, "theta": 150.0, "experts_per_token": 2, "initial_context_length": 32,
    }
    others = {"swiglu_limit": 1000.0, "rope_scaling": yarn | {"truncate": True}, "sliding_window": 5}
    types = ["sliding_attention", "full_attention"]
    yield (
        "gpt_oss", "sinks, biases, clamped activation; experts transposed, gate and up interleaved",
        family("gpt_oss", "GptOssForCausalLM", 2, num_local_experts=4, layer_types=types, **gpt_oss),
        {"publish": as_it_is, "matters": others},
    )
    yield (
        "gpt_oss_mxfp4", "the same kind with experts in MXFP4",
        family("gpt_oss", "GptOssForCausalLM", 2, num_local_experts=8, layer_types=types,
               quantization_config={
                   "modules_to_not_convert": [
                       "model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head",
                   ],
                   "quant_method": "mxfp4",
               }, **(gpt_oss | {"num_experts_per_tok": 3, "experts_per_token": 3})),
        {"publish": gpt_oss_mxfp4, "prepare": mxfp4_experts, "matters": others},
    )


def dense():
    """As `mixtures`."""
    small = {"intermediate_size": 24}
    sliding, full = "sliding_attention", "full_attention"
    yield (
        "smollm3", "every fourth layer is not rotated",
        family("smollm3", "SmolLM3ForCausalLM", 4, no_rope_layers=[1, 1, 1, 0], no_rope_layer_interval=4,
               layer_types=[full] * 4, use_sliding_window=False, sliding_window=None, attention_bias=False,
               mlp_bias=False, tie_word_embeddings=True, rms_norm_eps=1e-6, pad_token_id=1, **small),
        {"matters": {"no_rope_layers": [1, 1, 1, 1]}},
    )
    phi3 = small | {
        "num_attention_heads": 2, "num_key_value_heads": 1, "partial_rotary_factor": 0.75, "attention_bias": False,
        "sliding_window": 262144, "tie_word_embeddings": True, "pad_token_id": 1,
    }
    longrope = {
        "long_factor": [1.0, 1.2, 2.5, 4.0, 7.5, 11.0], "short_factor": [1.0, 1.05, 1.1, 1.4, 1.9, 2.6],
        "type": "longrope",
    }
    yield (
        "phi3", "fused matrices, three quarters of a head rotated, longrope below the original length",
        family("phi3", "Phi3ForCausalLM", 2, rope=longrope, original_max_position_embeddings=256,
               max_position_embeddings=1024, **phi3),
        {"publish": as_it_is, "matters": {"rope_scaling": longrope | {"short_factor": longrope["long_factor"]}}},
    )
    yield (
        "phi3_long", "the whole prompt and all after it beyond the original length",
        family("phi3", "Phi3ForCausalLM", 2, rope=longrope, original_max_position_embeddings=24, **phi3),
        {"publish": as_it_is, "matters": {"rope_scaling": longrope | {"long_factor": longrope["short_factor"]}}},
    )
    yield (
        "mistral_small", "an explicit head_dim, no window",
        family("mistral", "MistralForCausalLM", 2, head_dim=12, sliding_window=None, vocab_size=72, theta=1000.0,
               **small), {},
    )
    ministral = {
        "beta_fast": 4.0, "beta_slow": 1.0, "factor": 8.0, "llama_4_scaling_beta": 0.3, "mscale": 1.0,
        "mscale_all_dim": 1.0, "original_max_position_embeddings": 16, "rope_type": "yarn", "type": "yarn",
    }
    yield (
        "ministral3", "yarn, and queries that grow with their position",
        family("ministral3", "Ministral3ForCausalLM", 2, modern=True, rope=ministral, theta=1000.0, head_dim=12,
               sliding_window=None, **small),
        {"matters": {"rope_parameters": ministral | {"rope_theta": 1000.0, "llama_4_scaling_beta": 0.0}}},
    )
    yield (
        "olmo2", "norms after attention and MLP, and over the whole width of q and k",
        family("olmo2", "Olmo2ForCausalLM", 2, attention_bias=False, rms_norm_eps=1e-6, **small), {},
    )
    yarn = {
        "attention_factor": 1.2079441541679836, "beta_fast": 4.0, "beta_slow": 1.0, "factor": 8.0,
        "original_max_position_embeddings": 32, "rope_type": "yarn",
    }
    yield (
        "olmo3", "OLMo 2 with layers that slide, yarn on the others",
        # Another base would be that of the full layers only: `transformers` has the others fall back to this one.
        family("olmo3", "Olmo3ForCausalLM", 3, rope=yarn, theta=500000.0, attention_bias=False, rms_norm_eps=1e-6,
               num_attention_heads=2, num_key_value_heads=1, sliding_window=8, layer_types=[sliding, sliding, full],
               **small),
        {"matters": {"rope_scaling": None, "sliding_window": 9}},
    )
    llama3 = {
        "factor": 4.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 32,
        "rope_type": "llama3",
    }
    yield (
        "exaone4", "norms after attention and MLP, and of every head; layers that do not slide are not rotated",
        family("exaone4", "Exaone4ForCausalLM", 3, rope=llama3, theta=500.0, head_dim=8, sliding_window=8,
               sliding_window_pattern="LLG", layer_types=[sliding, sliding, full], **small),
        {"matters": {"rope_scaling": None, "sliding_window": 9}},
    )
    yield (
        "seed_oss", "biases on q, k, v, an explicit head_dim",
        family("seed_oss", "SeedOssForCausalLM", 2, head_dim=6, attention_bias=True, attention_out_bias=False,
               mlp_bias=False, rms_norm_eps=1e-6, attention_dropout=0.1, residual_dropout=0.1, **small), {},
    )
    yarn = {"factor": 8.0, "original_max_position_embeddings": 32, "rope_type": "yarn"}
    yield (
        "arcee", "no gate, squared relu, yarn",
        family("arcee", "ArceeForCausalLM", 2, rope=yarn, attention_bias=False, mlp_bias=False, hidden_act="relu2",
               **small),
        {"matters": {"hidden_act": "relu", "rope_scaling": None}},
    )


def gemma3():
    """As `mixtures`; with the numbers of layers over a whole number of sixths that the published sizes have."""
    small = {
        "architecture": "Gemma3ForCausalLM", "hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 2,
        "num_key_value_heads": 1, "head_dim": 8, "hidden_act": ..., "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "sliding_window": 8,
        "query_pre_attn_scalar": 8,
    }
    classic = {"theta": 100.0, "rope_local_base_freq": 10.0, "sliding_window_pattern": 6}
    matters = {"sliding_window": 9, "rope_theta": 90.0, "rope_local_base_freq": 11.0, "hidden_activation": "silu"}
    yield (
        "gemma3", "norms before and after each branch, windows of a base of their own; as 1B, two layers over",
        family("gemma3_text", layers=8, **small, **classic),
        {"matters": matters | {"sliding_window_pattern": 4, "query_pre_attn_scalar": 12}},
    )
    full, sliding = {"rope_theta": 100.0, "rope_type": "linear", "factor": 8.0}, {"rope_theta": 10.0}
    layers = [f"{'full' if layer % 6 == 5 else 'sliding'}_attention" for layer in range(10)]
    yield (
        "gemma3_modern", "rope parameters by type of layer, the full ones stretched; as 4B, four layers over",
        family("gemma3_text", layers=10, **small, rope_scaling=..., rope_theta=..., layer_types=layers,
               rope_parameters={"full_attention": full, "sliding_attention": sliding | {"rope_type": "default"}}),
        {"matters": {"rope_parameters": {"full_attention": full | {"factor": 4.0}, "sliding_attention": sliding}}},
    )
    yield (
        "gemma3_untold", "what may be left out; as 270M and 12B, no layer over",
        family("gemma3_text", layers=6, **small, rope_theta=..., rope_scaling={"rope_type": "linear", "factor": 8.0}),
        {"matters": {"rope_local_base_freq": 1000.0}},
    )
    tiny = {"intermediate_size": 8, "query_pre_attn_scalar": 16}
    yield (
        "gemma3_62", "scores scaled by another width than a head's; as 27B, 62 layers",
        family("gemma3_text", layers=62, **(small | tiny), **classic),
        {"matters": {"query_pre_attn_scalar": 8}},
    )


def gemma4():
    """As `mixtures`; with the relations of heads, windows and shared layers that the published sizes have."""
    small = {
        "architecture": "Gemma4ForCausalLM", "hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4,
        "head_dim": 8, "global_head_dim": 16, "hidden_act": ..., "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False, "rms_norm_eps": 1e-6, "tie_word_embeddings": True, "sliding_window": 8,
        "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "final_logit_softcapping": 10.0,
        "rope_scaling": ..., "rope_theta": ..., "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
            "full_attention": {"rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": 0.25},
        },
    }
    other = {"rope_parameters": small["rope_parameters"] | {"full_attention": {
        "rope_type": "proportional", "rope_theta": 100.0, "partial_rotary_factor": 0.5}}}
    matters = {"sliding_window": 9, "final_logit_softcapping": 5.0, "hidden_activation": "silu"} | other
    types = lambda layers, period: [
        f"{'full' if layer % period == 0 else 'sliding'}_attention" for layer in range(1, layers + 1)]
    yield (
        "gemma4", "as E2B: rows of a table, keys and values of earlier layers, double networks where these are shared",
        family("gemma4_text", layers=10, **small, num_key_value_heads=1, num_kv_shared_layers=4,
               use_double_wide_mlp=True, layer_types=types(10, 5)),
        {"exact": True, "matters": matters},
    )
    yield (
        "gemma4_plain", "as E4B: two heads of keys and values; the types of layers are left out",
        family("gemma4_text", layers=12, **small, num_key_value_heads=2, num_kv_shared_layers=5),
        {"exact": True, "matters": matters},
    )
    keys = small | {"attention_k_eq_v": True, "hidden_size_per_layer_input": 0, "num_key_value_heads": 2}
    yield (
        "gemma4_keys", "as 31B: values made from keys in layers that see all, which have fewer heads of them",
        family("gemma4_text", layers=6, **keys, num_global_key_value_heads=1),
        {"matters": matters},
    )
    yield (
        "gemma4_moe", "as 26B-A4B: a mixture beside the dense network, a router with a norm of its own",
        family("gemma4_text", layers=3, **keys, num_global_key_value_heads=1, layer_types=types(3, 3),
               enable_moe_block=True, num_experts=5, top_k_experts=2, moe_intermediate_size=16),
        {"publish": as_it_is, "matters": matters},
    )
    unified = {key: value for key, value in keys.items() if "per_layer_input" not in key}
    yield (
        "gemma4_unified", "as 12B: no table; types of layers and rotations are left out",
        family("gemma4_unified_text", layers=6, **(unified | {
            "architecture": "Gemma4UnifiedForCausalLM", "rope_parameters": ...}), num_global_key_value_heads=1),
        {"exact": True, "matters": {"sliding_window": 9, "final_logit_softcapping": 5.0}},
    )


def qwen3_5():
    """As `mixtures`; with the relations of heads that the published sizes have."""
    small = {
        "architecture": "Qwen3_5ForCausalLM", "layers": 8, "intermediate_size": 24, "rms_norm_eps": 1e-6,
        "attention_bias": False, "attn_output_gate": True, "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32",
        "bos_token_id": ..., "theta": 100.0,
    }
    rope = {"partial_rotary_factor": 0.25, "mrope_section": [1, 1, 0], "mrope_interleaved": True}
    other = rope | {"rope_type": "default", "rope_theta": 100.0, "partial_rotary_factor": 0.5}
    types = [f"{'full' if layer % 4 == 3 else 'linear'}_attention" for layer in range(8)]
    yield (
        "qwen3_5", "as 4B and 9B: two value heads a key head; layers that guess at further tokens",
        family("qwen3_5_text", **small, modern=True, rope=rope, head_dim=16, num_key_value_heads=1,
               layer_types=types, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
               linear_value_head_dim=16, mtp_num_hidden_layers=1, mtp_use_dedicated_embeddings=False),
        {"steady": True, "prompt_len": 60, "extra": qwen3_5_mtp, "matters": {"rope_parameters": other}},
    )
    yield (
        "qwen3_5_tied", "as 0.8B and 2B: as many value heads as key heads, tied; every fourth layer by the interval",
        family("qwen3_5_text", **small, modern=True, rope=rope, head_dim=8, full_attention_interval=4,
               linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=8, linear_value_head_dim=8,
               tie_word_embeddings=True),
        {"steady": True, "matters": {"rope_parameters": other}},
    )
    yield (
        "qwen3_5_bf16", "as 27B: three value heads a key head, six query heads a key head; bfloat16",
        family("qwen3_5_text", **small, modern=True, rope=rope, head_dim=8, num_attention_heads=6,
               num_key_value_heads=1, hidden_size=48, output_gate_type="swish", layer_types=types,
               linear_num_key_heads=2, linear_num_value_heads=6, linear_key_head_dim=8, linear_value_head_dim=8,
               dtype="bfloat16"),
        {"steady": True, "prepare": bf16_numbers, "publish": qwen3_5_in_bf16, "matters": {"rope_parameters": other}},
    )

    mixed = small | {
        "architecture": "Qwen3_5MoeForCausalLM", "layers": 4, "intermediate_size": ..., "num_experts": 5, "num_experts_per_tok": 2,
        "moe_intermediate_size": 16, "shared_expert_intermediate_size": 24,
    }
    yield (
        "qwen3_5_moe", "as 35B-A3B: two value heads a key head; experts of a layer in one tensor",
        family("qwen3_5_moe_text", **mixed, modern=True, rope=rope, head_dim=16, num_key_value_heads=1,
               layer_types=types[:4], linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16,
               linear_value_head_dim=16, mtp_num_hidden_layers=1, mlp_only_layers=[]),
        {"prompt_len": 60, "publish": as_it_is, "extra": qwen3_5_mtp,
         "matters": {"rope_parameters": other}},
    )
    yield (
        "qwen3_5_moe_apart", "each expert with tensors of its own; every fourth layer by the interval",
        family("qwen3_5_moe_text", **mixed, modern=True, rope=rope, head_dim=8, full_attention_interval=4,
               linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=8, linear_value_head_dim=8),
        {"matters": {"rope_parameters": other}},
    )

    following = mixed | {
        "architecture": "Qwen3NextForCausalLM", "intermediate_size": 24, "attn_output_gate": ..., "mamba_ssm_dtype": ...,
    }
    next_rope = {"partial_rotary_factor": 0.25}
    yield (
        "qwen3_next", "as 80B-A3B: inputs of two value heads a key head are grouped; a tensor of each expert",
        family("qwen3_next", **following, modern=True, rope=next_rope, head_dim=16, num_key_value_heads=1,
               layer_types=types[:4], linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=8,
               linear_value_head_dim=8, norm_topk_prob=True, decoder_sparse_step=1, mlp_only_layers=[]),
        {"prompt_len": 60, "matters": {"norm_topk_prob": False}},
    )
    yield (
        "qwen3_next_dense_layer", "every fourth layer by the interval, a layer without experts, as many value heads as key heads",
        family("qwen3_next", **following, modern=True, rope=next_rope, head_dim=8, full_attention_interval=4,
               linear_num_key_heads=3, linear_num_value_heads=3, linear_key_head_dim=8, linear_value_head_dim=8,
               norm_topk_prob=..., decoder_sparse_step=1, mlp_only_layers=[1]),
        {"matters": {"norm_topk_prob": False}},
    )


def lfm2():
    """As `mixtures`; some layers have a gated convolution in place of attention."""
    left_out = {"rms_norm_eps": ..., "norm_eps": 1e-5, "hidden_act": ..., "tie_word_embeddings": ..., "theta": 100.0}
    small = left_out | {"architecture": "Lfm2ForCausalLM", "intermediate_size": ..., "conv_bias": False}
    conv, full = "conv", "full_attention"
    yield (
        "lfm2", "as 1.2B: three taps, the width of a network by the rule, tied",
        family("lfm2", layers=5, **small, layer_types=[conv, conv, full, conv, conv], conv_L_cache=3, block_dim=32,
               block_ff_dim=34, block_auto_adjust_ff_dim=True, block_ffn_dim_multiplier=1.0, block_multiple_of=8,
               conv_dim=32, tie_embedding=True),
        {"steady": True, "prompt_len": 60, "matters": {"rope_theta": 50.0, "norm_eps": 0.01}},
    )
    yield (
        "lfm2_bias", "biases around the convolution, five taps; a list of the layers that attend, a head of its own",
        family("lfm2", layers=4, **(small | {"conv_bias": True}), modern=True, full_attn_idxs=[1, 3], conv_L_cache=5,
               block_ff_dim=24, block_auto_adjust_ff_dim=False, block_ffn_dim_multiplier=1.0, block_multiple_of=256,
               tie_embedding=False),
        {"steady": True, "matters": {"norm_eps": 0.01}},
    )
    yield (
        "lfm2_bf16", "as 700M: three query heads a key head; bfloat16",
        family("lfm2", layers=4, **(small | {"intermediate_size": 24, "tie_word_embeddings": True}), modern=True,
               layer_types=[conv, full, conv, conv], conv_L_cache=3, block_auto_adjust_ff_dim=False,
               block_ffn_dim_multiplier=1.0, block_multiple_of=256, num_attention_heads=6, num_key_value_heads=2,
               hidden_size=48, dtype="bfloat16"),
        {"steady": True, "prepare": bf16_numbers, "publish": in_bf16, "matters": {"norm_eps": 0.01}},
    )

    mixed = left_out | {
        "architecture": "Lfm2MoeForCausalLM", "layers": 4, "intermediate_size": 24, "moe_intermediate_size": 16,
        "layer_types": [conv, full, conv, conv], "conv_bias": False, "conv_L_cache": 3,
    }
    yield (
        "lfm2_moe", "sigmoid and a bias for the choice, a dense layer first",
        family("lfm2_moe", **mixed, num_dense_layers=1, num_experts=5, num_experts_per_tok=2, use_expert_bias=True,
               norm_topk_prob=True, routed_scaling_factor=1.0, tie_embedding=True),
        {"publish": lfm2_moe, "matters": {"norm_topk_prob": False, "rope_theta": 50.0}},
    )
    yield (
        "lfm2_moe_fused", "no bias, no sum of one, a scale; experts of a layer in one tensor, experts in each layer",
        family("lfm2_moe", **mixed, modern=True, num_dense_layers=0, num_experts=4, num_experts_per_tok=2,
               use_expert_bias=False, norm_topk_prob=False, routed_scaling_factor=1.5),
        {"publish": as_it_is, "matters": {"norm_topk_prob": True, "routed_scaling_factor": 1.0}},
    )


def mamba():
    """As `mixtures`; state spaces beside attention, with the names that published sizes have."""
    granite = {
        "architecture": "GraniteMoeHybridForCausalLM", "attention_bias": False, "attention_multiplier": 0.3,
        "embedding_multiplier": 0.5, "residual_multiplier": 0.6, "logits_scaling": 0.5, "tie_word_embeddings": True,
        "num_experts_per_tok": 2, "output_router_logits": False,
    }
    state = {
        "mamba_chunk_size": 8, "mamba_conv_bias": True, "mamba_d_conv": 4, "mamba_d_head": 16, "mamba_d_state": 12,
        "mamba_expand": 2, "mamba_n_groups": 1, "mamba_n_heads": 4, "mamba_proj_bias": False,
    }
    factors = {"attention_multiplier": 1.0, "embedding_multiplier": 1.0, "residual_multiplier": 1.0}
    yield (
        "granite_4_h", "as 4.0-H-Micro: state spaces, attention without positions, dense networks",
        family("granitemoehybrid", layers=5, **granite, **state, num_local_experts=0, intermediate_size=40,
               shared_intermediate_size=40, position_embedding_type="nope",
               layer_types=["mamba", "mamba", "attention", "mamba", "mamba"]),
        {"publish": granitemoe, "prompt_len": 60,
         "matters": factors | {"position_embedding_type": "rope"}},
    )
    yield (
        "granite_4_h_moe", "as 4.0-H-Tiny: experts and a shared one; B and C of two groups",
        family("granitemoehybrid", layers=3, **granite, **(state | {"mamba_n_groups": 2}), num_local_experts=5,
               intermediate_size=16, shared_intermediate_size=24, position_embedding_type="nope",
               layer_types=["mamba", "attention", "mamba"]),
        {"publish": granitemoe, "matters": factors | {"position_embedding_type": "rope"}},
    )
    yield (
        "granite_4", "as 4.0-Micro: no state spaces, positions rotated",
        family("granitemoehybrid", layers=2, **granite, **state, num_local_experts=0, intermediate_size=40,
               shared_intermediate_size=40, position_embedding_type="rope", layer_types=["attention", "attention"]),
        {"publish": granitemoe, "matters": factors | {"position_embedding_type": "nope"}},
    )

    nemotron = {
        "architecture": "NemotronHForCausalLM", "attention_bias": False, "head_dim": 12, "hidden_act": ...,
        "mlp_hidden_act": "relu2", "mlp_bias": False, "use_bias": False, "layer_norm_epsilon": 1e-5,
        "rms_norm_eps": ..., "mamba_hidden_act": "silu", "mamba_num_heads": 6, "mamba_head_dim": 8, "n_groups": 2,
        "ssm_state_size": 12, "conv_kernel": 4, "use_conv_bias": True, "expand": 2, "chunk_size": 8,
        "mamba_proj_bias": False, "rope_scaling": ..., "rope_theta": ..., "sliding_window": None,
    }
    yield (
        "nemotron_h", "as H-8B: one branch a layer by a pattern of letters, networks without a gate",
        family("nemotron_h", layers=6, **nemotron, hybrid_override_pattern="M-M*-M", intermediate_size=48),
        {"publish": nemotron_h, "prompt_len": 60, "matters": {"mlp_hidden_act": "relu"}},
    )
    yield (
        "nemotron_h_moe", "as 3-Nano-30B-A3B: experts without gates, chosen by sigmoids and a bias, and a shared one",
        family("nemotron_h", layers=5, **nemotron, hybrid_override_pattern="MEM*E", n_routed_experts=6,
               num_experts_per_tok=2, moe_intermediate_size=16, moe_shared_expert_intermediate_size=24,
               n_shared_experts=1, n_group=1, topk_group=1, norm_topk_prob=True, routed_scaling_factor=1.5),
        {"publish": nemotron_h, "matters": {"norm_topk_prob": False, "routed_scaling_factor": 1.0}},
    )


def fp8():
    """As `mixtures`: the matrices of these are in FP8, with a scale for each block of 128 rows and columns."""
    layers, ignored = 2, ["lm_head", "model.norm", "model.embed_tokens"]
    kept = ["input_layernorm", "post_attention_layernorm", "mlp.gate", "self_attn.q_norm", "self_attn.k_norm"]
    for layer in range(layers):
        ignored += [f"model.layers.{layer}.{name}" for name in kept]
    yield (
        "qwen3_moe_fp8", "a dense layer and one of experts, some matrices of one and a part of a block",
        family("qwen3_moe", "Qwen3MoeForCausalLM", layers, num_experts=8, num_experts_per_tok=2, norm_topk_prob=True,
               decoder_sparse_step=1, mlp_only_layers=[0], num_attention_heads=6, head_dim=24, intermediate_size=160,
               moe_intermediate_size=16, attention_bias=False, tie_word_embeddings=True,
               quantization_config={
                   "activation_scheme": "dynamic", "fmt": "e4m3", "modules_to_not_convert": ignored,
                   "quant_method": "fp8", "weight_block_size": [128, 128],
               }),
        {"publish": published_fp8, "prepare": fp8_matrices},
    )


# How the tensors of `transformers` are called and shaped in published checkpoints.


def as_it_is(name, tensor):
    yield name, tensor


def an_expert_a_tensor(name, tensor, experts="mlp.experts", gate="gate_proj", up="up_proj", down="down_proj"):
    stem, _, last = name.rpartition(".")
    if last == "gate_up_proj" and tensor.dim() == 3:
        for index, (gates, ups) in enumerate(zip(*tensor.chunk(2, dim=1))):
            yield f"{stem}.{index}.{gate}.weight", gates
            yield f"{stem}.{index}.{up}.weight", ups
    elif last == "down_proj" and tensor.dim() == 3:
        for index, downs in enumerate(tensor):
            yield f"{stem}.{index}.{down}.weight", downs
    else:
        yield name, tensor


def mixtral(name, tensor):
    yield from an_expert_a_tensor(name.replace(".mlp.", ".block_sparse_moe."), tensor, gate="w1", up="w3", down="w2")


def granitemoe(name, tensor):
    name = name.replace("experts.gate_up_proj", "input_linear.weight")
    name = name.replace("experts.down_proj", "output_linear.weight")
    yield name.replace("router.weight", "router.layer.weight"), tensor


def nemotron_h(name, tensor):
    """The names before `transformers` had the family, an expert a tensor."""
    name = name.replace("model.", "backbone.", 1).replace(".embed_tokens.", ".embeddings.")
    if tensor.dim() == 3 and name.endswith(("experts.up_proj", "experts.down_proj")):
        stem, _, last = name.rpartition(".")
        for index, matrix in enumerate(tensor):
            yield f"{stem}.{index}.{last}.weight", matrix
    else:
        yield name, tensor


def ernie(name, tensor):
    yield from an_expert_a_tensor(name.replace(".gate.moe_statics.", ".moe_statics."), tensor)


def lfm2_moe(name, tensor):
    yield from an_expert_a_tensor(name, tensor, gate="w1", up="w3", down="w2")


def gpt_oss_mxfp4(name, tensor):
    if not name.endswith(("gate_up_proj", "down_proj")):
        yield name, tensor
        return
    blocks, scales = to_mxfp4(tensor.transpose(1, 2))
    yield f"{name}_blocks", blocks
    yield f"{name}_scales", scales


def mxfp4_experts(weights, seed):
    """Makes the experts' weights numbers that MXFP4 has: a random code each, a random scale for 32 of a row."""
    generator = torch.Generator().manual_seed(seed)
    out = {}
    for name, tensor in sorted(weights.items()):
        out[name] = tensor
        if name.endswith(("gate_up_proj", "down_proj")):
            experts, ins, outs = tensor.shape
            codes = torch.randint(0, 16, (experts, outs, ins // 32, 32), generator=generator)
            least = -4 if "gate" in name else -6
            scales = torch.randint(least, least + 3, (experts, outs, ins // 32, 1), generator=generator)
            values = torch.ldexp(FP4[codes], scales).reshape(experts, outs, ins)
            out[name] = values.transpose(1, 2).contiguous()
    return out


def to_mxfp4(rows):
    """Blocks and scales of numbers that MXFP4 has, the last dimension divided into blocks of 32."""
    blocks = rows.reshape(*rows.shape[:-1], -1, 32)
    # The largest number of a block is 6 or, if it must be, 4 times the scale, and the smallest but zero half of it.
    least = torch.where(blocks == 0, torch.inf, blocks.abs()).amin(-1, keepdim=True)
    for halves in (1, 2, 3, 4, 6, 8, 12):
        scale = torch.frexp(least * 2 / halves).exponent - 1
        units = torch.ldexp(blocks, -scale)
        codes = (units.unsqueeze(-1) == FP4).to(torch.uint8).argmax(-1)
        # Zeros of both signs are equal to each other.
        codes = torch.where((units == 0) & torch.signbit(units), 8, codes)
        exact = (torch.ldexp(FP4[codes], scale) == blocks).all(-1, keepdim=True)
        best = (codes, scale) if halves == 1 else (torch.where(done, best[0], codes), torch.where(done, best[1], scale))
        done = exact if halves == 1 else done | exact
    assert done.all()
    codes, scale = best
    packed = codes[..., 0::2] | codes[..., 1::2] << 4
    return packed.to(torch.uint8).contiguous(), (scale.squeeze(-1) + 127).to(torch.uint8).contiguous()


def is_fp8(name):
    return name.endswith("proj.weight") or name.endswith(("gate_up_proj", "down_proj"))


def fp8_codes_and_scales(matrix):
    """Codes, and scales [rows / 128, columns / 128] that make the largest number of a block the largest code."""
    rows, columns = (math.ceil(size / 128) for size in matrix.shape)
    scales = torch.empty(rows, columns)
    codes = torch.empty(matrix.shape, dtype=torch.float8_e4m3fn)
    for row, column in itertools.product(range(rows), range(columns)):
        part = (slice(row * 128, row * 128 + 128), slice(column * 128, column * 128 + 128))
        mantissa, exponent = torch.frexp(matrix[part].abs().max() / 448)
        # With 20 bits, its products with codes are exact.
        scales[row, column] = torch.ldexp(torch.round(mantissa * 2**20), exponent - 20)
        codes[part] = (matrix[part] / scales[row, column]).to(torch.float8_e4m3fn)
    return codes, scales


def fp8_matrices(weights, seed):
    """Makes matrices numbers that FP8 has."""
    out = {}
    for name, tensor in weights.items():
        if is_fp8(name):
            # The experts of a layer are matrices of their own, and so are gates and ups.
            matrices = tensor.unsqueeze(0) if tensor.dim() == 2 else tensor
            pieces = 2 if name.endswith("gate_up_proj") else 1
            parts = [dequantized_fp8(*fp8_codes_and_scales(p)) for matrix in matrices for p in matrix.chunk(pieces)]
            tensor = torch.cat(parts).reshape(tensor.shape)
        out[name] = tensor
    return out


def published_fp8(name, tensor):
    for name, tensor in an_expert_a_tensor(name, tensor):
        if is_fp8(name):
            codes, scales = fp8_codes_and_scales(tensor)
            assert torch.equal(dequantized_fp8(codes, scales), tensor)
            yield name, codes
            yield f"{name}_scale_inv", scales
        else:
            yield name, tensor


def glm4_mtp(config, published, seed):
    """The layer after the last, in the names of GLM-4.5. Nothing reads it, so its type may be another."""
    generator = torch.Generator().manual_seed(seed)
    layers, hidden, vocab = (config[k] for k in ("num_hidden_layers", "hidden_size", "vocab_size"))
    last, mtp = f"model.layers.{layers - 1}.", f"model.layers.{layers}."
    shapes = {name.replace(last, mtp): tensor.shape for name, tensor in published.items() if name.startswith(last)}
    shapes |= {
        f"{mtp}eh_proj.weight": (hidden, 2 * hidden), f"{mtp}enorm.weight": (hidden,), f"{mtp}hnorm.weight": (hidden,),
        f"{mtp}embed_tokens.weight": (vocab, hidden), f"{mtp}shared_head.head.weight": (vocab, hidden),
        f"{mtp}shared_head.norm.weight": (hidden,),
    }
    return {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in sorted(shapes.items())}


def bf16_numbers(weights, seed):
    """Makes weights numbers that bfloat16 has."""
    return {name: tensor.to(torch.bfloat16).to(torch.float32) for name, tensor in weights.items()}


def in_bf16(name, tensor):
    yield name, tensor.to(torch.bfloat16)


def qwen3_5_in_bf16(name, tensor):
    """The logarithms of the rates are in 32 bits beside matrices of 16."""
    yield name, tensor if name.endswith("A_log") else tensor.to(torch.bfloat16)


def qwen3_5_mtp(config, published, seed):
    """The layer that predicts the token after the next, beside the model. Nothing reads it."""
    generator = torch.Generator().manual_seed(seed)
    hidden, last = config["hidden_size"], f"model.layers.{config['num_hidden_layers'] - 1}."
    shapes = {name.replace(last, "mtp.layers.0."): t.shape for name, t in published.items() if name.startswith(last)}
    shapes |= {
        "mtp.fc.weight": (hidden, 2 * hidden), "mtp.norm.weight": (hidden,),
        "mtp.pre_fc_norm_embedding.weight": (hidden,), "mtp.pre_fc_norm_hidden.weight": (hidden,),
    }
    return {name: torch.randn(shape, generator=generator).to(torch.bfloat16) for name, shape in sorted(shapes.items())}


def neutral_norm(model, name):
    """The weight that a norm multiplies nothing by: 1, or 0 where 1 is added to it."""
    adds_one = type(model).__name__.startswith(("Gemma3", "Qwen3_5", "Qwen3Next")) and not name.endswith("linear_attn.norm.weight")
    return 0.0 if adds_one else 1.0


def random_weights(model, seed):
    """As in `make_fixtures.py`; routers' weights are larger, so that choices are clear."""
    generator = torch.Generator().manual_seed(seed)
    named = dict(model.named_parameters())
    # Biases for the choice are buffers in some models; what is in no checkpoint is not in the state either.
    named |= {name: buffer for name, buffer in model.named_buffers() if name in model.state_dict()}
    out = {}
    for name, tensor in sorted(named.items()):
        noise = torch.randn(tensor.shape, generator=generator)
        if "norm" in name:
            out[name] = neutral_norm(model, name) + 0.3 * noise
            if type(model).__name__.startswith("Gemma4") and ".post_" in name and not hasattr(model.model.layers[0], "router"):
                # With more than that, errors of a layer grow in those behind it.
                out[name] *= 0.4
        elif name.endswith(("e_score_correction_bias", "expert_bias")):
            out[name] = 0.2 * noise
        elif name.endswith("sinks"):
            out[name] = noise
        elif name.endswith("A_log"):
            # Heads that remember a few tokens, and heads that remember many.
            out[name] = -1.5 + 1.5 * noise
        elif name.endswith(("bias", "proj_bias")):
            out[name] = 0.3 * noise
        elif name.endswith(("layer_scalar", "router.scale", "per_expert_scale")):
            out[name] = 1.0 + 0.2 * noise
        elif name.endswith("router.proj.weight"):
            # What it multiplies is divided by the root of its width.
            out[name] = 2.5 * noise
        elif "embed_tokens_per_layer" in name:
            out[name] = 0.5 * noise
        elif "embed_tokens" in name:
            # What is multiplied before it is added up must not drown the layers.
            out[name] = noise * (0.15 if type(model).__name__.startswith("Gemma") else 1.0)
        elif name.endswith(
            ("mlp.gate.weight", "feed_forward.gate.weight", "mixer.gate.weight", "router.weight", "wg.weight")
        ):
            out[name] = noise * 2.5 / math.sqrt(tensor.shape[-1])
        else:
            size = 1.5 / math.sqrt(tensor.shape[-1])
            if type(model).__name__.startswith(("Qwen3_5", "Qwen3Next")) and name.endswith(OUTPUTS):
                # With more than that, errors of a layer grow in those behind it.
                size *= 0.3
            if "gpt_oss" in type(model).__module__ and tensor.dim() == 3:
                # These are multiplied from the left, and some of what the first gives has to be clamped.
                size = (3.5 if "gate" in name else 1.0) / math.sqrt(tensor.shape[-2])
            out[name] = noise * size
    # Numbers that GGUF files can hold in 16 bits.
    return {name: tensor.to(torch.float16).to(torch.float32) for name, tensor in out.items()}


def scores_of(router, arguments, logits):
    """What a router compares when it chooses, [tokens, experts]."""
    kind = type(router).__name__
    # The last gives scores instead of logits.
    if kind in ("GraniteMoeTopKRouter", "GraniteMoeHybridTopKRouter", "GptOssTopKRouter", "Gemma4TextRouter"):
        return logits
    if kind in ("Glm4MoeTopkRouter", "NemotronHTopkRouter"):
        scores = logits.sigmoid() + router.e_score_correction_bias
        groups = scores.view(len(scores), router.num_group, -1)
        sums = groups.topk(2, dim=-1).values.sum(-1)
        if router.topk_group < router.num_group:
            check_margin(sums, router.topk_group)
        chosen = torch.zeros_like(sums).scatter(1, sums.topk(router.topk_group).indices, 1).bool()
        return groups.masked_fill(~chosen.unsqueeze(-1), -torch.inf).flatten(1)
    if kind == "MiniMaxM2TopKRouter":
        return logits.sigmoid() + arguments[1]
    if kind == "Lfm2MoeTopKRouter":
        return logits.sigmoid() + (arguments[1] if router.use_expert_bias else 0.0)
    scores = logits.softmax(-1)
    return router.moe_statics(scores) if kind == "Ernie4_5_MoeTopKRouter" else scores


def check_margin(scores, count):
    sorted = scores.sort(descending=True).values
    margin = (sorted[:, count - 1] - sorted[:, count]).min().item()
    if margin <= ROUTER_MARGIN_MIN:
        raise TooClose
    return margin


class Routers:
    """Watches the choices of a model's routers, and raises `TooClose` at one that is close."""

    def __init__(self, model):
        self.uses, self.margin = {}, math.inf
        for name, module in model.named_modules():
            if type(module).__name__.lower().endswith(("topkrouter", "moev1gate", "textrouter")):
                module.register_forward_hook(self.watch)
                experts = getattr(module, "num_experts", None) or module.proj.out_features
                self.uses[module] = torch.zeros(experts, dtype=torch.long)

    def watch(self, router, arguments, out):
        logits, _, chosen = out
        scores = scores_of(router, arguments, logits)
        count = chosen.shape[-1]
        assert torch.equal(scores.topk(count).indices.sort().values, chosen.sort().values), "not what is compared"
        self.margin = min(self.margin, check_margin(scores, count))
        self.uses[router] += chosen.flatten().bincount(minlength=len(self.uses[router]))

    def least_used(self):
        return min((int(uses.min()) for uses in self.uses.values()), default=None)


def model_of(config):
    config = AutoConfig.for_model(**{k: v for k, v in config.items() if k not in ("quantization_config", "dtype")})
    return AutoModelForCausalLM.from_config(
        config, attn_implementation="eager", experts_implementation="eager", dtype=torch.float32
    ).eval()


def bf16_error(model, prompt):
    """The largest difference that computing in bfloat16 makes, relative to the largest logit."""
    right = prompt_logits(model, prompt)
    rough = prompt_logits(copy.deepcopy(model).to(torch.bfloat16), prompt)
    return ((rough - right).abs().max() / right.abs().max()).item()


def f32_error(model, prompt):
    """The largest difference that computing in float32 makes, relative to the largest logit."""
    wide = copy.deepcopy(model).to(torch.float64)(input_ids=torch.tensor([prompt])).logits[0]
    return ((prompt_logits(model, prompt) - wide).abs().max() / wide.abs().max()).item()


@torch.no_grad()
def search(config, prompt_len, prepare, steady, exact):
    """The first seed whose greedy tokens and experts are clear and various, its weights, and the tokens."""
    for seed in itertools.count():
        model = model_of(config)
        weights = random_weights(model, seed)
        if prepare:
            weights = prepare(weights, seed)
        # Tied heads are in the model, but not among its named parameters.
        model.load_state_dict(weights, strict=False)
        if steady and bf16_error(model, prompt_of(seed, prompt_len)) > BF16_ERROR_MAX:
            continue
        if exact and f32_error(model, prompt_of(seed, prompt_len)) > F32_ERROR_MAX:
            continue
        routers = Routers(model)
        try:
            tokens, margin = greedy(model, prompt_of(seed, prompt_len), GREEDY_TOKENS, MARGIN_MIN)
        except TooClose:
            continue
        various = len(set(tokens)) >= DISTINCT_MIN and (not routers.uses or routers.least_used() >= USES_MIN)
        if margin > MARGIN_MIN and various:
            return seed, weights, tokens


def check_influence(directory, config, prompt, matters):
    """Fails if a tensor could be left out, or a field that `matters` be another, and the logits would stay the same."""
    model = open_model(directory)
    right = prompt_logits(model, prompt)
    for field, value in matters.items():
        other = model_of(config | {field: value})
        other.load_state_dict(model.state_dict(), strict=False)
        change = (prompt_logits(other, prompt) - right).abs().max() / right.abs().max()
        if change < INFLUENCE_MIN:
            raise SystemExit(f"{directory.name}: {field} changes logits by no more than {change:.1e}")
    for name, tensor in sorted(model.state_dict().items()):
        kept = tensor.clone()
        tensor.fill_(neutral_norm(model, name) if "norm" in name else 0.0)
        change = (prompt_logits(model, prompt) - right).abs().max() / right.abs().max()
        tensor.copy_(kept)
        if change < INFLUENCE_MIN:
            raise SystemExit(f"{directory.name}: {name} changes logits by no more than {change:.1e}")


def make_case(directory, config, prompt_len=32, publish=an_expert_a_tensor, prepare=None, extra=None, steady=False,
              exact=False, matters={}):
    """Writes one case, and computes what is expected from the files as they then lie there."""
    seed, weights, tokens_searched = search(config, prompt_len, prepare, steady, exact)
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    write_json(directory / "config.json", config)
    published = {}
    for name, tensor in weights.items():
        published |= {name: tensor.contiguous() for name, tensor in publish(name, tensor)}
    if extra:
        published |= extra(config, published, seed)
    save_file(published, directory / "model.safetensors", metadata={"format": "pt"})

    prompt = prompt_of(seed, prompt_len)
    model = open_model(directory)
    routers = Routers(model)
    tokens, margin = greedy(model, prompt, GREEDY_TOKENS)
    if tokens != tokens_searched:
        raise SystemExit(f"{directory.name}: the files do not say what the model in memory said")
    expected = {"logits_f32": prompt_logits(open_model(directory), prompt)}
    if config.get("dtype") == "bfloat16":
        expected["logits_f32_of_bf16"] = expected["logits_f32"].clone()
        expected["logits_bf16"] = prompt_logits(open_model(directory, torch.bfloat16), prompt)
    save_file(expected, directory / "expected.safetensors")
    check_influence(directory, config, prompt, matters)
    made_by = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0], "seed": seed}
    router = f'  "router_margin_min": {routers.margin:.6f},\n' if routers.uses else ""
    (directory / "expected.json").write_text(
        f'{{\n  "prompt": {prompt},\n  "greedy": {tokens},\n  "margin_min": {margin:.6f},\n{router}'
        f'  "made_by": {json.dumps(made_by)}\n}}\n'
    )
    return seed, margin, len(set(tokens)), routers


def cases():
    yield from mixtures()
    yield from dense()
    yield from gemma3()
    yield from gemma4()
    yield from qwen3_5()
    yield from lfm2()
    yield from mamba()
    yield from fp8()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DEFAULT_OUT, help="directory of the fixtures (default: the tests')")
    parser.add_argument("--only", nargs="*", help="names of the cases to write (default: all)")
    args = parser.parse_args()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)

    print(f"{'case':24} {'seed':>4} {'margin':>8} {'distinct':>8} {'router':>8} {'uses':>4} {'KiB':>5}  about")
    total = 0
    for name, about, config, options in cases():
        if args.only and name not in args.only:
            continue
        directory = args.out / name
        seed, margin, distinct, routers = make_case(directory, config, **options)
        size = sum(f.stat().st_size for f in directory.iterdir())
        total += size
        router = f"{routers.margin:8.5f} {routers.least_used():4}" if routers.uses else f"{'-':>8} {'-':>4}"
        print(f"{name:24} {seed:4} {margin:8.5f} {distinct:8} {router} {size / 1024:5.0f}  {about}", flush=True)
    print(f"{total / 1024:.0f} KiB in all")


if __name__ == "__main__":
    main()
