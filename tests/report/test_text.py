from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from blockaudit.records.report import Finding, Report, Subject, Suppressed
from blockaudit.report import text
from blockaudit.report.escape import escape
from blockaudit.report.layout import cells, cut, pad
from blockaudit.report.words import quantity, several, shortened, size, value
from tests.report import samples

HOSTILE = "\x1b[2J\u202edecoder\udcff\n[bold red]x[/]"
SHOWN = "\\x1b[2J\\u202edecoder\\udcff\\n[bold red]x[/]"
SGR = re.compile(r"\x1b\[[0-9;]*m")


def _lines(report: Report, width: int = 100) -> list[str]:
    return text.render(report, width=width).splitlines()


def test_verdict_line() -> None:
    assert _lines(samples.ACCEPTED)[0] == ("ACCEPTED at headers level  fixtures/tiny_llama  (llama, chosen by config)")
    assert _lines(samples.ACCEPTED)[1] == (
        "  safetensors, 1 file, 21 tensors, 1.23 M parameters, 2.47 MB  (BF16 20, F32 1)"
    )


def test_rejection_says_how_many_and_why() -> None:
    assert _lines(samples.REJECTED)[1] == "  1 error: N201 epsilon-mismatch: epsilon differs in layers 0-31"
    twice = samples.report(verdict="rejected", findings=(samples.EPSILON, samples.EPSILON))
    assert _lines(twice)[1].startswith("  2 errors, first: N201 epsilon-mismatch")
    bias = msgspec.structs.replace(samples.EPSILON, code="N104", name="norm-bias-missing")
    more = samples.report(verdict="rejected", findings=(samples.EPSILON, bias, bias))
    assert "  3 errors, first: N201 epsilon-mismatch: " in _lines(more, 200)[1]
    assert _lines(more, 200)[1].endswith("; then N104 norm-bias-missing (2 times)")


def test_the_verdict_says_what_does_not_count() -> None:
    waived = Suppressed(samples.EPSILON, "waiver", "retrained", "norms", "2026-12-31")
    known = Suppressed(samples.EPSILON, "baseline")
    first = "ACCEPTED at headers level, 1 finding waived  fixtures/tiny_llama"
    assert _lines(samples.report(suppressed=(waived,)))[0].startswith(first)
    both = "ACCEPTED at headers level, 1 finding waived, 2 in the baseline  fixtures/tiny_llama"
    assert _lines(samples.report(suppressed=(known, waived, known)))[0].startswith(both)


def test_strict_rejection_names_the_warning() -> None:
    strict = samples.report(verdict="rejected", findings=(samples.DTYPE,))
    assert _lines(strict)[1] == "  1 warning: S104 dtype-mismatch: two dtypes"


def test_unverified_says_why() -> None:
    assert _lines(samples.UNVERIFIED)[1] == (
        "  no witness speaks of 1 field that this level requires: decoder.mlp.norm_in.epsilon"
    )
    unknown = Finding("K110", "unknown-architecture", "warning", "checkpoint", "no manifest fits")
    assert _lines(samples.report(verdict="unverified", manifest=None, findings=(unknown,)))[:2] == [
        "UNVERIFIED at headers level  fixtures/tiny_llama  (no manifest)",
        "  K110 unknown-architecture: no manifest fits",
    ]
    assert _lines(samples.report(verdict="unverified"))[1] == "  no two witnesses could be compared"


def test_findings_say_what_to_do_and_are_cut() -> None:
    lines = _lines(samples.REJECTED)
    start = lines.index("error N201 epsilon-mismatch  decoder.self_attention.norm_in")
    assert lines[start + 1 : start + 5] == [
        "  epsilon differs in layers 0-31",
        "  expected    1e-06",
        "  found       1e-05",
        "  evidence    config.json: rms_norm_eps",
    ]
    whole = " ".join(" ".join(lines).split())
    assert "model.layers.3.input_layernorm.weight ... and 28 more (whole in --format json)" in whole
    assert "model.layers.4." not in whole
    assert "what to do set rms_norm_eps to the value" in whole


def test_more_findings_than_anybody_reads_are_counted() -> None:
    many = text.render(samples.report(verdict="rejected", findings=(samples.EPSILON,) * 20_000))
    assert "and 19,800 more findings (whole in --format json)" in many
    assert many.count("N201 epsilon-mismatch") == 201
    assert "more finding" not in text.render(samples.report(verdict="rejected", findings=(samples.EPSILON,) * 200))


def test_contract_table() -> None:
    lines = _lines(samples.REJECTED)
    start = next(i for i, line in enumerate(lines) if line.startswith("Contract"))
    assert lines[start : start + 12] == [
        "Contract                  declared                    stored",
        "  decoder.self_attention",
        "    norm_in.family        rmsnorm                     rmsnorm  agrees",
        "    norm_in.epsilon       1e-06                       1e-05    DISAGREES",
        "    norm_in.bias          no                          no       agrees",
        "  decoder.mlp",
        "    norm_in.epsilon       1e-06                       -        one witness",
        "    norm_in.placement     -                           -        unknown",
        "  decoder",
        "    branch_order          causal_self_attention, ...  -        one witness",
        "  decoder.final_norm",
        "    family                rmsnorm                     rmsnorm  agrees",
    ]


