"""What holds for findings of every rule: order, ranges, reproducibility, selection, and the exit status of several."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockaudit.records.report import SEVERITIES
from tests.support.audit import inspect
from tests.support.checkpoint import (
    Build,
    add,
    cast,
    config,
    drop,
    family,
    fill,
    no_config,
    put,
    rename,
    reshape,
    transpose,
)  # fmt: skip

# Errors, warnings and notes of six groups at once.
SORRY = family(
    "llama",
    drop("model.norm.weight", "*.k_proj.weight"),
    transpose("*.up_proj.weight"),
    add((8,), "model.layers.{0-1}.input_layernorm.bias"),
    put("model.layers.0.self_attn.rotary_emb.inv_freq", [0.5, 0.1]),
    config(layer_norm_eps=1e-3, intermediate_size=12, dtype="bfloat16"),
)
sound = family("llama")


def test_findings_are_in_order(tmp_path: Path) -> None:
    findings = inspect(SORRY(tmp_path)).findings
    keys = [(SEVERITIES.index(f["severity"]), f["code"], f["subject"]) for f in findings]
    assert keys == sorted(keys)
    assert {f["severity"] for f in findings} == {"error", "warning", "note"}
    assert len({f["code"][0] for f in findings}) >= 4


def test_two_runs_are_the_same_bytes(tmp_path: Path) -> None:
    source = SORRY(tmp_path)
    assert inspect(source).out == inspect(source).out
    assert inspect(source, "--level", "values").out == inspect(source, "--level", "values").out


def test_the_summary_counts_the_findings(tmp_path: Path) -> None:
    report = inspect(SORRY(tmp_path)).report
    assert report is not None
    for severity in ("error", "warning", "note"):
        assert report["summary"][f"{severity}s"] == sum(f["severity"] == severity for f in report["findings"])


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (drop("*.q_proj.weight"), "layers 0-1"),
        (reshape((7, 8), "*.k_proj.weight"), None),
        (transpose("*.down_proj.weight"), "layers 0-1"),
        (add((8, 8), "model.layers.{0-1}.self_attn.r_proj.weight"), None),
        (drop("*.input_layernorm.weight"), "layers 0-1"),
        (add((8,), "model.layers.{0-1}.input_layernorm.bias"), None),
    ],
)
def test_a_fault_in_every_layer_is_one_finding(edit: Any, says: str | None, tmp_path: Path) -> None:
    (finding,) = inspect(family("llama", edit)(tmp_path)).findings
    assert len(finding["tensors"]) == 2
    assert says is None or says in finding["message"]


def test_layers_that_lack_it_are_named(tmp_path: Path) -> None:
    """`layers 1`, not `layers 0-1`."""
    (finding,) = inspect(family("llama", drop("*.1.mlp.up_proj.weight"))(tmp_path)).findings
    assert "layers 1" in finding["message"]
    assert "1 of 2" in finding["message"]


BUILDS: dict[str, Build] = {
    "accepted": sound,
    "rejected": family("llama", drop("model.norm.weight")),
    "unverified": family("llama", no_config),
}


@pytest.mark.parametrize(
    ("sources", "status"),
    [
        (["accepted"], 0),
        (["rejected"], 1),
        (["unverified"], 3),
        (["nothing"], 2),
        (["accepted", "unverified"], 3),
        (["unverified", "rejected", "accepted"], 1),
        (["accepted", "nothing", "rejected", "unverified"], 2),
    ],
)
def test_the_worst_of_several_counts(sources: list[str], status: int, tmp_path: Path) -> None:
    import contextlib
    import io

    from blockaudit.cli.main import run

    paths: list[str] = []
    for name in sources:
        if name in BUILDS:
            BUILDS[name](tmp_path / name)
        paths.append(str(tmp_path / name))
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        assert run(["inspect", *paths, "--format", "json"]) == status
    served = [name for name in sources if name in BUILDS]
    reports = [json.loads(line) for line in out.getvalue().splitlines()] if len(sources) > 1 else []
    assert [r["verdict"] for r in reports] == (served if len(sources) > 1 else [])
    assert err.getvalue().count("\n") == len(sources) - len(served)


def test_strict_rejects_warnings_and_no_notes(tmp_path: Path) -> None:
    warned, noted = family("llama", cast("BF16", "*")), family("llama", fill(1.0, "*norm.weight"))
    assert [inspect(warned(tmp_path / "w"), *a).status for a in ((), ("--strict",))] == [0, 1]
    assert [inspect(noted(tmp_path / "n"), *a).status for a in ((), ("--strict",))] == [0, 0]


@pytest.mark.parametrize(
    ("args", "codes"),
    [
        (("--select", "N"), {"N"}),
        (("--select", "N1,S"), {"N", "S"}),
        (("--select", "final-norm-missing"), {"N"}),
        (("--ignore", "N,K,S"), {"C", "T"}),
        (("--select", "N", "--ignore", "N1"), set()),
    ],
)
def test_selected_rules_alone_speak(args: tuple[str, ...], codes: set[str], tmp_path: Path) -> None:
    outcome = inspect(SORRY(tmp_path), *args)
    assert {f["code"][0] for f in outcome.findings} <= codes
    if "final-norm-missing" in args:
        assert outcome.names == ["final-norm-missing"]


def test_what_is_ignored_does_not_reject(tmp_path: Path) -> None:
    source = BUILDS["rejected"](tmp_path)
    assert inspect(source, "--ignore", "N106").status == 0
    assert inspect(source, "--ignore", "final-norm-missing").findings == []


@pytest.mark.parametrize("item", ["Z", "N999", "no-such-rule"])
def test_a_code_that_names_no_rule_is_refused(item: str, tmp_path: Path) -> None:
    outcome = inspect(sound(tmp_path), "--select", item)
    assert outcome.status == 2
    assert item in outcome.err
    assert outcome.report is None


def test_nothing_of_the_source_is_written(tmp_path: Path) -> None:
    source = SORRY(tmp_path)
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in source.rglob("*")}
    inspect(source, "--level", "values")
    assert {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in source.rglob("*")} == before


def test_a_path_that_the_user_did_not_type_is_not_in_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    SORRY(tmp_path / "ckpt")
    monkeypatch.chdir(tmp_path)
    assert str(tmp_path) not in inspect("ckpt").out


def test_names_with_odd_characters(tmp_path: Path) -> None:
    """A key is shown, whatever is in it."""
    outcome = inspect(
        family("llama", rename(r"layers\.1\.mlp\.up_proj", "layers.1.mlp.\u00fcp\u202e \n'\"{x}"))(tmp_path)
    )
    assert outcome.status == 1
    assert sorted(outcome.grave) == ["missing-key", "unexpected-key"]
