"""Epsilons that a run could not tell: the wrong ones that are tried, and the policies that let them pass."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit.pipeline.conform import conform
from blockaudit.records.report import Report
from blockaudit.trace.blind import alternatives
from tests.families import models


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blind")
    models.build("llama", num_hidden_layers=2).save_pretrained(folder / "llama")
    return folder


def run(source: Path, **asked: Any) -> Report:
    return conform(source, **{"device": "cpu", "dtype": "float32", "batch": 1, "seq_len": 8, "mode": "local", **asked})


def policy(folder: Path, **bounds: float) -> str:
    file = folder / "policy.json"
    site = {"site": "*.mlp.norm_in", "reason": "a policy to be found out", **bounds}
    file.write_text(json.dumps({"schema": "blockaudit/tolerance-policy/1", "name": "own", "sites": [site]}))
    return str(file)


@pytest.mark.parametrize(
    ("declared", "tried"),
    [
        (1e-6, (1e-5, 1e-7)),
        (1e-5, (1e-4, 1e-6)),
        (1e-12, (1e-11, 1e-13, 1e-8)),
        (3e-6, (3e-5, 3e-7, 1e-5, 1e-6)),
    ],
)
def test_wrong_epsilons_are_ten_times_off_or_the_next_convention(declared: float, tried: tuple[float, ...]) -> None:
    assert alternatives(declared) == pytest.approx(tried)


def test_nothing_is_blind_where_every_norm_was_asked(folder: Path) -> None:
    report = run(folder / "llama")
    assert report.conformance is not None
    assert (report.verdict, report.conformance.blind) == ("accepted", ())


def test_a_policy_that_passes_a_wrong_epsilon_on_probe_rows_is_named(folder: Path) -> None:
    report = run(folder / "llama", tolerance=policy(folder, rtol=2.0, atol=1.0))
    assert report.conformance is not None
    (blind,) = report.conformance.blind
    assert (blind.field, blind.layers, blind.asked) == ("decoder.mlp.norm_in.epsilon", "0-1", True)
    assert blind.alternative in alternatives(blind.declared)
    assert blind.effect <= blind.tolerance
    (finding,) = report.findings
    assert (finding.name, finding.subject, report.exit_status) == ("probe-insufficient", "decoder.mlp.norm_in", 3)


def test_a_policy_that_shows_it_is_not(folder: Path) -> None:
    report = run(folder / "llama", tolerance=policy(folder, rtol=1e-5, atol=1e-8))
    assert report.conformance is not None
    assert (report.conformance.blind, report.findings) == ((), ())


def test_token_rows_alone_may_show_no_epsilon(folder: Path) -> None:
    """The final norm, whose epsilon no numbers solve, in end-to-end mode; the operators still say what it is."""
    report = run(folder / "llama", mode="end-to-end", dtype="bfloat16")
    assert report.conformance is not None
    assert {(b.field, b.asked) for b in report.conformance.blind} <= {("decoder.final_norm.epsilon", False)}
    assert report.findings == ()
