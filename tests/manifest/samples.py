"""Documents for the tests: the specification's core, and one block manifest that gives every field."""

from __future__ import annotations

import copy
from typing import Any

import msgspec

from blockaudit.records.manifest import Manifest

CORE = """\
architecture_id: llama_style_pre_rmsnorm_decoder
state_layout: [batch, sequence, model]
branch_order: [causal_self_attention, gated_mlp]
norm:
  family: rmsnorm
  placement: pre_branch
  reduction_axes: [-1]
  epsilon: 1.0e-6
  center: false
  scale: per_channel
  bias: false
residual:
  shortcut_scale: 1.0
  attention_branch_scale: 1.0
  mlp_branch_scale: 1.0
dropout:
  attention_output: 0.0
  mlp_output: 0.0
final_norm: rmsnorm
"""

WIDTH: dict[str, Any] = {"module": "model.layers.{l}.norm", "shape": ["d_model"]}

# Every field of every struct, in one manifest that contradicts itself nowhere.
EVERYTHING: dict[str, Any] = {
    "schema": "blockaudit/block-manifest/1",
    "architecture_id": "everything",
    "evidence_label": "implementation",
    "source": "a package, its version and its revision",
    "witness": "headers",
    "match": {
        "model_types": ["everything"],
        "base_class": "EverythingModel",
        "base_prefix": "model.",
        "classes": {"EverythingForCausalLM": {"parts": ["lm_head"], "base_prefix": "model.", "stacks": ["decoder"]}},
    },
    "state_layout": ["batch", "sequence", "model"],
    "branch_order": ["causal_self_attention", "cross_attention", "gated_mlp"],
    "norm": {
        "family": {"config": "norm", "default": "rmsnorm"},
        "placement": "both",
        "reduction_axes": [-1],
        "epsilon": {"config": ["eps", "epsilon"], "default": 1e-6, "pinned": 1e-6},
        "epsilon_location": "inside",
        "variance_correction": 0,
        "center": False,
        "scale": "per_channel",
        "scale_offset": {"if": "deep", "then": 1, "else": 0},
        "bias": False,
        "work_dtype": "float32",
        "cast_order": "cast_before_scale",
        "algorithm": "two_pass",
        "groups": None,
        "couples": [],
        "padding_policy": None,
        "persistent_state": [],
        "names": {"weight": "gain"},
        "subset": None,
        "instance": None,
        "owner": None,
    },
    "residual": {
        "shortcut": "scalar",
        "shortcut_source": "state",
        "shortcut_scale": {"value": 1.0, "granularity": "layer", "learned": True, "init": 1.0},
        "attention_branch_scale": 1.0,
        "cross_attention_branch_scale": 0.5,
        "mlp_branch_scale": {"expr": "1 / n_layers"},
        "dtype": "float32",
        "update": "add",
    },
    "dropout": {
        "attention_output": {
            "p": 0.1, "granularity": "element", "scaling": "inverted", "position": "before_add",
            "schedule": "constant",
        },
    },
    "final_norm": "rmsnorm",
    "dims": {
        "d_model": {"config": "hidden_size", "default": 64},
        "n_layers": {"config": "num_hidden_layers", "default": 2},
        "n_experts": {"config": "num_experts", "default": 4},
        "vocab": {"config": "vocab_size", "default": 96},
        "deep": {"config": "deep", "default": False},
    },
    "axes": {"e": "n_experts"},
    "stacks": [
        {
            "name": "decoder",
            "layers": "n_layers",
            "first_layer": 0,
            "stored_layers": {"expr": "n_layers"},
            "layer_kinds": {"even": "l % 2 == 0", "odd": "l % 2 == 1"},
            "layer_axis": "e",
            "parallel": False,
            "inputs": {
                "positions": "tokens", "offset": {"expr": "n_layers"}, "padding_id": 1, "projected": "tokens",
            },
            "embedding": [{"role": "tokens", "module": "model.embed_tokens", "shape": ["vocab", "d_model"]}],
            "embedding_scale": {"config": "scale", "default": 1.0},
            "embedding_norm": {"module": "model.embed_norm", "shape": ["d_model"]},
            "branches": [
                {
                    "name": "self_attention",
                    "kind": "causal_self_attention",
                    "reads": "state",
                    "sources": {"q": "state", "k": "state", "v": "state"},
                    "softcap": 50.0,
                    "score_route": "sum",
                    "norms": {
                        "norm_in": {
                            "family": "prmsnorm",
                            "subset": {"coordinates": "random", "size": 8, "resampled": True,
                                       "distributed_owner": "rank 0"},
                            "instance": "shared", "owner": "layer", "placement": "pre_branch", "when": "n_layers > 0",
                            **WIDTH,
                        },
                        "norm_out": {"module": "model.layers.{l}.norm_out"},
                    },
                    "attention": {
                        "heads": {"expr": "d_model // 8"}, "head_dim": 8, "kv_heads": 4, "value_dim": 8, "scale": 0.5,
                        "scale_by_layer": True, "scale_by_mscale": False, "fused": "per_group", "clip": 8.0,
                        "bidirectional": False, "window": {"config": "window", "default": 16},
                        "window_when": "l % 2 == 0",
                        "rotary": {
                            "theta": {"config": ["rope_parameters.rope_theta", "rope_theta"], "default": 10000.0},
                            "dim": {"expr": "d_model // 16"}, "pairing": "interleaved",
                            "scaling": {"config": "rope_parameters"}, "max_length": 64, "original_length": 32,
                        },
                        "window_rotary": {"theta": 100.0},
                        "alibi": {"when": "deep", "scale": 1.0, "dtype": "bfloat16"},
                        "relative": {"max_distance": 128},
                        "latent": {"nope_dim": 4, "rope_dim": 4},
                    },
                    "tensors": [
                        {"role": "q", "module": "model.layers.{l}.q_proj", "shape": ["d_model", "d_model"],
                         "bias": True, "layout": "in_out", "when": "n_layers > 1", "optional": False},
                        {"role": "qkv", "module": "model.layers.{l}.qkv", "shape": ["3 * d_model", "d_model"]},
                        {"role": "kv_a", "module": "model.layers.{l}.kv_a", "shape": ["d_model", "d_model"]},
                        {"role": "kv_b", "module": "model.layers.{l}.kv_b", "shape": ["d_model", "d_model"]},
                    ],
                },
                {
                    "name": "cross_attention",
                    "kind": "cross_attention",
                    "sources": {"q": "state", "k": "memory", "v": "memory"},
                    "norms": {"norm_in": {"family": "prmsnorm", "subset": {"coordinates": [0, 1], "size": 2},
                                          "instance": "shared", **WIDTH}},
                },
                {
                    "name": "mlp",
                    "kind": "gated_mlp",
                    "layer_kinds": ["even", "odd"],
                    "when": "n_layers > 0",
                    "feed_forward": {
                        "activation": {"config": "act", "default": "silu"},
                        "fused": "gate_up",
                        "routing": {
                            "top_k": 2, "score": "sigmoid", "normalise": True, "groups": 2, "top_groups": 1,
                            "scale": 2.5, "work_dtype": "float32",
                        },
                    },
                    "tensors": [
                        {"role": "up", "key": "model.layers.{l}.mlp.{e}.up", "shape": ["d_model", "d_model"]},
                        {"role": "router", "key": "model.layers.{l}.mlp.router", "shape": ["n_experts", "d_model"]},
                    ],
                },
            ],
            "unplaced": {"stray": {"module": "model.layers.{l}.stray", "shape": ["d_model"], "placement": None}},
            "tensors": [
                {"role": "relative_bias", "key": "model.bias", "shape": ["32", "8"]},
                {"role": "inv_freq", "key": "model.layers.{l}.inv_freq", "shape": ["d_model // 2"], "derived": True},
            ],
            "final_norm": {"family": "rmsnorm", "module": "model.norm"},
            "logit_scale": 1.0,
            "logit_softcap": 30.0,
            "residual": {"shortcut": "identity", "cross_attention_branch_scale": 0.5},
            "ignored": False,
        }
    ],
    "parts": {
        "lm_head": [
            {"role": "lm_head", "module": "lm_head", "shape": ["vocab", "d_model"],
             "tied_to": "model.embed_tokens.weight", "tie": {"config": "tie_word_embeddings", "default": False}},
            {"role": "head.dense", "module": "head.dense", "shape": ["d_model", "d_model"]},
        ]
    },
    "buffers": [{"role": "positions", "key": "model.positions", "shape": ["vocab"], "derived": True}],
    "head": {"activation": "gelu"},
    "config_reads": ["use_cache"],
}  # fmt: skip


def everything(**changes: Any) -> dict[str, Any]:
    """A copy of EVERYTHING with some top fields changed."""
    return copy.deepcopy(EVERYTHING) | changes


def manifest(document: dict[str, Any]) -> Manifest:
    return msgspec.convert(document, Manifest)
