"""Drafts from a source whose keys nobody knows: what one shape alone can be, and nothing by its name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from blockaudit.pipeline.map_drafting import MapDraft, draft_map
from blockaudit.records.operations import Transpose

Shapes = dict[str, tuple[int, ...]]
CONFIG = {
    "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 8, "vocab_size": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
}  # fmt: skip
# A LLaMA under names that say nothing, its head tied.
LAYER: Shapes = {
    "a.weight": (32, 24), "b.weight": (16, 24), "c.weight": (16, 24), "d.weight": (24, 32), "e.weight": (40, 24),
    "f.weight": (40, 24), "g.weight": (24, 40), "h.weight": (24,), "i.weight": (24,),
}  # fmt: skip
OUTSIDE: Shapes = {"one.weight": (64, 24), "two.weight": (24,)}


def _source(folder: Path, shapes: Shapes, config: dict[str, Any] | None = None, first: int = 0) -> Path:
    folder.mkdir()
    layers = range(first, first + 3)
    named = {k: s for k, s in shapes.items() if k in OUTSIDE}
    named |= {f"x.{n}.{k}": s for n in layers for k, s in shapes.items() if k not in OUTSIDE}
    save_file({key: torch.zeros(shape) for key, shape in named.items()}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG if config is None else config))
    return folder


def _rules(drafted: MapDraft) -> dict[str, str]:
    return {str(rule.to): str(rule.from_) for rule in drafted.map.rules}


def _why(drafted: MapDraft, name: str) -> str:
    return next(line for line in drafted.undecided if name in line.partition(": ")[0])


def test_what_one_shape_alone_can_be_is_proposed(tmp_path: Path) -> None:
    drafted = draft_map(_source(tmp_path / "s", LAYER | OUTSIDE), "llama")
    assert _rules(drafted) == {
        "model.embed_tokens.weight": "one.weight",
        "model.layers.{l}.self_attn.o_proj.weight": "x.{l}.d.weight",
        "model.layers.{l}.mlp.down_proj.weight": "x.{l}.g.weight",
    }
    assert drafted.map.source is None
    assert drafted.map.alias == [("lm_head.weight", "model.embed_tokens.weight")]
    assert not drafted.decided


def test_what_no_shape_shows_is_named_and_left_out(tmp_path: Path) -> None:
    drafted = draft_map(_source(tmp_path / "s", LAYER | OUTSIDE), "llama")
    assert "x.{l}.a.weight has its shape, but the pairing of rotary coordinates" in _why(drafted, "q_proj")
    assert "cannot tell them apart; the source has x.{l}.b.weight, x.{l}.c.weight" in _why(drafted, "k_proj")
    assert "k_proj" in _why(drafted, "v_proj").partition(": ")[0]
    assert "x.{l}.e.weight, x.{l}.f.weight" in _why(drafted, "gate_proj")
    assert "x.{l}.h.weight, x.{l}.i.weight" in _why(drafted, "input_layernorm")
    assert "stored as w or as 1 + w" in _why(drafted, "model.norm")
    # Each is told once: the check says nothing that the draft has said.
    assert drafted.refused == ()


def test_the_other_convention_is_proved_by_the_counts(tmp_path: Path) -> None:
    """Two maps of [24, 40] and one of [40, 24]: gate and up are those two, so that all are stored [in, out]."""
    turned = {k: s[::-1] if len(s) == 2 else s for k, s in LAYER.items()}
    drafted = draft_map(_source(tmp_path / "s", turned | OUTSIDE), "llama")
    rule = next(r for r in drafted.map.rules if r.to == "model.layers.{l}.mlp.down_proj.weight")
    assert (rule.from_, rule.ops) == ("x.{l}.g.weight", [Transpose()])
    assert next(r for r in drafted.map.rules if r.to == "model.embed_tokens.weight").ops == []


def test_without_counts_that_differ_no_convention_is_proved(tmp_path: Path) -> None:
    """A plain MLP has one matrix of either form: its up may be its down, stored the other way round."""
    layer: Shapes = {
        "a.weight": (24, 24), "b.weight": (24, 24), "c.weight": (24, 24), "d.weight": (24, 24),
        "e.weight": (40, 24), "f.weight": (24, 40), "g.weight": (24,), "h.weight": (24,),
    }  # fmt: skip
    config = {**CONFIG, "head_dim": 6, "num_key_value_heads": 4}
    drafted = draft_map(_source(tmp_path / "s", layer | OUTSIDE, config), "nemotron")
    assert "nothing shows which axis of the source's matrices is the output" in _why(drafted, "mlp.up_proj")
    assert not any("mlp" in to for to in _rules(drafted))


def test_a_fused_tensor_does_not_show_how_it_lies(tmp_path: Path) -> None:
    layer: Shapes = {
        "a.weight": (64, 24), "d.weight": (24, 32), "e.weight": (80, 24), "g.weight": (24, 40), "h.weight": (24,),
        "i.weight": (24,),
    }  # fmt: skip
    drafted = draft_map(_source(tmp_path / "s", layer | OUTSIDE), "phi3")
    assert "how its rows lie is not shown" in _why(drafted, "qkv_proj")
    assert "how its rows lie is not shown" in _why(drafted, "gate_up_proj")


def test_layers_are_counted_from_the_first_one(tmp_path: Path) -> None:
    drafted = draft_map(_source(tmp_path / "s", LAYER | OUTSIDE, first=2), "llama")
    assert _rules(drafted)["model.layers.{l}.mlp.down_proj.weight"] == "x.{l+2}.g.weight"


def test_a_shape_that_the_target_lacks_is_named(tmp_path: Path) -> None:
    drafted = draft_map(_source(tmp_path / "s", LAYER | OUTSIDE | {"z.weight": (7, 5)}), "llama")
    assert any(
        line == "x.{l}.z.weight: the target has no tensor of shape [7, 5] in 3 layers" for line in drafted.undecided
    )


@pytest.mark.parametrize("key", ["{l}.weight", "a{*}", "b{c}d"])
def test_a_key_with_a_brace_is_named(tmp_path: Path, key: str) -> None:
    source = _source(tmp_path / "s", LAYER | OUTSIDE)
    save_file({key: torch.zeros(2)}, source / "more.safetensors")
    (source / "model.safetensors").rename(source / "other.safetensors")
    drafted = draft_map(source / "more.safetensors", "llama")
    assert f"{key}: a key with a brace cannot stand in a template" in drafted.undecided


def test_a_name_is_a_hint_and_no_rule(tmp_path: Path) -> None:
    names = {"b.weight": "attention.k_proj.weight", "c.weight": "attention.v_proj.weight"}
    layer = {names.get(key, key): shape for key, shape in LAYER.items()}
    drafted = draft_map(_source(tmp_path / "s", layer | OUTSIDE), "llama")
    assert not any("k_proj" in to for to in _rules(drafted))
    assert any(
        line.startswith("by its name alone") and "x.{l}.attention.k_proj.weight may be" in line and "k_proj" in line
        for line in drafted.hints
    )


def test_swapped_names_change_no_rule(tmp_path: Path) -> None:
    """Names that lie are not believed: the rules are the same."""
    lying = {"g.weight": "gate_proj.weight", "e.weight": "down_proj.weight"}
    layer = {lying.get(key, key): shape for key, shape in LAYER.items()}
    drafted = draft_map(_source(tmp_path / "s", layer | OUTSIDE), "llama")
    assert _rules(drafted)["model.layers.{l}.mlp.down_proj.weight"] == "x.{l}.gate_proj.weight"


@pytest.mark.parametrize("config", [{}, {"hidden_size": 24}])
def test_without_sizes_nothing_is_proposed_for_them(tmp_path: Path, config: dict[str, Any]) -> None:
    drafted = draft_map(_source(tmp_path / "s", LAYER | OUTSIDE, config), "llama")
    assert not any("layers" in to for to in _rules(drafted))
    assert any(line.startswith("map-config-lost: nothing supplies rms_norm_eps") for line in drafted.refused)
