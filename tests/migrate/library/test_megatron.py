"""Megatron-core to transformers and back: LLaMA on one rank and on two, and GPT."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

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
