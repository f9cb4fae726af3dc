"""The table of contract fields says what the schema, the rules and the witnesses say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from blockaudit import pipeline, resources
from blockaudit.reference.norms import formulas
from blockaudit.rules import citations, registry
from blockaudit.rules.fields import FIELDS, ContractField, field, rule_sources
from tests.rules import test_rows

ROOT = Path(__file__).parents[2]
each_field = pytest.mark.parametrize("entry", FIELDS, ids=lambda f: f.end)


@each_field
def test_its_meaning_is_written(entry: ContractField) -> None:
    schema: Any = resources.schema("block_manifest")
    if entry.defined is None:
        assert entry.meaning
        return
    part, name = entry.defined
    assert (schema["$defs"][part] if part else schema)["properties"][name]["description"]


@each_field
def test_its_rules_and_sections_exist(entry: ContractField) -> None:
    assert all(registry.find(rule).rule.name == rule for rule in entry.rules)
    assert set(entry.sections) <= citations.SECTIONS.keys()
    assert "0x0D" not in entry.sections  # the lab is cited failure by failure


ROWS = [(name, rule) for rule, rows in test_rows.FIELDS.items() for name, *_ in rows]


@pytest.mark.parametrize(("name", "rule"), ROWS)
def test_a_rule_that_a_disagreement_fires_is_one_that_judges(name: str, rule: str) -> None:
    found = field(name)
    assert found is not None
    assert rule in found.rules


def test_every_row_of_a_report_has_its_field_and_its_witnesses() -> None:
    """Of the shipped checkpoint, at the level at which most witnesses speak."""
    pytest.importorskip("torch")
    report = pipeline.inspect(ROOT / "fixtures" / "tiny_llama", level="graph")
    for row in report.contract:
        found = field(row.field)
        assert found is not None, row.field
        if "executed" in row.statements:
            assert found.executed, row.field
        stored = row.statements.get("stored")
        if stored is not None and not stored.bytes_read.startswith("config.json"):
            assert found.stored, row.field


@pytest.mark.parametrize("name", resources.handmade_ids())
def test_every_field_of_a_manifest_is_one(name: str) -> None:
    from blockaudit.manifest.bind import bind
    from blockaudit.manifest.load import library

    fields = bind(library(name).manifest, {}).fields
    assert [f for f in fields if field(f) is None] == []


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("decoder.self_attention.norm_in.epsilon", "epsilon"),
        ("epsilon", "epsilon"),
        ("decoder.mlp[moe].norm_in.scale", "scale"),
        ("decoder.embedding.scale", "embedding.scale"),
        ("decoder.residual.mlp_branch_scale.init", "_scale.init"),
        ("decoder.residual.cross_attention_branch_scale", "cross_attention_branch_scale"),
        ("decoder.dropout.mlp_output.p", "dropout.*.p"),
        ("decoder.self_attention.bias.q", "bias.*"),
        ("decoder.final_norm.bias", "bias"),
        ("logits.softcap", "logits.softcap"),
        ("decoder.self_attention.softcap", "softcap"),
        ("tie.lm_head.weight", "tie.*"),
    ],
)
def test_the_longest_end_is_the_field(name: str, end: str) -> None:
    found = field(name)
    assert found is not None
    assert found.end == end


@pytest.mark.parametrize("name", ["", ".", "epsilo", "decoder", "norm_in", "p"])
def test_what_is_no_field(name: str) -> None:
    assert field(name) is None


def test_every_failure_that_a_rule_names_is_of_the_lab() -> None:
    for entry in registry.entries():
        assert set(entry.rule.lab) <= citations.LAB.keys()
        assert len(rule_sources(entry.rule)) >= len(entry.rule.lab)
    assert sorted(citations.LAB) == list(range(1, 56))


@pytest.mark.parametrize(("family", "paper"), citations.PAPERS.items())
def test_papers_are_those_that_the_formulas_cite(family: str, paper: str) -> None:
    said = formulas.FORMULAS[family].__doc__ or ""
    words = set(re.findall(r"\w+", paper))
    assert words <= set(re.findall(r"\w+", said)), said


def test_every_family_with_a_formula_has_a_paper() -> None:
    assert formulas.FORMULAS.keys() - citations.PAPERS.keys() == {"none"}
