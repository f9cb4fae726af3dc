"""The section of a conformance run, in JSON and in the terminal."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from blockaudit import resources
from blockaudit.records.conformance import MODES, Conformance, Diagnosis, Difference, Identified, SiteResult
from blockaudit.records.layers import by_template, numbers, ranges, spoken, template
from blockaudit.report import conformance_json, json_report, text
from tests.report import conformance_samples as runs
from tests.report import samples

VALIDATOR = Draft202012Validator(resources.schema("report"))
EVERY = {"clean": runs.CLEAN, "faulty": runs.FAULTY, "wrapper": runs.WRAPPER, "extreme": runs.EXTREME}
each_run = pytest.mark.parametrize("run", EVERY.values(), ids=EVERY)
HOSTILE = "\x1b[2J\u202elayers\udcff\n"


def _section(run: Conformance) -> dict[str, Any]:
    return json.loads(json_report.render(runs.report(run)))["conformance"]


def _text(run: Conformance, **options: Any) -> list[str]:
    return text.render(runs.report(run), **options).splitlines()


# -- JSON -------------------------------------------------------------------------------------------------------------


@each_run
def test_a_run_validates_and_comes_back(run: Conformance) -> None:
    document = json_report.to_dict(runs.report(run))
    VALIDATOR.validate(json.loads(json_report.render(runs.report(run))))
    assert json.loads(json_report.render(runs.report(run))) == document
    assert json_report.to_dict(json_report.from_dict(document)) == document
    assert json_report.render(runs.report(run)) == json_report.render(runs.report(run))


@each_run
def test_no_number_is_one_that_json_lacks(run: Conformance) -> None:
    written = json.dumps(_section(run), allow_nan=False)
    assert not re.search(r"NaN|[Ii]nf\b|Infinity", written)


def test_keys_are_the_contracts() -> None:
    section = _section(runs.FAULTY)
    promised = {
        "device", "reference_depth", "dtype", "mode", "batch", "seq_len", "seed", "first_divergence", "sites",
        "identified", "diagnosis", "telemetry",
    }  # fmt: skip
    assert promised <= section.keys()
    assert section["reference_depth"] == "full"
    first = section["first_divergence"]
    assert {k: first[k] for k in ("site", "mode", "metric", "observed", "tolerance")} == {
        "site": runs.FAULT, "mode": "local", "metric": "rms_rel", "observed": 0.0123, "tolerance": 2.5e-6,
    }  # fmt: skip
    assert {"site", "mode", "max_abs", "rms_rel", "cosine", "tolerance", "passed"} <= section["sites"][0].keys()
    assert section["identified"][1] == {
        "field": runs.EPSILON, "layers": "1", "value": 1e-5, "interval": [9.97e-6, 1.002e-5], "declared": 1e-6,
        "evidence": "probe rows of tiny variance",
    }  # fmt: skip
    assert section["diagnosis"] == [
        {"field": runs.EPSILON, "layers": "1", "declared": 1e-6, "value": 1e-5, "explains": 0.99984,
         "rule": "epsilon-mismatch", "group": 0}
    ]  # fmt: skip
    assert section["telemetry"][0]["rho"] == {"p05": 0.4, "p50": 0.8, "p95": 1.2, "max": 1.6}
    assert section["non_finite"] == [
        {"site": "layers.2.mlp.branch", "count": 12}, {"site": "layers.2.mlp.update", "count": 12},
    ]  # fmt: skip


def test_nothing_that_a_record_holds_is_left_out() -> None:
    section = _section(runs.EXTREME)
    renamed = {"depth": "reference_depth", "first": "first_divergence"}
    assert section.keys() == {renamed.get(name, name) for name in Conformance.__struct_fields__}
    held = {*SiteResult.__struct_fields__, *Difference.__struct_fields__} - {"difference"}
    assert section["sites"][0].keys() == held


def test_a_run_that_conforms_has_no_first_divergence() -> None:
    section = _section(runs.CLEAN)
    assert (section["first_divergence"], section["explained"], section["diagnosis"]) == (None, None, [])


def test_a_wrappers_branches_compare_nothing() -> None:
    passed = {s["site"]: s["passed"] for s in _section(runs.WRAPPER)["sites"]}
    assert {passed[name] for name in passed if name.endswith(".branch")} == {None}


def test_numbers_have_six_digits() -> None:
    section = _section(runs.EXTREME)
    assert section["telemetry"][0]["rho"] == {"p05": None, "p50": 0.123457, "p95": None, "max": None}
    assert section["identified"][0]["value"] == {"a": [1.23457, None]}
    assert section["identified"][0]["interval"] == [None, None]
    assert section["first_divergence"]["observed"] is None
    assert section["policy"]["rtol"] == {"float32": 1.3e-6, "int8": None}


@given(st.none() | st.floats())
def test_a_figure_is_finite_and_near(number: float | None) -> None:
    found = conformance_json.figure(number)
    if number is None or not math.isfinite(number):
        assert found is None
    else:
        assert found == pytest.approx(number, rel=1e-5)
        assert conformance_json.figure(found) == found


PLACES = [
    (), ("first_divergence",), ("sites", 0), ("identified", 0), ("diagnosis", 0), ("telemetry", 0),
    ("telemetry", 0, "rho"), ("non_finite", 0), ("growth", 0),
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_the_schema_refuses_what_it_does_not_know(place: tuple[str | int, ...]) -> None:
    document = json_report.to_dict(runs.report(runs.FAULTY))
    part: Any = document["conformance"]
    for key in place:
        part = part[key]
    part["surprise"] = 1
    assert not VALIDATOR.is_valid(document)


def test_the_section_belongs_to_its_kind() -> None:
    assert "conformance" not in json_report.to_dict(samples.ACCEPTED)
    bare = json_report.to_dict(samples.report(kind="conformance"))
    assert not VALIDATOR.is_valid(bare)


# -- text -------------------------------------------------------------------------------------------------------------


def test_a_clean_run_reads_like_this() -> None:
    assert (
        "\n".join(_text(runs.CLEAN))
        == """\
