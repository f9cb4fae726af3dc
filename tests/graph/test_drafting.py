"""Manifests drafted from the class alone: what is fitted, what is refused, and that they say what people wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit import pipeline
from blockaudit.graph.drafting import conditions, fit, words
from blockaudit.graph.drafting.catalog import Unfit
from blockaudit.graph.drafting.drafter import draft, explored
from blockaudit.manifest.diff import compare
from blockaudit.manifest.draft import encode
from blockaudit.manifest.library import Nearest
from blockaudit.manifest.load import library, load
from blockaudit.zoo.index import encoded
from blockaudit.zoo.prove import prove
from tests.families import models

ROWS = (
    (32, 4, 2, 8, 64, True, 1), (64, 4, 2, 8, 96, False, 1), (32, 8, 4, 8, 80, True, 2), (48, 4, 1, 16, 64, False, 0),
    (96, 4, 2, 4, 128, True, 3),
)  # fmt: skip
NAMES = ("d_model", "n_heads", "n_kv", "d_head", "d_ff", "flag", "first")
ENVS: list[dict[str, Any]] = [{**dict(zip(NAMES, row, strict=True)), "kinds": ["a", "b", "a", "b"]} for row in ROWS]
SIZES = ["d_model", "n_heads", "n_kv", "d_head", "d_ff"]


@pytest.mark.parametrize(
    "text",
    [
        "d_model", "2 * d_ff", "n_heads * d_head", "d_model + 2", "n_heads * d_head + 2 * n_kv * d_head",
        "d_model // n_heads", "3 * d_model", "7",
    ],
)  # fmt: skip
def test_a_size_is_fitted(text: str) -> None:
    ys = [eval(text, {}, dict(e)) for e in ENVS]
    found = fit.whole(ys, ENVS, SIZES)
    assert found is not None
    assert [eval(found, {}, dict(e)) for e in ENVS] == ys


def test_a_size_that_follows_nothing_is_not_fitted() -> None:
    assert fit.whole([3, 1, 4, 1, 5], ENVS, ["d_model", "n_heads"]) is None


@pytest.mark.parametrize(
    ("there", "text"),
    [
        ([True, False, True, False, True], "flag"),
        ([False, True, False, True, False], "not flag"),
        ([True, True, True, False, True], "first > 0"),
    ],
)
def test_a_condition_is_found(there: list[bool], text: str) -> None:
    assert conditions.of_config(there, ENVS, ["flag", "first"]) == text


def test_layers_of_a_kind_are_found() -> None:
    spans = [range(4)] * len(ENVS)
    dense = [frozenset(n for n in range(4) if n < e["first"]) for e in ENVS]
    assert conditions.of_layers(dense, spans, ENVS, ["first", "kinds"]) == "l < first"
    odd = [frozenset({1, 3})] * len(ENVS)
    assert conditions.of_layers(odd, spans, ENVS, ["kinds"]) == "kinds[l] == 'b'"


def test_two_modules_never_have_one_role() -> None:
    named = words.roles(["a.self.query", "a.cross.query", "a.dense"], words.ROLES)
    assert named == {"a.self.query": "self.q", "a.cross.query": "cross.q", "a.dense": "dense"}


@pytest.mark.parametrize(("family", "class_name"), [("llama", "LlamaForCausalLM"), ("bert", "BertForMaskedLM")])
def test_a_draft_says_what_the_manifest_made_by_hand_says(family: str, class_name: str, tmp_path: Path) -> None:
    found = explored(family, class_name)
    data = draft(found)
    assert prove(data, found) == []
    path = tmp_path / "drafted.json"
    path.write_text(json.dumps(data))
    assert compare(library(family).manifest, load(str(path)).manifest).same_function


def test_a_manifest_that_is_wrong_is_not_proved() -> None:
    found = explored("arcee", "ArceeForCausalLM")
    data = draft(found)
    assert prove({**data, "norm": {**data["norm"], "scale_offset": 1}}, found) != []
    data["dims"]["d_ff"]["config"] = "hidden_size"
    assert prove(data, found) != []


def test_what_is_no_model_is_refused() -> None:
    with pytest.raises(Unfit, match="not built"):
        explored("llama", "LlamaPreTrainedModel")


def test_a_source_of_a_family_that_the_library_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drafted from the class that its config.json names, pinned, and held against another config."""
    monkeypatch.setattr("blockaudit.pipeline.drafting.choose", nothing)
    models.build("llama").save_pretrained(tmp_path)
    drafted = pipeline.draft(tmp_path, pin=True, level="graph").manifest
    assert (drafted.witness, drafted.architecture_id) == ("graph", "llama")
    monkeypatch.undo()
    path = tmp_path.with_suffix(".json")
    path.write_text(encode(drafted), encoding="utf-8")
    assert pipeline.inspect(tmp_path, manifest=str(path), level="graph").verdict == "accepted"
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "rms_norm_eps": 1e-3}))
    assert pipeline.inspect(tmp_path, manifest=str(path), level="graph").verdict == "rejected"


def nothing(_flag: str | None, _checkpoint: Any) -> Nearest:
    """The choice where the library has nothing."""
    return Nearest(None, 0.0)


def test_the_index_is_in_step_with_the_manifests() -> None:
    """Written by `python -m blockaudit.zoo --index`."""
    from blockaudit import resources

    assert resources.index_path().read_bytes() == encoded()
