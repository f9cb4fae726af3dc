from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from markdown_it import MarkdownIt
from markdown_it.token import Token
from msgspec.structs import replace

from blockaudit.records.report import Place, Report, Suppressed
from blockaudit.report import markdown
from blockaudit.report.markdown_text import code, prose
from tests.report import conformance_samples, hostile, samples

PARSER = MarkdownIt("commonmark", {"html": True}).enable("table")
OURS = {"<!-- blockaudit -->", "<details>", "</details>", "<summary>", "</summary>", "<br>"}
# What GitHub makes something of outside code: mentions, issues, commits, addresses, emoji.
MADE = re.compile(r"@\w|#\d|\bGH-\d|\b[0-9a-f]{7,40}\b|://|www\.|:\w+:")


def _flat(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from _flat(token.children or [])


def _read(text: str) -> list[Token]:
    """The tokens of a document in which nothing is but what we put there."""
    tokens = list(_flat(PARSER.parse(text)))
    kinds = {token.type for token in tokens}
    assert not kinds & {"link_open", "image", "fence", "code_block", "blockquote_open", "hr"}, kinds
    for token in tokens:
        if token.type in ("html_block", "html_inline"):
            assert set(re.findall(r"<[^>]*>", token.content)) <= OURS, token.content
        if token.type == "text":
            assert not MADE.search(token.content), token.content
            assert "<" not in token.content
    return tokens


def _cells(text: str) -> list[list[str]]:
    """Rows of all tables, each cell as a reader sees it."""
    rows: list[list[str]] = []
    tokens = PARSER.parse(text)
    for i, token in enumerate(tokens):
        if token.type == "tr_open":
            rows.append([])
        if token.type in ("td_open", "th_open"):
            rows[-1].append("".join(c.content for c in tokens[i + 1].children or []))
    return rows


def test_the_verdict_comes_first() -> None:
    lines = markdown.render(samples.REJECTED).splitlines()
    assert lines[1] == "## ❌ blockaudit: rejected at `headers` level"
    assert lines[3] == "`fixtures/tiny_llama` (llama, chosen by config)"
    assert lines[5].startswith("1 error: ")
    assert "## ✅ blockaudit: accepted" in markdown.render(samples.ACCEPTED)


def test_findings_are_rows() -> None:
    finding = replace(samples.EPSILON, places=(Place("held.json", 51),))
    rows = _cells(markdown.render(samples.report(verdict="rejected", findings=(finding,))))
    assert rows[1] == [
        "error", "N201 epsilon-mismatch", "decoder.self_attention.norm_in<br>held.json:51",
        "epsilon differs in layers 0-31", "1e-06", "1e-05",
        "set rms_norm_eps to the value that the weights were trained with",
    ]  # fmt: skip


def test_the_contract_is_folded_and_begins_with_what_disagrees() -> None:
    text = markdown.render(samples.REJECTED)
    assert "<details><summary>Contract: 3 agree, 1 disagree, 3 not checked</summary>" in text
    rows = _cells(text[text.index("<details>") :])
    assert len(rows) == 1 + len(samples.ROWS)
    assert rows[1] == ["decoder.self_attention.norm_in.epsilon", "1e-06", "1e-05", "disagrees"]


def test_suppressed_findings_have_a_table_of_their_own() -> None:
    held = Suppressed(samples.DTYPE, "waiver", "kept for the old runtime", "ml-platform", "2027-01-31")
    text = markdown.render(samples.report(suppressed=(held,)))
    assert "0 notes, 1 suppressed;" in text
    assert _cells(text)[1] == [
        "S104 dtype-mismatch", "checkpoint", "waiver", "kept for the old runtime", "ml-platform", "2027-01-31"
    ]  # fmt: skip


def test_a_conformance_run_has_its_section() -> None:
    text = markdown.render(conformance_samples.report(conformance_samples.FAULTY))
    assert "- first divergence: **`layers.1.self_attention.norm_in`** (local" in text
    assert "Edits of the manifest that bring the candidate back" in text
    assert conformance_samples.EPSILON in {row[1] for row in _cells(text) if len(row) == 6}
    _read(text)


def test_nothing_in_a_report_with_every_rule_breaks_out() -> None:
    text = markdown.render(hostile.EVERY_RULE)
    assert len(text) <= markdown.LIMIT
    _read(text)
    assert "more, cut here (findings in full: `--format json`)" in text


@settings(deadline=None, max_examples=50)
@given(hostile.reports)
def test_no_name_breaks_out(report: Report) -> None:
    text = markdown.render(report)
    _read(text)
    widths = [{len(row) for row in _cells(text)}]
    assert len(text) <= markdown.LIMIT
    assert sum(len(w) for w in widths) <= 3, "a bar in a name would make a cell"


@pytest.mark.parametrize("number", [1, 3, 12, 200])
def test_a_comment_holds_what_is_written(number: int) -> None:
    many = tuple(replace(samples.EPSILON, message="é" * 5000) for _ in range(5000))
    long = samples.report(verdict="rejected", findings=many, contract=samples.ROWS * 1000)
    text = markdown.render_many([long] * number)
    assert len(text) <= markdown.LIMIT + 1000 < 65_536
    assert text.count("## ❌") == min(number, 12)
    assert ("more report" in text) == (number > 12)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b`c", "`a\\x7cb\\x60c`"),
        ("", '`""`'),
        ("a\nb", "`a\\nb`"),
        ("@everyone", "`@everyone`"),
    ],
)
def test_code(text: str, shown: str) -> None:
    assert code(text) == shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("2 of 3 missing: model.norm.weight, layers", "2 of 3 missing: `model.norm.weight`, layers"),
        ("say `manifest draft` (or not).", "say `manifest draft` (or not)."),
        ("key = 1e-06, x/y -> z", "key = 1e-06, `x/y` -> z"),
        ("- list", "`-` list"),
        ("ask @me at deadbeef", "ask `@me` at `deadbeef`"),
    ],
)
def test_prose(text: str, shown: str) -> None:
    assert prose(text) == shown


def test_the_same_bytes_each_time() -> None:
    reports: list[Any] = [samples.REJECTED, hostile.EVERY_RULE]
    assert markdown.render_many(reports) == markdown.render_many(reports)
