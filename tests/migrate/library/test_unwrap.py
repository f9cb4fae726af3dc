"""A LLaMA saved inside its wrapper: the very wrappers of torch, and what PEFT's would write."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Drawn, Sizes, tokens
from tests.migrate.library.proving import Weights, agree, back, computed, same_bytes, saved, there


def _llama(sizes: Sizes, *, tied: bool) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=sizes.vocab, hidden_size=sizes.d_model, intermediate_size=sizes.d_ff,
        num_hidden_layers=sizes.n_layers, num_attention_heads=sizes.n_heads, num_key_value_heads=sizes.n_kv,
        max_position_embeddings=sizes.n_ctx, rms_norm_eps=1e-5, tie_word_embeddings=tied,
    )  # fmt: skip
    model, draw = LlamaForCausalLM(config).eval(), Drawn(8)
    with torch.no_grad():
        for key, tensor in model.named_parameters():
            tensor.copy_(draw.gain(len(tensor)) if key.endswith("norm.weight") else draw.matrix(*tensor.shape))
    return model


def _ddp(model: Any) -> Weights:
    return torch.nn.DataParallel(model).state_dict()


def _compile(model: Any) -> Weights:
    return torch.compile(model).state_dict()  # pyright: ignore[reportFunctionMemberAccess, reportUnknownVariableType]


def _fsdp(model: Any) -> Weights:
    from torch.distributed.fsdp._common_utils import FSDP_PREFIX

    layers = f"{FSDP_PREFIX}model.layers."

    def wrapped(key: str) -> str:
        head, mark, rest = f"{FSDP_PREFIX}{key}".partition(layers)
        number, _, inner = rest.partition(".")
        return f"{layers}{number}.{FSDP_PREFIX}{inner}" if mark else head

    return {wrapped(key): tensor for key, tensor in model.state_dict().items()}


def _peft(model: Any) -> Weights:
    return {f"base_model.model.{key}": tensor for key, tensor in model.state_dict().items()}


WRAPPERS = {"unwrap_ddp": _ddp, "unwrap_compile": _compile, "unwrap_fsdp": _fsdp, "unwrap_peft": _peft}


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("sizes", [PLAIN, SQUARE], ids=["plain", "square"])
@pytest.mark.parametrize("map_", WRAPPERS)
def test_unwrap(tmp_path: Path, map_: str, sizes: Sizes, *, tied: bool) -> None:
    model = _llama(sizes, tied=tied)
    weights = {key: tensor.clone() for key, tensor in WRAPPERS[map_](model).items()}
    config = json.loads(model.config.to_json_string()) | {"architectures": ["LlamaForCausalLM"]}
    target = there(map_, saved(weights, config, tmp_path / "source"), tmp_path / "target")
    with torch.no_grad():
        assert agree(computed(target, tokens(sizes)), model(input_ids=tokens(sizes)).logits) == 0
    head = {key for key in weights if tied and key.endswith("lm_head.weight")}
    same_bytes(back(map_, target, tmp_path / "again"), {k: v for k, v in weights.items() if k not in head})
