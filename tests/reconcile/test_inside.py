"""A text stack inside a larger model: what is said of config.json names the field where that file has it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockaudit.manifest.text_stack import dotted
from tests.cli.conftest import Outcome
from tests.cli.conftest import blockaudit as blockaudit
from tests.support.audit import inspect
from tests.support.checkpoint import Draft, Edit, config, drop, family, then

EPSILON = "decoder.final_norm.epsilon"


def within(*place: str, **outer: Any) -> Edit:
    """The config as a text stack's, at this place of a larger model's."""

    def edit(draft: Draft) -> None:
        inner = dict(draft.config or {})
        inner.pop("architectures")
        for name in reversed(place):
            inner = {name: inner}
        draft.config = {"model_type": "larger", "architectures": ["LargerForConditionalGeneration"], **outer, **inner}

    return edit


def _line(folder: Path, text: str) -> int:
    lines = (folder / "config.json").read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if text in line)


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A larger model with one layer too few, and an epsilon that its text stack does not read."""
    lost = drop("model.layers.1.*")
    folder = family("llama", then(config(layer_norm_eps=1e-3), lost, within("text_config")))(tmp_path / "larger")
    whole = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(whole, indent=1))
    return folder


@pytest.mark.parametrize("place", [("text_config",), ("thinker_config", "text_config")])
def test_evidence_of_the_contract_names_the_nested_field(tmp_path: Path, place: tuple[str, ...]) -> None:
    report = inspect(family("llama", within(*place))(tmp_path)).report
    assert report is not None
    rows = {row["field"]: row["evidence"] for row in report["contract"]}
    prefix = ".".join(place)
    assert rows[EPSILON]["declared"] == f"config.json: {prefix}.rms_norm_eps"
    assert rows["decoder.layers"]["declared"] == f"config.json: {prefix}.num_hidden_layers"
    assert rows["tie.lm_head.weight"]["declared"].startswith(f"config.json: {prefix}.tie_word_embeddings")


def test_findings_name_the_nested_field_and_its_line(odd: Path) -> None:
    found = {f["code"]: f for f in inspect(odd).findings}
    assert found["C104"]["evidence"].startswith("config.json: text_config.num_hidden_layers")
    assert found["C103"]["subject"] == "config.json: text_config.layer_norm_eps"
    for code, key in (("C104", "num_hidden_layers"), ("C103", "layer_norm_eps")):
        assert {"path": f"{odd}/config.json", "line": _line(odd, key)} in found[code]["places"]


def test_a_reader_is_led_to_the_line(odd: Path, blockaudit: Any) -> None:
    line = _line(odd, "layer_norm_eps")
    told: Outcome = blockaudit("inspect", str(odd), "--format", "github")
    assert f"config.json,line={line}" in told.out
    told = blockaudit("inspect", str(odd), "--format", "sarif")
    results = json.loads(told.out)["runs"][0]["results"]
    (result,) = [r for r in results if r["ruleId"] == "C103"]
    regions = [place["physicalLocation"].get("region") for place in result["locations"]]
    assert {"startLine": line} in regions


def test_a_config_of_one_stack_is_cited_as_it_is(tmp_path: Path) -> None:
    report = inspect(family("llama")(tmp_path)).report
    assert report is not None
    (row,) = [r for r in report["contract"] if r["field"] == EPSILON]
    assert row["evidence"]["declared"] == "config.json: rms_norm_eps"


@pytest.mark.parametrize(
    ("whole", "key", "expected"),
    [
        ({"text_config": {}}, "rms_norm_eps", "text_config.rms_norm_eps"),
        ({"text_config": {}}, "rope_parameters.rope_theta", "text_config.rope_parameters.rope_theta"),
        ({"text_config": {}}, "tie_word_embeddings", "text_config.tie_word_embeddings"),
        ({"text_config": {}, "tie_word_embeddings": False}, "tie_word_embeddings", "tie_word_embeddings"),
        ({"text_config": {}}, "quantization_config", "quantization_config"),
        ({"text_config": {"quantization_config": {}}}, "quantization_config", "text_config.quantization_config"),
        ({"text_config": {"architectures": ["X"]}}, "architectures", "text_config.architectures"),
        ({"text_config": {}, "architectures": ["Y"]}, "architectures", "architectures"),
    ],
)
def test_where_a_field_is_written(whole: dict[str, Any], key: str, expected: str) -> None:
    assert dotted(whole, ("text_config",), key) == expected


def test_the_head_of_a_stack_two_levels_down_is_tied_one_level_down() -> None:
    whole = {"thinker_config": {"text_config": {}, "tie_word_embeddings": True}}
    place = ("thinker_config", "text_config")
    assert dotted(whole, place, "tie_word_embeddings") == "thinker_config.tie_word_embeddings"
