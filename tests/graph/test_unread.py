"""Config fields that the class never reads, and parameters that no operator reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from blockaudit.graph.reads import consumed, unread, watched
from blockaudit.graph.record import record_module
from tests.families import models
from tests.graph import modules
from tests.support.audit import Outcome, inspect


def _audited(family: str, folder: Path, **changed: Any) -> Outcome:
    models.build(family).save_pretrained(folder)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}), encoding="utf-8")
    return inspect(folder, "--level", "graph")


def _named(outcome: Outcome) -> list[str]:
    return [f["subject"] for f in outcome.findings if f["name"] == "config-field-unconsumed"]


@pytest.mark.parametrize("family", ["llama", "t5", "gemma", "bert"])
def test_a_clean_config_is_read_whole(family: str, tmp_path: Path) -> None:
    outcome = _audited(family, tmp_path)
    assert (outcome.status, outcome.grave) == (0, [])


def test_an_epsilon_that_the_class_never_reads(tmp_path: Path) -> None:
    outcome = _audited("llama", tmp_path, layer_norm_eps=1e-12)
    assert (outcome.status, outcome.grave) == (0, ["config-field-unconsumed"])
    assert _named(outcome) == ["config.json: layer_norm_eps"]
    assert "never reads it: its norms run 1e-06" in outcome.findings[0]["message"]


def test_an_activation_that_the_class_never_reads(tmp_path: Path) -> None:
    assert _named(_audited("llama", tmp_path, hidden_activation="gelu")) == ["config.json: hidden_activation"]


@pytest.mark.parametrize("changed", [{"layer_norm_eps": None}, {"my_note": "eps"}, {"summary_use_proj": True}])
def test_what_says_nothing_of_the_block_is_not_named(changed: dict[str, Any], tmp_path: Path) -> None:
    assert _named(_audited("llama", tmp_path, **changed)) == []


def test_biogpt_runs_another_epsilon_than_its_config_says(tmp_path: Path) -> None:
    """Its class builds every norm with torch's default of 1e-5."""
    from transformers import BioGptConfig, BioGptForCausalLM

    config = BioGptConfig(**models.GIVEN)
    assert config.layer_norm_eps == 1e-12
    BioGptForCausalLM(config).save_pretrained(tmp_path)
    outcome = inspect(tmp_path, "--level", "graph")
    said = [f["message"] for f in outcome.findings if f["subject"] == "config.json: layer_norm_eps"]
    assert said == ["layer_norm_eps = 1e-12 is set and BioGptForCausalLM never reads it: its norms run 1e-05"]


def test_other_spellings_of_a_field_are_the_field() -> None:
    from transformers import GPT2Config, T5Config

    config = GPT2Config()
    with watched(config) as seen:
        assert config.hidden_size == config.n_embd
    assert unread(config, {"n_embd": 1, "hidden_size": 1, "n_layer": 1}, seen) == ("n_layer",)
    assert "__getattribute__" not in vars(GPT2Config)
    # T5's config class makes three fields of this one, which the model itself never reads.
    data = {"feed_forward_proj": "gated-gelu", "layer_norm_epsilon": 1e-3}
    assert consumed(T5Config(), data, "feed_forward_proj")
    assert not consumed(T5Config(), data, "layer_norm_epsilon")


def test_a_parameter_that_no_operator_reads() -> None:
    module = modules.models()
    assert record_module(module).idle == _spare(module)
    module.extra = torch.nn.Linear(3, 3)
    assert record_module(module).idle == (*_spare(module), "extra.weight", "extra.bias")


def _spare(module: torch.nn.Module) -> tuple[str, ...]:
    """Of the cells' many parts, those that a Pre-LN step leaves alone."""
    used = ("m.", "f.", "e.", "g.")
    return tuple(n for n, _ in module.named_parameters() if n.startswith("k.") and not n[4:].startswith(used))
