"""`explain FIELD`; rules are explained in test_rules.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]
EPSILON = "decoder.self_attention.norm_in.epsilon"


def test_a_field_of_a_manifest(blockaudit: Run) -> None:
    outcome = blockaudit("explain", EPSILON, "--manifest", "llama")
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(
        f"{EPSILON}  (field of the contract)\nThe number that keeps the root away from zero.\n"
    )
    for part in (
        "executed  the operators (--level graph)",
        f"{EPSILON}: class default 1e-06  (config.json: rms_norm_eps)",
        "source: transformers 5.24.0: models/llama/modeling_llama.py",
        "N201 epsilon-mismatch",
        "specification 0x03: RMSNorm keeps rescaling and removes re-centering",
        "specification 0x0D, failure 12: Using a mismatched epsilon.",
        "rmsnorm: Zhang and Sennrich 2019",
    ):
        assert part in outcome.out
    assert "\x1b" not in outcome.out


def test_an_end_of_a_name_is_every_field_that_ends_so(blockaudit: Run) -> None:
    said = json.loads(blockaudit("explain", "norm_in.bias", "--manifest", "llama", "--format", "json").out)
    named = [row["field"] for row in said["manifest"]["fields"]]
    assert named == [
        "decoder.self_attention.norm_in.bias", "decoder.mlp.norm_in.bias", "decoder.self_attention.norm_in.family",
        "decoder.mlp.norm_in.family",
    ]  # fmt: skip
    assert [rule["name"] for rule in said["rules"]] == ["norm-bias-missing", "norm-bias-unexpected"]
    assert said["witnesses"]["stored"].startswith("keys; ")


def test_words_are_those_of_the_schema(blockaudit: Run) -> None:
    said = json.loads(blockaudit("explain", "cast_order", "--format", "json").out)
    assert said["values"] == ["cast_before_scale", "cast_after_scale", "none"]
    assert "manifest" not in said


def test_a_pinned_value_is_no_default(blockaudit: Run, tmp_path: Path) -> None:
    held = tmp_path / "held.json"
    fixture = Path(__file__).parents[2] / "fixtures" / "tiny_llama"
    assert blockaudit("manifest", "draft", fixture, "--pin", "--level", "headers", "--output", held).status == 0
    said = json.loads(blockaudit("explain", EPSILON, "--manifest", held, "--format", "json").out)
    first = said["manifest"]["fields"][0]
    assert (first["value"], first["default"]) == (1e-6, False)


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["epsilom"], "no rule 'epsilom' and no field of the contract; did you mean epsilon?"),
        (["N999"], "no rule 'N999' and no field of the contract; its group has N101 to N207"),
        (["parts.mlm_head"], "'parts.mlm_head' has no fields of the contract"),
        (["decoder.cross_attention.norm_in", "--manifest", "llama"], "no rule 'decoder.cross_attention.norm_in'"),
        (["decoder.final_norm.epsilom"], "did you mean epsilon?"),
        (["decoder.cross_attention.norm_in.epsilon", "--manifest", "llama"], "llama: declares no field"),
        (["N201", "--manifest", "llama"], "--manifest goes with a field"),
        (["epsilon", "--manifest", "lama"], "lama: neither a manifest file nor one of the library"),
    ],
)
def test_what_cannot_be_explained(blockaudit: Run, argv: list[str], says: str) -> None:
    outcome = blockaudit("explain", *argv)
    assert (outcome.status, outcome.out) == (2, "")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_rule_has_its_sources(blockaudit: Run) -> None:
    said = blockaudit("explain", "N201").out
    assert "Where it comes from  (specification: M3.7, Residual Stream, Normalization, and Block Assembly)\n" in said
    assert "\n  specification 0x02" in said
    assert "Where it comes from" not in blockaudit("explain", "F101").out
    assert "cannot be waived" in blockaudit("explain", "F101").out.splitlines()[0]


def test_names_are_escaped(blockaudit: Run, tmp_path: Path) -> None:
    outcome = blockaudit("explain", "\x1b[2J.epsilon")
    assert "\x1b" not in outcome.out
    assert "\\x1b[2J.epsilon" in outcome.out


def test_what_a_finding_names_is_a_place_with_fields(blockaudit: Run) -> None:
    outcome = blockaudit("explain", "encoder.mlp.norm_post")
    assert (outcome.status, outcome.err) == (0, "")
    assert "\n  epsilon              The number that keeps the root away from zero.\n" in outcome.out
    said = json.loads(blockaudit("explain", "decoder.final_norm", "--manifest", "llama", "--format", "json").out)
    assert said["place"] == "decoder.final_norm"
    assert {
        "field": EPSILON.replace("self_attention.norm_in", "final_norm"),
        "meaning": said["fields"][4]["meaning"],
    } in (said["fields"])
    assert all(row["meaning"] for row in said["fields"])


@pytest.mark.parametrize(
    ("beginning", "codes"), [("N2", ["N201", "N202", "N203"]), ("n10", ["N101"]), ("final-norm", ["N106", "N107"])]
)
def test_the_beginning_of_a_rule_lists_those_that_begin_so(blockaudit: Run, beginning: str, codes: list[str]) -> None:
    outcome = blockaudit("explain", beginning)
    assert (outcome.status, outcome.err) == (0, "")
    found = [line.split()[0] for line in outcome.out.splitlines()]
    assert found[: len(codes)] == codes
    assert all(code.startswith("N") for code in found)
