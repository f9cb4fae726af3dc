from __future__ import annotations

from pathlib import Path

import pytest

from blockaudit.errors import RequestError
from blockaudit.report import formats, json_report, text
from tests.report import samples


def test_formats_are_found_by_name() -> None:
    assert {"github", "json", "junit", "markdown", "sarif", "text"} <= set(formats.available())
    assert formats.by_name("json").render(samples.REJECTED) == json_report.render(samples.REJECTED)
    assert formats.by_name("text").render(samples.REJECTED) == text.render(samples.REJECTED)


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("a.json", "json"),
        ("a/b.TXT", "text"),
        ("a.b.json", "json"),
        ("a.xml", "junit"),
        ("a.sarif", "sarif"),
        ("a.md", "markdown"),
    ],
)
def test_formats_are_found_by_suffix(path: str, name: str) -> None:
    assert formats.by_suffix(Path(path)).name == name


def test_a_format_without_a_suffix_is_for_stdout_alone() -> None:
    assert formats.by_name("github").suffix is None
    with pytest.raises(RequestError) as refused:
        formats.by_suffix(Path("a.github"))
    assert "github)" not in str(refused.value)


def test_a_format_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(RequestError, match=r"unknown format 'yaml': this release writes .*json.*text"):
        formats.by_name("yaml")


@pytest.mark.parametrize("path", ["a.docx", "a", ".json"])
def test_an_unknown_suffix_is_refused_with_those_that_are_known(path: str) -> None:
    with pytest.raises(RequestError, match=r"by its suffix: this release writes .*\.json \(json\)"):
        formats.by_suffix(Path(path))


def test_no_two_formats_share_a_suffix() -> None:
    suffixes = [f.suffix for f in formats.available().values() if f.suffix is not None]
    assert len(suffixes) == len(set(suffixes))


def test_several_reports_follow_one_another() -> None:
    several = formats.by_name("text").render_many([samples.ACCEPTED, samples.REJECTED])
    assert several == f"{text.render(samples.ACCEPTED)}\n{text.render(samples.REJECTED)}\n"