ACCEPTED at trace level  fixtures/tiny_llama  (llama, chosen by config)
  safetensors, 1 file, 21 tensors, 1.23 M parameters, 2.47 MB  (BF16 20, F32 1)

Conformance
  candidate   LlamaForCausalLM (hf)
  reference   full reference
  run         local, layer and end-to-end in float32 on cpu, batch 2 x 64 tokens, seed 0
  policy      default, measured
  outcome     all 126 comparisons within tolerance

Identified from the numbers
  1 statement as declared

Updates by depth  layer  rho p50  rho p95  rho max  cosine p05  cosine p50  cosine p95  growth p50
  self_attention      0      0.8      1.2      1.6      -0.110      +0.021      +0.130         1.4
                      1      0.4      0.6      0.8      -0.110      +0.021      +0.130         1.2
                      2    0.267      0.4    0.533      -0.110      +0.021      +0.130        1.13
  mlp                 0      0.8      1.2      1.6      -0.110      +0.021      +0.130         1.4
                      1      0.4      0.6      0.8      -0.110      +0.021      +0.130         1.2
                      2    0.267      0.4    0.533      -0.110      +0.021      +0.130        1.13
  growth of the state over the stack: p50 2.4, max 3.36

0 errors, 0 warnings, 0 notes; 0 fields checked, 0 unknown"""
    )


def test_a_faulty_run_reads_like_this() -> None:
    lines = _text(runs.FAULTY)
    begin, end = lines.index("Conformance"), next(i for i, x in enumerate(lines) if x.startswith("Updates by depth"))
    assert (
        "\n".join(lines[begin:end])
        == """\
Conformance
  candidate   LlamaForCausalLM (hf)
  reference   full reference
  run         local, layer and end-to-end in float32 on cpu, batch 2 x 64 tokens, seed 0
  policy      default, measured
  outcome     39 of 126 comparisons fail

First divergence  layers.1.self_attention.norm_in  local, float32, tiny-variance rows
                                      metric        observed  tolerance
    layers.0.mlp.state                RMS relative  1.25e-07  2.5e-06    ok
    layers.0.state                    RMS relative  1.25e-07  2.5e-06    ok
    layers.1.self_attention.residual  RMS relative  1.25e-07  2.5e-06    ok
  > layers.1.self_attention.norm_in   RMS relative  0.0123    2.5e-06    FAILS
    layers.1.self_attention.branch    RMS relative  1.25e-07  2.5e-06    ok
    layers.1.self_attention.update    RMS relative  1.25e-07  2.5e-06    ok
    layers.1.self_attention.sum       RMS relative  1.25e-07  2.5e-06    ok
  worst at token 17, channel 3; max abs 0.0492, RMS relative 0.0123, cosine 0.9877, 2.05e+05 ulp;
  noise floor 3.1e-07

