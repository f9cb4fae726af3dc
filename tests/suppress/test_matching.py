from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from blockaudit.records.report import Finding
from blockaudit.records.suppression import Scope, Waiver
from blockaudit.suppress.baseline import fingerprint
from blockaudit.suppress.matching import covers, of_source

FINDING = Finding("N201", "epsilon-mismatch", "error", "decoder[full].norm_in", "words", expected=1e-6, observed=1e-5)


def _covers(subject: str, finding: Finding = FINDING) -> bool:
    return covers(Waiver("N201", Scope(subject), "reason", "owner", "2999-01-01"), finding, "model")


@pytest.mark.parametrize(
    ("pattern", "is_covered"),
    [
        ("decoder[full].norm_in", True),  # a bracket is itself, not a class of characters
        ("decoder[f].norm_in", False),
        ("decoder?full].norm_in", True),
        ("*", True),
        ("decoder*", True),
        ("*norm", False),
        ("DECODER*", False),
        ("decoder.full..norm_in", False),
    ],
)
def test_patterns(pattern: str, is_covered: bool) -> None:
    assert _covers(pattern) is is_covered


def test_a_star_takes_in_line_breaks() -> None:
    assert _covers("decoder*", replace(FINDING, subject="decoder\nnorm"))


def test_every_place_has_to_match() -> None:
    spread = replace(FINDING, also=("encoder.norm_in",))
    assert not _covers("decoder*", spread)
    assert _covers("*coder*", spread)


@pytest.mark.parametrize(
    ("pattern", "source", "is_of"),
    [
        ("hf://org/*", "hf://org/name@main", True),
        ("name*", "hf://org/name@main", False),
        ("models/tiny/", "a/models/tiny", True),
        ("models/tiny", "a/models/tiny/", True),
        ("els/tiny", "a/models/tiny", False),
        ("", "anything", True),
    ],
)
def test_sources(pattern: str, source: str, is_of: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert of_source(Scope(source=pattern), source) is is_of


def test_the_folder_that_one_stands_in_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tiny").mkdir()
    monkeypatch.chdir(tmp_path / "tiny")
    assert of_source(Scope(source="tiny"), ".")


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        ({"message": "other words", "evidence": "e", "help": "h", "severity": "warning"}, True),
        ({"observed": 1.0000000001e-5}, True),
        ({"observed": 1.001e-5}, False),
        ({"expected": 2e-6}, False),
        ({"tensors": ("a",)}, False),
        ({"also": ("encoder.norm_in",)}, False),
        ({"layers": "0-3"}, False),
        ({"observed": None}, False),
    ],
)
def test_what_a_finding_is_known_by(change: dict[str, object], is_same: bool) -> None:
    assert (fingerprint(FINDING) == fingerprint(replace(FINDING, **change))) is is_same


def test_the_order_of_names_does_not_count() -> None:
    assert fingerprint(replace(FINDING, tensors=("a", "b"))) == fingerprint(replace(FINDING, tensors=("b", "a")))


def test_words_count_where_nothing_else_says_what_was_seen() -> None:
    silent = replace(FINDING, observed=None)
    assert fingerprint(silent) != fingerprint(replace(silent, message="another reason"))


@pytest.mark.parametrize(("observed", "is_same"), [(0.312, True), (3.2, False), (float("inf"), False)])
def test_a_measured_error_counts_by_its_power_of_ten(observed: float, is_same: bool) -> None:
    measured = replace(FINDING, code="V101", observed=0.325)
    assert (fingerprint(measured) == fingerprint(replace(measured, observed=observed))) is is_same
