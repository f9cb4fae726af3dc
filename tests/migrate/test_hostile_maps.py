"""Maps that a stranger wrote: they name what is in the folder, ask for what is bounded; mistakes have their rule."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from blockaudit.errors import RequestError
from blockaudit.migrate import templates
from blockaudit.migrate.load import InvalidMap, load
from blockaudit.migrate.source import open_source
from blockaudit.records.migration import MigrationMap
from tests.support.maps import QKV, Case, apart, check, rope, rule

BASE: dict[str, Any] = {"schema": "blockaudit/map/1", "name": "m", "target": "llama", "rules": []}


def written(folder: Path, **fields: Any) -> str:
    path = folder / "map.json"
    path.write_text(json.dumps(BASE | fields))
    return str(path)


@pytest.mark.parametrize(
    "name",
    [
        "../evil.json", "/evil.json", "a/b.json", ".", "..", ".json", "a\0.json", "a.json\n", "model.safetensors",
        "rollback.json", "conversion-report.json", "model.safetensors.index.json", "tokenizer.json",
        "generation_config.json",
    ],
)  # fmt: skip
def test_a_config_file_is_a_plain_name_that_nothing_else_has(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidMap, match="config_file"):
        load(written(tmp_path, config_file=name))


@pytest.mark.parametrize("name", ["config.json", "params.json", "model_config.yaml"])
def test_names_that_layouts_have_are_taken(tmp_path: Path, name: str) -> None:
    assert load(written(tmp_path, config_file=name)).map.config_file == name


@pytest.mark.parametrize("pattern", ["../{r}.pth", "/srv/{r}.pth", "a//{r}.pth", "./{r}.pth", "{r}/../x.pth"])
def test_rank_files_lie_below_the_source(tmp_path: Path, pattern: str) -> None:
    with pytest.raises(InvalidMap, match="ranks"):
        load(written(tmp_path, ranks=pattern))


def ranked(source: Path, pattern: str) -> None:
    open_source(str(source), MigrationMap(schema="blockaudit/map/1", name="m", target="llama", ranks=pattern))


@pytest.mark.parametrize("pattern", ["{r}.pth", "in/{r}.pth", "mp_{r}/w.pth"])
def test_a_rank_file_that_a_link_puts_outside_is_refused(tmp_path: Path, pattern: str) -> None:
    outside, source = tmp_path / "outside", tmp_path / "source"
    outside.mkdir()
    source.mkdir()
    for name in ("0.pth", "w.pth"):
        (outside / name).write_bytes(b"x")
    (source / "0.pth").symlink_to(outside / "0.pth")
    (source / "in").symlink_to(outside)
    (source / "mp_0").symlink_to(outside)
    with pytest.raises(RequestError, match="link that leads out"):
        ranked(source, pattern)


def test_two_files_of_one_rank_are_refused(tmp_path: Path) -> None:
    for name in ("w.0.pth", "w.00.pth"):
        (tmp_path / name).write_bytes(b"x")
    with pytest.raises(RequestError, match=r"w\.0\.pth, w\.00\.pth"):
        ranked(tmp_path, "w.{r}.pth")


def test_links_in_a_circle_are_not_gone_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listings: list[str] = []
    listdir = os.listdir

    def counted(path: str) -> list[str]:
        listings.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counted)
    for name in "abc":
        (tmp_path / name).symlink_to(".")
    with pytest.raises(RequestError):
        ranked(tmp_path, "a/" * 60 + "{r}")
    assert len(listings) < 10


@pytest.mark.parametrize(
    ("template", "key"),
    [
        ("".join(f"{{{axis}}}" for axis in "abcdefghijklmnopqrst") + "b{z}a", "1" * 60 + "a"),
        ("{a}" * 12 + "b{z}a", "1" * 60 + "a"),
        ("{a}0" * 20 + "b", "10" * 60 + "a"),
        ("{*}" * 10 + "b{*}a", "a" * 400),
        ("{*}" * 3 + "b{*}a", "a" * 1_000_000),
    ],
)
@pytest.mark.timeout(10)
def test_no_template_takes_long(template: str, key: str) -> None:
    assert templates.bind(template, key) is None


def test_the_rest_of_a_key_is_the_same_wherever_it_stands() -> None:
    assert templates.bind("{*}.of.{*}", "a.of.a") == (("*", "a"),)
    assert templates.bind("{*}.of.{*}", "a.of.b") is None


@pytest.mark.parametrize("field", [{"name": "\ud800"}, {"supply": {"x": "\udc80"}}])
def test_what_cannot_be_written_is_refused(tmp_path: Path, field: dict[str, Any]) -> None:
    with pytest.raises(InvalidMap, match="no file can be written with"):
        load(written(tmp_path, **field))


# -- mistakes ---------------------------------------------------------------------------------------------------------


def rules_of(case: Case, folder: Path) -> dict[str, str]:
    """Names of the errors that are found, with their messages."""
    folder = Path(tempfile.mkdtemp(dir=folder))
    report = json.loads(check(case, folder).out)
    return {f["name"]: f["message"] for f in report["findings"] if f["severity"] == "error"}


@pytest.mark.parametrize("to", ["o_proj", "gate_proj", "embed_tokens", "input_layernorm"])
def test_what_does_not_turn_is_not_permuted(tmp_path: Path, to: str) -> None:
    case = apart()
    case.rule(to).setdefault("ops", []).append(rope("n_heads"))
    assert "is not turned" in rules_of(case, tmp_path)["map-undeclared-layout"]


def test_rows_that_turn_are_counted_where_all_of_them_do(tmp_path: Path) -> None:
    case = apart()
    case.rule(QKV[0])["ops"][0]["rotary_dim"] = 2
    assert "4 of the 4 rows" in rules_of(case, tmp_path)["map-undeclared-layout"]


def test_an_axis_is_not_swapped_with_itself(tmp_path: Path) -> None:
    case = apart()
    case.rule("o_proj")["ops"] = [{"op": "transpose", "dims": [1, -1]}]
    assert "are one" in rules_of(case, tmp_path)["map-undeclared-transpose"]


def test_a_vector_is_not_joined_with_a_scalar(tmp_path: Path) -> None:
    case = apart()
    case.tensors["scalar"] = np.array(1.0, dtype=np.float32)
    case.rule("model.norm")["from"] = ["norm.weight", "scalar"]
    case.rule("model.norm")["ops"] = [{"op": "concat"}]
    assert "alike in every other" in rules_of(case, tmp_path)["map-shape-mismatch"]


@pytest.mark.parametrize("key", ["n_kv_heads", "dim", "n_layers", "vocab_size", "intermediate_size"])
def test_a_size_that_nothing_supplies_is_named(tmp_path: Path, key: str) -> None:
    case = apart()
    case.map["config"] |= {key: None}
    assert "nothing supplies" in rules_of(case, tmp_path)["map-config-lost"]


def test_a_rotary_base_is_not_lost(tmp_path: Path) -> None:
    case = apart()
    assert case.config is not None
    case.config["theta_base"] = 500000.0
    assert "rope_theta" in rules_of(case, tmp_path)["map-config-lost"]
    case.map["config"]["theta_base"] = "rope_theta"
    assert rules_of(case, tmp_path) == {}


@pytest.mark.parametrize("value", [-5, "32", True, [], 1.5, 2**60])
def test_a_size_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    case = apart()
    case.map["config"]["vocab_size"] = None
    case.map["supply"] = {"vocab_size": value}
    assert "the target's config" in rules_of(case, tmp_path)["config-invalid"]


@pytest.mark.parametrize("value", [-1e-5, "1e-5", True, []])
def test_an_epsilon_that_is_none_is_refused(tmp_path: Path, value: Any) -> None:
    case = apart()
    assert case.config is not None
    case.config["norm_epsilon"] = value
    assert "no epsilon" in rules_of(case, tmp_path)["config-invalid"]


def test_what_is_wrong_on_any_source_needs_none(tmp_path: Path) -> None:
    from blockaudit import pipeline

    path = written(tmp_path, rules=[rule("a.{l}.{e}", "b.{l}")])
    report = pipeline.check_map(path)
    assert report.verdict == "rejected"
    assert [f.name for f in report.findings] == ["map-invalid"]
    # A dimension symbol of the target's manifest is no axis that nothing opens.
    assert pipeline.check_map(written(tmp_path, rules=[rule("a", "b.{n_layers+1}")])).verdict == "unverified"
