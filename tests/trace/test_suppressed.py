"""Waivers and baselines of a conformance run: what was known stays known, and one layer more is new."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from tests.cli.conftest import Outcome
from tests.cli.conftest import blockaudit as blockaudit
from tests.cli.suppressing import waiver
from tests.families import models
from tests.support.checkpoint import drop, family

Run = Callable[..., Outcome]
USER = """
from transformers import AutoModelForCausalLM

def built(source, layers, device, dtype):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").to(device).eval()
    for layer in layers:
        model.model.layers[layer].input_layernorm.variance_epsilon = 1e-2
    return model

def one(source, *, device, dtype):
    return built(source, (1,), device, dtype)

def two(source, *, device, dtype):
    return built(source, (0, 1), device, dtype)
"""
WAIVERS = """
[[waivers]]
rule = "N201"
scope = "decoder.self_attention.norm_in"
reason = "known"
owner = "norms"
expires = 2999-01-01

[[waivers]]
rule = "trace-divergence"
scope = "layers.1.*"
reason = "known"
owner = "norms"
expires = 2999-01-01
"""


@pytest.fixture
def conform(blockaudit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Outcome]:
    monkeypatch.chdir(tmp_path)
    models.build("llama").save_pretrained(tmp_path / "model")
    (tmp_path / "user.py").write_text(USER, encoding="utf-8")

    def run(candidate: str, *argv: str) -> Outcome:
        size = ("--device", "cpu", "--batch", "2", "--seq-len", "8", "--dtype", "float32", "--mode", "local")
        return blockaudit("conform", "model", "--candidate", f"user.py:{candidate}", *size, "--format", "json", *argv)

    return run


def test_a_baseline_of_a_run(conform: Callable[..., Outcome]) -> None:
    assert conform("one", "--write-baseline", "known.json").status == 0
    known = json.loads(Path("known.json").read_text())
    assert (known["kind"], [f["code"] for f in known["findings"]]) == ("conformance", ["N201", "V101"])
    again = conform("one", "--baseline", "known.json")
    assert (again.status, json.loads(again.out)["findings"]) == (0, [])
    spread = conform("two", "--baseline", "known.json")
    assert spread.status == 1
    assert {f["code"] for f in json.loads(spread.out)["findings"]} == {"N201", "V101"}


def test_waivers_of_a_run(conform: Callable[..., Outcome], tmp_path: Path) -> None:
    Path("blockaudit.toml").write_text(WAIVERS)
    assert conform("one").status == 0
    # The waiver of the divergence is of layer 1, and layer 0 fails as well.
    spread = json.loads(conform("two").out)
    (stands,) = spread["findings"]
    assert (stands["code"], stands["also"]) == ("V101", ["layers.1.self_attention.norm_in"])
    assert [s["finding"]["code"] for s in spread["suppressed"]] == ["N201"]


def test_nothing_is_written_over_what_a_run_reads(conform: Callable[..., Outcome], tmp_path: Path) -> None:
    Path("t.json").write_text("{}")
    for argv in (("--report", "t.json", "--tokens", "t.json"), ("--write-baseline", "t.json", "--tolerance", "t.json")):
        outcome = conform("one", *argv)
        assert (outcome.status, outcome.out) == (2, "")
        assert f"{argv[0]} 't.json' is the file of {argv[2]} as well" in outcome.err
    assert Path("t.json").read_text() == "{}"
    before = Path("user.py").read_text()
    assert conform("one", "--trace-out", "user.py").status == 2
    assert Path("user.py").read_text() == before


GONE = "model.layers.1.self_attn.q_proj.weight"


@pytest.mark.parametrize(
    ("argv", "held"), [((), "waived"), (("--no-config", "--write-baseline", "known.json"), "in the baseline")]
)
def test_a_finding_that_does_not_count_stops_a_run_all_the_same(
    blockaudit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, argv: tuple[str, ...], held: str
) -> None:
    monkeypatch.chdir(tmp_path)
    family("llama", drop(GONE, "model.layers.0.mlp.up_proj.weight"))(tmp_path / "lost")
    Path("blockaudit.toml").write_text(waiver(rule="missing-key", expires="2999-01-01"))
    outcome = blockaudit("conform", "lost", "--device", "cpu", "--quiet", *argv)
    assert outcome.status == 3
    said = " ".join(outcome.out.split())
    assert f"nothing was run, for K101 missing-key ({held}), K101 missing-key ({held}) stand" in said
    assert "witnesses" not in said


def test_one_finding_that_stops_a_run(blockaudit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    family("llama", drop(GONE))(tmp_path / "lost")
    Path("blockaudit.toml").write_text(waiver(rule="missing-key", expires="2999-01-01"))
    said = blockaudit("conform", "lost", "--device", "cpu", "--format", "markdown").out
    assert "nothing was run, for K101 missing-key (waived) stands" in said.replace("`", "")