Failing sites                                            layers  metric        worst   tolerance
  local float32       layers.{l}.self_attention.norm_in  1       RMS relative  0.0123  2.5e-06
  layer float32       layers.{l}.self_attention.norm_in  1       RMS relative  0.0123  2.5e-06
  end-to-end float32  layers.{l}.self_attention.norm_in  1       RMS relative  0.0123  2.5e-06
  and 36 comparisons after these, as what feeds them already differs

Identified from the numbers
  decoder.self_attention.norm_in.epsilon  layer 1  1e-05, between 9.97e-06 and 1.002e-05  declared 1e-06
  1 statement as declared
  decoder.final_norm.epsilon: unknown, between 0 and 3e-05

Diagnosis: edits of the manifest that bring the candidate back, best first
   99.98 %  decoder.self_attention.norm_in.epsilon  layer 1  1e-06 -> 1e-05  [epsilon-mismatch]
"""
    )
    assert lines[-6:-1] == [
        "Not compared",
        "  missing from the candidate: layers.{l}.mlp.norm_out (layers 0-2)",
        "  unknown to the manifest: layers.0.mlp.gate",
        "  padding: the candidate takes no attention mask",
        "",
    ]


def test_brief_is_one_sentence() -> None:
    lines = text.render(runs.report(runs.FAULTY, verdict="rejected", findings=(runs.DIVERGENCE,)), brief=True)
    assert lines.splitlines()[-2:] == [
        "39 of 126 comparisons fail; full reference, local, layer and end-to-end in float32 on cpu, batch 2 x",
        "64 tokens, seed 0",
    ]
    assert "Updates by depth" not in lines


def test_two_dtypes_are_named() -> None:
    both = runs.run(sites=(runs.site("embed"), runs.site("embed", "end-to-end", dtype="bfloat16")))
    assert any("in float32 and bfloat16 on cpu" in line for line in _text(both))


def test_a_wrapper_says_why_and_what_it_does_not_compare() -> None:
    whole = " ".join(" ".join(_text(runs.WRAPPER)).split())
    assert "wrapper reference (the branches are the candidate's own): the library has no decoder" in whole
    assert "sites without a reference of their own: layers.{l}.self_attention.branch (layers 0-2);" in whole
    assert "all 108 comparisons within tolerance" in whole


@pytest.mark.parametrize(("layers", "branches", "rows"), [(2, 2, 4), (8, 2, 16), (32, 2, 16), (96, 3, 15), (40, 5, 20)])
def test_updates_are_a_screenful_with_both_ends(layers: int, branches: int, rows: int) -> None:
    found = tuple(runs.update(f"layers.{n}.b{k}.update", 0.5) for n in range(layers) for k in range(branches))
    lines = _text(runs.run(telemetry=found, growth=()))
    begin = next(i for i, line in enumerate(lines) if line.startswith("Updates by depth"))
    table = lines[begin + 1 : lines.index("", begin)]
    assert len(table) == rows
    shown = [int(line.removeprefix(f"  b{k}").split()[0]) for line in table[: rows // branches] for k in (0,)]
    assert (shown[0], shown[-1]) == (0, layers - 1)


@pytest.mark.parametrize("width", [60, 80, 100])
def test_a_narrow_terminal_gets_fewer_columns(width: int) -> None:
    lines = _text(runs.run(telemetry=runs.telemetry(32)), width=width)
    begin = next(i for i, line in enumerate(lines) if line.startswith("Updates by depth"))
    assert all(len(line) <= width for line in lines[begin : lines.index("", begin)])


def test_no_edit_that_explains_is_said() -> None:
    unexplained = runs.run(sites=runs.SITES, first=runs.FAULTY.first, explained=False)
    assert "  no edit of the manifest explains the divergence" in _text(unexplained)
    assert "Diagnosis" not in _text(runs.CLEAN)


def test_edits_that_work_together_say_so() -> None:
    edits = tuple(Diagnosis(f, "1", 1, 2, 0.99999, group=1) for f in ("a.epsilon", "b.epsilon"))
    lines = [line for line in _text(runs.run(diagnosis=edits, explained=True)) if "-> 2" in line]
    assert len(lines) == 2
    assert all("99.99 %" in line and "(jointly)" in line for line in lines)


def test_failures_of_one_kind_are_one_row_with_their_layers() -> None:
    sites = tuple(
        runs.site(name, mode, 0.1 if "0" in name else 0.2, not name.endswith(".mlp.norm_in"))
        for mode in MODES[:1]
        for name in runs.names()
    )
    (row,) = [line for line in _text(runs.run(sites=sites, first=None)) if line.startswith("  local float32")]
    assert row.split() == ["local", "float32", "layers.{l}.mlp.norm_in", "0-2", "RMS", "relative", "0.2", "2.5e-06"]


def test_what_only_follows_is_a_number() -> None:
    """Every site of layers 1 and 2 fails in `layer` mode: the first of each layer alone is its own."""
    sites = tuple(runs.site(n, "layer", 0.1, not n.startswith(("layers.1.", "layers.2."))) for n in runs.names())
    lines = _text(runs.run(sites=sites))
    assert [line.split()[2:4] for line in lines if line.startswith("  layer float32")] == [
        ["layers.{l}.self_attention.residual", "1-2"]
    ]
    assert "  and 24 comparisons after these, as what feeds them already differs" in lines


@each_run
@pytest.mark.parametrize("width", [20, 100])
def test_colour_changes_no_word(run: Conformance, width: int) -> None:
    painted = text.render(runs.report(run), color=True, width=width)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", painted)
    assert [line.rstrip() for line in bare.splitlines()] == _text(run, width=width)


def test_hostile_names_are_shown_and_never_sent() -> None:
    bad = runs.site(HOSTILE, passed=False, dtype=HOSTILE, metric=HOSTILE, probe=HOSTILE)
    run = runs.run(
        sites=(bad,), first=bad, missing=(HOSTILE,), unexpected=(HOSTILE,), silent=(HOSTILE,), failure=HOSTILE,
        candidate=HOSTILE, device=HOSTILE, depth_reason=HOSTILE, mode=HOSTILE, policy={"name": HOSTILE},
        identified=(Identified(HOSTILE, "", HOSTILE, None, "x"), Identified(HOSTILE, "", None)),
        diagnosis=(Diagnosis(HOSTILE, "1", HOSTILE, HOSTILE, 0.5, HOSTILE),), growth=((HOSTILE, runs.quantiles(1.0)),),
    )  # fmt: skip
    for brief in (False, True):
        assert text.render(runs.report(run), width=1000, brief=brief).replace("\n", "").isprintable()


# -- names of layers --------------------------------------------------------------------------------------------------


@given(st.sets(st.integers(0, 99)))
def test_ranges_and_numbers_are_inverse(layers: set[int]) -> None:
    assert numbers(ranges(layers)) == layers


def test_layers_read_well() -> None:
    assert [spoken(s) for s in ("", "1", "0-3", "1, 4-6")] == ["", "layer 1", "layers 0-3", "layers 1, 4-6"]
    assert template("decoder.layers.0.cross_attention.norm_in") == "decoder.layers.{l}.cross_attention.norm_in"
    assert by_template(["embed", "layers.0.state", "layers.2.state"]) == {"embed": [], "layers.{l}.state": [0, 2]}


@pytest.mark.parametrize(
    ("value", "declared", "interval", "differs"),
    [
        (1e-5, 1e-6, (9e-6, 1.1e-5), True),
        (1.02e-6, 1e-6, (9e-7, 1.1e-6), False),
        (None, 1e-6, (1e-5, 1e-4), False),
        ("rmsnorm", "layernorm", None, True),
        ("rmsnorm", "rmsnorm", None, False),
        (30.0, None, None, False),
    ],
)
def test_numbers_contradict_what_their_interval_excludes(
    value: Any, declared: Any, interval: tuple[float, float] | None, differs: bool
) -> None:
    assert Identified("f", "", value, interval, declared).differs is differs
