"""What is noted beside a run: update geometry, growth, laws, numbers that are not finite, and what nobody compared."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import torch

from blockaudit.pipeline.conform import conform
from blockaudit.records.conformance import MODES, Conformance, Law
from blockaudit.records.report import Report
from blockaudit.reference import algebra
from blockaudit.trace import notes, telemetry, tokens
from blockaudit.trace.notes import Notes
from tests.families import models

USER = """
from transformers import AutoModelForCausalLM

def nan(source, *, device, dtype):
    model = AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager").to(device).eval()
    mlp = model.model.layers[1].mlp
    own = mlp.forward
    mlp.forward = lambda x: own(x) / (x[..., :1] - x[..., :1])
    return model
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("notes")
    for family in ("llama", "bert"):
        models.build(family).save_pretrained(folder / family)
    (folder / "user.py").write_text(USER, encoding="utf-8")
    return folder


def run(source: Path, **asked: Any) -> Report:
    return conform(source, **{"device": "cpu", "dtype": "float32", "batch": 2, "seq_len": 8, **asked})


@pytest.fixture(scope="module")
def clean(folder: Path) -> Report:
    return run(folder / "llama", algebra=True)


def of(report: Report) -> Conformance:
    assert report.conformance is not None
    return report.conformance


def test_the_geometry_is_that_of_the_model_itself(folder: Path, clean: Report) -> None:
    model = models.build("llama")
    seen: dict[str, torch.Tensor] = {}
    layer = model.model.layers[1]
    layer.input_layernorm.register_forward_pre_hook(lambda m, given: seen.update(x=given[0]))
    layer.self_attn.register_forward_hook(lambda m, given, out: seen.update(u=out[0]))
    with torch.no_grad():
        model(**tokens.whole(tokens.tokens(96, 2, 8, 0)).tensors())
    expected = telemetry.update("layers.1.self_attention.update", seen["x"], seen["u"], seen["x"] + seen["u"])
    (found,) = [t for t in of(clean).telemetry if t.site == expected.site]
    for name in ("rho", "cosine", "growth"):
        assert getattr(found, name).p50 == pytest.approx(getattr(expected, name).p50, rel=1e-4)
        assert getattr(found, name).max == pytest.approx(getattr(expected, name).max, rel=1e-4)


def test_every_update_has_its_line_and_every_stack_its_growth(clean: Report) -> None:
    named = [f"layers.{n}.{branch}.update" for n in range(3) for branch in ("self_attention", "mlp")]
    assert [t.site for t in of(clean).telemetry] == named
    ((stack, growth),) = of(clean).growth
    assert stack == "decoder"
    assert 0 < growth.p05 <= growth.p50 <= growth.max


def test_the_laws_hold_on_the_run_and_on_fixtures(clean: Report) -> None:
    assert clean.verdict == "accepted"
    laws = {law.name: law for law in of(clean).laws}
    assert "telescoping sum, decoder" in laws
    assert "ordered Jacobian product, FP64 fixture" in laws
    assert all(law.holds for law in laws.values())
    assert laws["telescoping sum, decoder"].error > 0


def test_of_a_post_ln_stack_only_the_energy_is_held_to(folder: Path) -> None:
    found = of(run(folder / "bert", algebra=True, mode="local"))
    assert [law.name for law in found.laws if law.name.endswith(", encoder")] == ["energy identity, encoder"]
    assert "algebra of encoder: energy alone: a norm stands between two adds" in found.silent


def test_a_broken_law_that_no_finding_explains_leaves_the_run_unverified(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Law("energy identity", 1.0, 1e-9, False)
    monkeypatch.setattr(algebra, "check", lambda: (broken,))
    report = run(folder / "llama", algebra=True, mode="local")
    assert (report.verdict, report.findings) == ("unverified", ())


def test_numbers_that_are_not_finite_are_counted_once_a_site(folder: Path) -> None:
    report = run(folder / "llama", candidate=f"{folder / 'user.py'}:nan", mode="local")
    found = of(report).non_finite
    assert found[0] == ("layers.1.mlp.branch", 2 * 8 * 32)
    assert len({site for site, _ in found}) == len(found)
    (finding,) = [f for f in report.findings if f.name == "trace-non-finite"]
    assert (finding.subject, finding.severity, report.exit_status) == ("layers.1.mlp.branch", "error", 1)


def test_a_clean_run_of_everything_is_silent_about_nothing(clean: Report) -> None:
    assert of(clean).silent == ()
    assert of(clean).non_finite == ()


def test_what_was_not_asked_for_is_said(folder: Path) -> None:
    found = of(run(folder / "llama", mode="end-to-end", layers="1:2"))
    assert found.silent == (
        "local and layer comparisons were not asked for, and no norm was held to probe rows",
        "no layer but 1 was compared (--layers)",
    )
    assert {t.site for t in found.telemetry} == {f"layers.1.{b}.update" for b in ("self_attention", "mlp")}


def test_tokens_that_a_router_left_open_are_counted(clean: Report) -> None:
    noted = Notes(SimpleNamespace(layers=None), strayed={"end-to-end": (5, 16)}, sites={"logits"}, stacks={"decoder"})
    (said,) = notes.silent([noted], frozenset(MODES), of(clean).sites, full=True, stacks=["decoder"])
    assert said.startswith("in end-to-end mode 5 of 16 tokens went to other experts")


def test_progress_counts_layers(folder: Path) -> None:
    ticks: list[tuple[str, int, int]] = []
    run(folder / "llama", mode="local", progress=lambda *tick: ticks.append(tick))
    # Embedding, three layers, head; the batch and the padded rows beside it.
    assert [(done, total) for _, done, total in ticks] == [(n, 5) for n in (1, 2, 3, 4, 5)] * 2
    assert ticks[1][0] == "float32: decoder, layer 0"


def test_a_statement_of_every_layer_names_none(clean: Report) -> None:
    rows = {row.field: row.statements["measured"] for row in clean.contract if "measured" in row.statements}
    epsilon = rows["decoder.self_attention.norm_in.epsilon"]
    assert (epsilon.value, epsilon.layers) == (models.build("llama").config.rms_norm_eps, "")
