"""Megatron-core to transformers and back: LLaMA on one rank and on two, and GPT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from blockaudit.pipeline.mapping import check_map
from tests.migrate.library.layouts import megatron_gpt, megatron_llama
from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Sizes, tokens
from tests.migrate.library.proving import Weights, agree, back, computed, same_bytes, saved, there

PADDED = 128


@pytest.mark.parametrize("sizes", [PLAIN, SQUARE], ids=["plain", "square"])
@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
def test_llama_of_one_rank(tmp_path: Path, sizes: Sizes, *, tied: bool) -> None:
    config, weights = megatron_llama.config(sizes, tied=tied), megatron_llama.weights(sizes, 1, tied=tied)
    target = there("megatron_llama", saved(weights, config, tmp_path / "source"), tmp_path / "target")
    agree(computed(target, tokens(sizes)), megatron_llama.logits(weights, config, tokens(sizes)))
    same_bytes(back("megatron_llama", target, tmp_path / "again"), weights)


def ranked(shards: list[Weights], config: dict[str, object], folder: Path) -> Path:
    """The folders that Megatron-LM writes, with the entries of its files that are data."""
    for rank, shard in enumerate(shards):
        below = folder / f"mp_rank_{rank:02d}"
        below.mkdir(parents=True)
        torch.save({"model": shard, "checkpoint_version": 3.0, "iteration": 7}, below / "model_optim_rng.pt")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("padded", [None, PADDED], ids=["whole", "padded"])
def test_llama_of_two_ranks(tmp_path: Path, padded: int | None) -> None:
    config, weights = megatron_llama.config(PLAIN, padded=padded), megatron_llama.weights(PLAIN, 2, padded=padded)
    source = ranked(megatron_llama.sharded(weights, 2), config, tmp_path / "source")
    target = there("megatron_llama_tp", source, tmp_path / "target")
    wanted = megatron_llama.logits(weights, config, tokens(PLAIN))[..., : PLAIN.vocab]
    agree(computed(target, tokens(PLAIN)), wanted)
    # The way back is to one rank; rows without a token are gone.
    kept = {k: t[: PLAIN.vocab] if k.startswith(("embedding", "output")) else t for k, t in weights.items()}
    same_bytes(back("megatron_llama", target, tmp_path / "again"), kept)


@pytest.mark.parametrize("fused", [True, False])
def test_gpt(tmp_path: Path, *, fused: bool) -> None:
    config, weights = megatron_gpt.config(PLAIN, fused=fused), megatron_gpt.weights(PLAIN, 3)
    target = there("megatron_gpt", saved(weights, config, tmp_path / "source"), tmp_path / "target")
    agree(computed(target, tokens(PLAIN)), megatron_gpt.logits(weights, config, tokens(PLAIN)))
    same_bytes(back("megatron_gpt", target, tmp_path / "again"), weights)


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        # Gains stored as w and read as 1 + w.
        ({"layernorm_zero_centered_gamma": True}, "topology-change-needs-retraining"),
        ({"normalization": "LayerNorm"}, "topology-change-needs-retraining"),
        ({"rotary_percent": 0.5}, "topology-change-needs-retraining"),
        ({"rotary_interleaved": True}, "map-undeclared-layout"),
        ({"num_query_groups": 4}, "map-shape-mismatch"),
        ({"num_attention_heads": 8, "kv_channels": 4}, "map-shape-mismatch"),
    ],
)
def test_config_of_another_function_is_refused(tmp_path: Path, said: dict[str, object], rule: str) -> None:
    source = saved(megatron_llama.weights(PLAIN, 1), megatron_llama.config(PLAIN) | said, tmp_path / "source")
    assert rule in {f.name for f in check_map("megatron_llama", source).findings}


def test_state_of_fp8_recipes_is_left_behind(tmp_path: Path) -> None:
    config, weights = megatron_llama.config(PLAIN), megatron_llama.weights(PLAIN, 1)
    state = {f"decoder.layers.{n}.{name}._extra_state": torch.zeros(3, dtype=torch.uint8)
             for n in range(2) for name in ("self_attention.linear_qkv", "mlp.linear_fc1")}  # fmt: skip
    target = there("megatron_llama", saved(weights | state, config, tmp_path / "source"), tmp_path / "target")
    agree(computed(target, tokens(PLAIN)), megatron_llama.logits(weights, config, tokens(PLAIN)))


def test_as_many_groups_as_heads_where_the_config_names_none(tmp_path: Path) -> None:
    sizes = Sizes(n_kv=4)
    config, weights = megatron_llama.config(sizes), megatron_llama.weights(sizes, 4)
    silent = {key: value for key, value in config.items() if key not in ("num_query_groups", "kv_channels")}
    target = there("megatron_llama", saved(weights, silent, tmp_path / "source"), tmp_path / "target")
    agree(computed(target, tokens(sizes)), megatron_llama.logits(weights, config, tokens(sizes)))


def test_gpt_with_groups_is_no_gpt2(tmp_path: Path) -> None:
    config, weights = megatron_gpt.config(PLAIN), megatron_gpt.weights(PLAIN, 3)
    rows = (PLAIN.n_heads + 2 * PLAIN.n_kv) * PLAIN.d_head
    weights = {
        k: t[:rows].clone() if "linear_qkv.weight" in k or "linear_qkv.bias" in k else t for k, t in weights.items()
    }
    report = check_map("megatron_gpt", saved(weights, config | {"num_query_groups": 2}, tmp_path / "source"))
    assert "map-shape-mismatch" in {f.name for f in report.findings}
