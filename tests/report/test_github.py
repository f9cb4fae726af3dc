from __future__ import annotations

import re

from hypothesis import given, settings
from msgspec.structs import replace

from blockaudit.records.report import Place, Report
from blockaudit.report import github
from tests.report import hostile, samples

# As the runner reads a command: properties end at the first `::`, and are parted by commas.
COMMAND = re.compile(r"::(error|warning|notice) ([^:]*)::(.*)")


def _commands(report: Report) -> list[tuple[str, dict[str, str], str]]:
    """Every command of the log as the runner reads it; there is nothing else that it would take for one."""
    verdict, *lines = github.render(report).removesuffix("\n").split("\n")
    assert verdict.startswith("blockaudit: ")
    found: list[tuple[str, dict[str, str], str]] = []
    for line in lines:
        if line.startswith("and "):
            continue
        matched = COMMAND.fullmatch(line)
        assert matched, line
        given = dict(part.split("=", 1) for part in matched[2].split(","))
        found.append((matched[1], {k: _read(v) for k, v in given.items()}, _read(matched[3])))
    return found


def _read(text: str) -> str:
    for escaped, char in (("%3A", ":"), ("%2C", ","), ("%0D", "\r"), ("%0A", "\n"), ("%25", "%")):
        text = text.replace(escaped, char)
    return text


def test_a_finding_is_a_command_on_its_line() -> None:
    finding = replace(samples.EPSILON, places=(Place("a, b/c:d.json", 51),))
    kind, given, message = _commands(samples.report(verdict="rejected", findings=(finding,)))[0]
    assert kind == "error"
    assert given == {"file": "a, b/c:d.json", "line": "51", "title": "N201 epsilon-mismatch"}
    assert message.splitlines()[:2] == ["epsilon differs in layers 0-31", "expected 1e-06, found 1e-05"]


def test_severities() -> None:
    assert [kind for kind, _, _ in _commands(samples.REJECTED)] == ["error", "warning", "notice"]


def test_an_open_audit_is_told() -> None:
    ((kind, given, message),) = _commands(samples.UNVERIFIED)
    assert (kind, given["title"]) == ("warning", "blockaudit: unverified")
    assert "decoder.mlp.norm_in.epsilon" in message
    assert _commands(samples.ACCEPTED) == []


def test_percent_signs_and_line_ends_stay_what_they_are() -> None:
    finding = replace(samples.DTYPE, message="100%0A\r\n::error::x", expected=None, observed=None)
    _, _, message = _commands(samples.report(findings=(finding,)))[0]
    assert message == "100%0A\\r\\n::error::x"


def test_every_rule_is_a_command() -> None:
    assert [given["title"] for _, given, _ in _commands(hostile.EVERY_RULE)] == [
        f"{f.code} {f.name}" for f in hostile.EVERY_RULE.findings
    ]
    assert "##[" not in github.render(hostile.EVERY_RULE)


@settings(deadline=None, max_examples=50)
@given(hostile.reports)
def test_no_name_makes_a_command(report: Report) -> None:
    expected = len(report.findings)
    expected += report.verdict == "unverified" and not any(f.severity == "warning" for f in report.findings)
    assert len(_commands(report)) == expected


def test_more_findings_than_anybody_reads_are_counted() -> None:
    text = github.render(samples.report(findings=(samples.DTYPE,) * 1000))
    assert text.splitlines()[-1] == "and 800 more findings (whole in --format json)"


def test_of_a_manifest_and_the_source_the_source_is_shown() -> None:
    """A pull request that changes config.json shows what stands on its lines, and not on the manifest's."""
    report = samples.report(verdict="rejected")
    own = Place(f"{report.subject.source}/config.json", 7)
    finding = replace(samples.EPSILON, places=(Place("held.json", 40), own))
    _, given, _ = _commands(replace(report, findings=(finding,)))[0]
    assert (given["file"], given["line"]) == (own.path, "7")
