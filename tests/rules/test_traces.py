"""V: rules of trace conformance, on runs made by hand; tests/trace/test_cases.py has them through the command."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from blockaudit.reconcile.audit import Audit
from blockaudit.records.conformance import Blind, Conformance, Difference, Identified
from blockaudit.records.contract import ContractRow, Statement
from blockaudit.records.report import Finding
from blockaudit.rules import registry
from tests.report import conformance_samples as runs

V = [e for e in registry.entries() if e.rule.code.startswith("V")]
CLEAN = runs.CLEAN
EPSILON, NORM = runs.EPSILON, "decoder.self_attention.norm_in"


def found(run: Conformance | None, *rows: ContractRow) -> list[Finding]:
    """What the V rules say of a run, beside a contract of these rows."""
    reconciled = cast("Any", SimpleNamespace(rows=rows))
    audit = Audit(cast("Any", None), {}, "trace", reconciled, conformance=run)
    return list(registry.run(V, audit))


def unknown(layers: str = "0-2", field: str = EPSILON, **changed: Any) -> Identified:
    told: dict[str, Any] = {"value": None, "interval": (0.0, 3e-5), "declared": 1e-6, "evidence": "token rows"}
    return Identified(field, layers, **{**told, **changed})


def known(layers: str = "0-2", field: str = EPSILON) -> Identified:
    return Identified(field, layers, 1e-6, (9e-7, 1.1e-6), 1e-6)


def blind(layers: str = "0-2", field: str = EPSILON) -> Blind:
    return Blind(field, layers, 1e-6, 1e-5, "rms_rel", 4.5e-4, 1e-2, "bfloat16")


def executed(field: str = EPSILON) -> ContractRow:
    return ContractRow(field, {"executed": Statement(1e-6, "operators", "operators")}, None)


FIRES: dict[str, tuple[str, Conformance, str, list[str]]] = {
    # what: rule, run, subject, parts of message and evidence
    "a site fails": (
        "trace-divergence", runs.run(sites=runs.SITES, first=runs.FAULTY.first, diagnosis=runs.FAULTY.diagnosis),
        runs.FAULT,
        ["in local mode: rms_rel 0.0123 on tiny-variance rows where 2.5e-06 is allowed", "39 of 126 comparisons fail",
         f"best explained by {EPSILON} 1e-05 for 1e-06 in layer 1", "float32 on cpu against the full reference"],
    ),
    "a site fails and the first is not named": (
        "trace-divergence", runs.run(sites=runs.SITES), runs.FAULT, ["39 of 126"],
    ),
    "nothing explains it": (
        "trace-divergence", runs.run(sites=runs.SITES, explained=False), runs.FAULT,
        ["no edit of the manifest explains it"],
    ),
    "a site is finite on one side alone": (
        "trace-divergence",
        runs.run(sites=(runs.site(
            "embed", metric="non_finite", observed=3.0, tolerance=0.0, passed=False,
            difference=Difference(0.1, 0.1, 0.9, non_finite=3),
        ),)),
        "embed", ["in local mode: 3 numbers are finite on one side alone"],
    ),
    "an observation is no number": (
        "trace-divergence", runs.run(sites=(runs.site("embed", observed=float("nan"), passed=False),)), "embed",
        ["rms_rel no finite number"],
    ),
    "NaN in the candidate alone": (
        "trace-non-finite", runs.run(non_finite=(("layers.2.mlp.branch", 12), ("logits", 96))), "layers.2.mlp.branch",
        ["12 numbers are NaN or infinite", "so are numbers of one more site"],
    ),
    "one infinity": ("trace-non-finite", runs.run(non_finite=(("logits", 1),)), "logits", ["1 number is NaN"]),
    "a site in every layer": (
        "site-missing", runs.run(missing=tuple(f"layers.{n}.mlp.norm_out" for n in (0, 1, 2, 5))),
        "layers.{l}.mlp.norm_out", ["the candidate gives no such value in layers 0-2, 5"],
    ),
    "a site outside the layers": ("site-missing", runs.run(missing=("embed_norm",)), "embed_norm", ["no such value"]),
    "the run ended": (
        "site-missing", runs.run(failure="the candidate raised ValueError", missing=("final_norm", "logits")), "run",
        ["ended early: the candidate raised ValueError, and 2 sites were not reached"],
    ),
    "an input was written into": (
        "inputs-changed", runs.run(touched=("input_ids",)), "input_ids", ["the candidate changed input_ids"],
    ),
    "a rank is gone": (
        "site-missing", runs.run(unfinished="rank 1 of 2 is gone"), "run", ["not every layer was compared: rank 1"],
    ),
    "a recorded trace lacks a site": (
        "site-missing", runs.run(recorded=True, missing=("embed",)), "embed", ["no such value"],
    ),
    "no row decides": (
        "probe-insufficient", runs.run(identified=(unknown(),)), NORM,
        ["declared 1e-06, and the rows do not tell", "between 0 and 3e-05", "in layers 0-2", "token rows"],
    ),
    "no row decides in one layer": (
        "probe-insufficient", runs.run(identified=(unknown("1"), known("0, 2"))), NORM, ["in layer 1"],
    ),
    "a wrong value would pass": (
        "probe-insufficient", runs.run(identified=(), blind=(blind(),)), NORM,
        ["1e-05 in its place would pass in layers 0-2", "rms_rel moves by 0.00045 in bfloat16, and 0.01 is allowed"],
    ),
    "both": ("probe-insufficient", runs.run(identified=(unknown(),), blind=(blind(),)), NORM, ["do not tell"]),
    "of a norm outside the layers": (
        "probe-insufficient", runs.run(identified=(unknown("", "decoder.final_norm.epsilon"),)), "decoder.final_norm",
        ["do not tell"],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "run", "subject", "says"), FIRES.values(), ids=FIRES)
def test_one_finding_of_one_rule(rule: str, run: Conformance, subject: str, says: list[str]) -> None:
    (finding,) = found(run)
    assert (finding.name, finding.subject) == (rule, subject)
    for part in says:
        assert part in f"{finding.message} | {finding.evidence}"
    mild = rule == "probe-insufficient" or run.recorded or bool(run.unfinished)
    assert finding.severity == ("warning" if mild else "error")
    assert registry.leaves_unverified([finding]) == (rule in ("probe-insufficient", "site-missing"))


NEAR: dict[str, tuple[str, Conformance | None]] = {
    "no run": ("trace-divergence", None),
    "every site passes": ("trace-divergence", CLEAN),
    "a site at its tolerance": ("trace-divergence", runs.run(sites=(runs.site("embed", rms=2.5e-6),))),
    "a wrapper's branches compare nothing": ("trace-divergence", runs.WRAPPER),
    "nothing but finite numbers": ("trace-non-finite", CLEAN),
    "a site that the manifest does not know": ("site-missing", runs.run(unexpected=("layers.0.mlp.gate",))),
    "every site is there": ("site-missing", CLEAN),
    "no input was written into": ("inputs-changed", CLEAN),
    "every epsilon is told": ("probe-insufficient", CLEAN),
    "another field is unknown": (
        "probe-insufficient", runs.run(identified=(unknown(field=f"{NORM}.variance_correction", declared=0),)),
    ),
    "a norm without a declared epsilon": ("probe-insufficient", runs.run(identified=(unknown(declared=None),))),
    "the tolerance is wide and the epsilon is told all the same": ("probe-insufficient", runs.run(blind=(blind(),))),
    "undecided on the tokens and told by the probes": (
        "probe-insufficient", runs.run(identified=(unknown("0-2"), known("0-1"), known("2"))),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("rule", "run"), NEAR.values(), ids=NEAR)
def test_the_nearest_run_fires_nothing(rule: str, run: Conformance | None) -> None:
    assert rule not in [f.name for f in found(run)]
    assert found(run) == []


def test_several_kinds_of_site_are_several_findings() -> None:
    missing = tuple(f"layers.{n}.{b}.norm_out" for n in range(2) for b in ("self_attention", "mlp"))
    assert [f.subject for f in found(runs.run(missing=missing))] == [
        "layers.{l}.mlp.norm_out", "layers.{l}.self_attention.norm_out",
    ]  # fmt: skip


def test_sites_that_are_open_for_one_reason_are_one_finding() -> None:
    """Their intervals differ, as their rows do."""
    fields = (EPSILON, "decoder.mlp.norm_in.epsilon")
    undecided = tuple(unknown(field=f, interval=(0.0, 1e-5 * (i + 1))) for i, f in enumerate(fields))
    (finding,) = found(runs.run(identified=undecided))
    assert finding.message.endswith("in layers 0-2; the same at decoder.mlp.norm_in")


def test_what_the_operators_of_this_candidate_show_is_checked() -> None:
    open_run = runs.run(identified=(unknown(),))
    assert found(open_run, executed()) == []
    assert [f.name for f in found(open_run, executed("decoder.mlp.norm_in.epsilon"))] == ["probe-insufficient"]
    recorded = runs.run(identified=(unknown(),), recorded=True)
    assert [f.name for f in found(recorded, executed())] == ["probe-insufficient"]


def test_numbers_of_a_finding_are_six_digits() -> None:
    odd = runs.site("embed", observed=0.123456789, tolerance=1 / 3, passed=False)
    (finding,) = found(runs.run(sites=(odd,)))
    assert (finding.expected, finding.observed) == (0.333333, 0.123457)
