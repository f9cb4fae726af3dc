"""LLaMA 3 as torchtitan stores it (torch.distributed.checkpoint), to transformers and back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from tests.migrate.library.layouts import torchtitan
from tests.migrate.library.layouts.meta import Weights
from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Sizes, tokens
from tests.migrate.library.proving import agree, back, computed, same_bytes, stored, there


def _saved(weights: Weights, config: dict[str, Any], folder: Path) -> Path:
    """A folder of torch.distributed.checkpoint with the config beside."""
    dcp.save(weights, checkpoint_id=folder, no_dist=True)  # pyright: ignore[reportUnknownMemberType]
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def _gathered(weights: Weights, config: dict[str, Any], folder: Path) -> Path:
    """The same, gathered into one file by torch's own tool."""
    source = _saved(weights, config, folder.with_name("distributed"))
    folder.mkdir()
    dcp_to_torch_save(source, folder / "model.pt")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize("sizes", [PLAIN, SQUARE], ids=["plain", "square"])
def test_torchtitan(tmp_path: Path, sizes: Sizes) -> None:
    config, weights = torchtitan.config(sizes), torchtitan.weights(sizes, 5)
    target = there("torchtitan_llama", _gathered(weights, config, tmp_path / "source"), tmp_path / "target")
    agree(computed(target, tokens(sizes)), torchtitan.logits(weights, config, tokens(sizes)))
    same_bytes(back("torchtitan_llama", target, tmp_path / "again"), weights)


def test_a_tied_head_is_stored_once(tmp_path: Path) -> None:
    config, weights = {**torchtitan.config(PLAIN), "enable_weight_tying": True}, torchtitan.weights(PLAIN, 5)
    weights["lm_head.weight"] = weights["tok_embeddings.weight"].clone()
    target = there("torchtitan_llama", _gathered(weights, config, tmp_path / "source"), tmp_path / "target")
    agree(computed(target, tokens(PLAIN)), torchtitan.logits(weights, config, tokens(PLAIN)))
    stored_once = {k: v for k, v in weights.items() if k != "lm_head.weight"}
    same_bytes(back("torchtitan_llama", target, tmp_path / "again"), stored_once)


def test_stretched_frequencies_are_carried(tmp_path: Path) -> None:
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 8192}  # fmt: skip
    config = {**torchtitan.config(PLAIN), "rope_theta": 5e5, "rope_scaling": scaling}
    weights = torchtitan.weights(PLAIN, 5)
    target = there("torchtitan_llama", _gathered(weights, config, tmp_path / "source"), tmp_path / "target")
    wanted = torchtitan.logits(weights, {**config, "use_scaled_rope": True}, tokens(PLAIN))
    agree(computed(target, tokens(PLAIN)), wanted)


def test_a_folder_of_chunks_gives_what_the_gathered_file_gives(tmp_path: Path) -> None:
    config, weights = torchtitan.config(PLAIN), torchtitan.weights(PLAIN, 5)
    gathered = there("torchtitan_llama", _gathered(weights, config, tmp_path / "source"), tmp_path / "a")
    same_bytes(stored(there("torchtitan_llama", tmp_path / "distributed", tmp_path / "b")), stored(gathered))