def test_a_witness_gets_a_column_when_it_speaks() -> None:
    assert "executed" not in text.render(samples.REJECTED)
    spoken = samples.report(contract=(samples.row("decoder.final_norm.family", True, stored="a", executed="a"),))
    assert f"\n{'Contract':22}declared  stored  executed\n" in text.render(spoken)


def test_not_checked_is_grouped() -> None:
    lines = _lines(samples.REJECTED)
    start = lines.index("Not checked at headers level: 4 fields")
    assert lines[start + 1 : start + 4] == [
        "  decoder.self_attention  norm_in: placement, cast_order",
        "  decoder.mlp             norm_in: placement",
        "  decoder                 branch_order",
    ]


def test_brief_keeps_verdict_and_findings() -> None:
    brief = text.render(samples.REJECTED, brief=True)
    assert "error N201" in brief
    assert "Contract" not in brief
    assert "Not checked" not in brief


def test_colour_changes_no_word() -> None:
    painted = text.render(samples.REJECTED, color=True)
    assert "\x1b[1;31mREJECTED\x1b[0m" in painted
    assert [line.rstrip() for line in SGR.sub("", painted).splitlines()] == _lines(samples.REJECTED)


@pytest.mark.parametrize("color", [False, True])
def test_hostile_names_are_shown_and_never_sent(color: bool) -> None:
    report = Report(
        "inspection",
        "rejected",
        "headers",
        Subject(HOSTILE, HOSTILE, (HOSTILE,), 1, 1, 1, {HOSTILE: 1}),
        samples.LLAMA,
        (samples.row(f"decoder.{HOSTILE}.norm_in.family", False, declared=HOSTILE, stored={HOSTILE: [HOSTILE]}),),
        (Finding("K101", "missing-key", "error", HOSTILE, HOSTILE, (HOSTILE,), HOSTILE, [HOSTILE], HOSTILE, HOSTILE),),
        (HOSTILE,),
        "0.1.0",
        gates=({"gate": HOSTILE, "required": True, "status": "failed", "why": HOSTILE, "evidence": {}},),
    )
    shown = text.render(report, color, width=1000)
    left = SGR.sub("", shown).replace("\n", "")
    assert left.isprintable()
    assert f"missing-key  {SHOWN}" in SGR.sub("", shown)


@given(st.text(st.characters()))
def test_escape_leaves_only_what_prints(name: str) -> None:
    assert escape(name).isprintable()
    assert escape(escape(name)) == escape(name)


@given(st.text(st.characters()), st.integers(20, 200))
def test_any_name_fits_any_width(name: str, width: int) -> None:
    row = samples.row(f"decoder.{name}.norm_in.family", False, declared=name, stored=name)
    assert text.render(samples.report(contract=(row,), not_checked=(name,)), True, width)


def test_a_million_characters_are_not_printed() -> None:
    finding = Finding("K101", "missing-key", "error", "x" * 10**6, "y" * 10**6, ("z" * 10**6,), ["w" * 10**6])
    assert len(text.render(samples.report(findings=(finding,)))) < 10_000
    assert shortened("x" * 601).endswith("... (whole in --format json)")


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        (None, "-"),
        (True, "yes"),
        (False, "no"),
        (1e-06, "1e-06"),
        (1, "1"),
        (0.1, "0.1"),
        (float("nan"), "nan"),
        ("", '""'),
        ([], "[]"),
        ({}, "{}"),
        (("a", None, True), "a, -, yes"),
        ({"p": 0.1}, "p: 0.1"),
    ],
)
def test_values_read_well(said: object, shown: str) -> None:
    assert value(said) == shown


def test_quantities_read_well() -> None:
    assert quantity(1, "parameter") == "1 parameter"
    assert quantity(9_999, "parameter") == "9,999 parameters"
    assert quantity(10_000, "parameter") == "10 K parameters"
    assert quantity(999_600, "parameter") == "1 M parameters"
    assert quantity(8_030_261_248, "parameter") == "8.03 B parameters"
    assert quantity(2_000_000_000_000_000, "parameter") == "2,000 T parameters"
    assert size(1) == "1 byte"
    assert size(999) == "999 bytes"
    assert size(1000) == "1 kB"
    assert size(16_060_522_496) == "16.1 GB"
    assert several(["a", "b"], 2) == "a, b"


def test_columns_count_wide_characters() -> None:
    assert cells("層norm") == 6
    assert cells("e\u0301") == 1
    assert pad("層", 4) == "層  "
    assert cut("層層層層", 7) == "層層..."
    assert cut("abc", 3) == "abc"
