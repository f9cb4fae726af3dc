from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter

import pytest
from hypothesis import HealthCheck, given, settings
from jinja2 import UndefinedError
from msgspec.structs import replace

from blockaudit.records.report import Report
from blockaudit.report import html
from blockaudit.report.html import page as pages_of
from tests.report import conformance_samples, hostile, samples
from tests.report.html import pages
from tests.report.html.pages import attributes, classed, page, tags, tree, words

REPORTS = {
    "accepted": samples.ACCEPTED,
    "rejected": samples.REJECTED,
    "unverified": samples.UNVERIFIED,
    "empty": samples.report(),
    "clean": conformance_samples.report(conformance_samples.CLEAN),
    "faulty": pages.FAULTY,
    "wrapper": conformance_samples.report(conformance_samples.WRAPPER),
    "extreme": conformance_samples.report(conformance_samples.EXTREME),
    "hostile": pages.HOSTILE,
}


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_the_page_is_html_that_runs_nothing_and_asks_for_nothing(report: Report) -> None:
    text = html.render(report)
    assert text.isascii()
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", text)
    root = tree(text)
    names = {str(e.tag).rpartition("}")[2] for e in root.iter()}
    assert not names & {"script", "img", "image", "iframe", "object", "embed", "form", "base", "foreignObject", "use"}
    for tag, name, value in attributes(root):
        assert not name.startswith("on"), (tag, name)
        assert name != "style", (tag, value)
        if name in ("href", "src", "action", "xlink:href"):
            assert value.startswith("#") or (tag, value) == ("link", "data:,")
    assert "url(" not in words(tags(root, "style")[0])


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_its_policy_allows_the_one_sheet_that_it_has(report: Report) -> None:
    root = page(report)
    policy = next(m.get("content", "") for m in tags(root, "meta") if m.get("http-equiv") == "Content-Security-Policy")
    sheet = "".join(tags(root, "style")[0].itertext())
    digest = base64.b64encode(hashlib.sha256(sheet.encode()).digest()).decode()
    assert policy.split("; ")[:2] == ["default-src 'none'", f"style-src 'sha256-{digest}'"]
    assert len(tags(root, "style")) == 1


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_it_can_be_read_without_being_seen(report: Report) -> None:
    root = page(report)
    assert all(th.get("scope") for th in tags(root, "th"))
    for drawing in tags(root, "svg"):
        told = drawing.get("aria-label") or "".join(words(t) for t in tags(drawing, "title")[:1])
        assert told or drawing.get("aria-hidden") == "true"
    ids = Counter(value for _, name, value in attributes(root) if name == "id")
    assert all(count == 1 for count in ids.values())
    linked = {value for _, name, value in attributes(root) if name in ("aria-labelledby",)}
    linked |= {value[1:] for _, name, value in attributes(root) if name == "href" and value.startswith("#")}
    assert linked <= set(ids)
    assert len(tags(root, "main")) == len(tags(root, "h1")) == 1
    assert all(section.get("aria-label") for section in classed(root, "scroll"))


def test_the_verdict_stands_first_with_its_reason() -> None:
    root = page(pages.FAULTY)
    head = tags(root, "header")[0]
    assert words(tags(root, "h1")[0]) == "Rejected at trace level, 1 finding waived, 1 in the baseline"
    assert "2 errors, first: N201 epsilon-mismatch" in words(head)
    assert "1 field disagrees" in words(head)
    assert words(tags(root, "title")[0]).startswith("Rejected: fixtures/tiny_llama")


def test_the_contract_says_how_every_field_compares() -> None:
    table = classed(page(samples.REJECTED), "fields")[0]
    odd = classed(table, "is-disagree")
    assert [words(row) for row in odd] == ["norm_in.epsilon 1e-06 by declared 1e-05 by stored disagrees"]
    assert len(classed(table, "is-one")) == 2
    assert len(classed(table, "is-unknown")) == 1


def test_findings_are_counted_by_severity_and_shown_in_order() -> None:
    root = page(samples.REJECTED)
    filters = [words(label) for label in tags(classed(root, "filter")[0], "label")]
    assert filters[:3] == ["1 error", "1 warning", "1 note"]
    assert filters[3:] == ["K keys", "N norms", "S shapes"]
    shown = classed(root, "finding")
    assert [words(classed(f, "severity")[0]) for f in shown] == ["error", "warning", "note"]
    assert "32 tensors" in words(shown[0])
    assert "what to do set rms_norm_eps" in " ".join(words(d) for d in tags(shown[0], "div"))


def test_suppressed_findings_stand_apart_with_whose_word_it_is() -> None:
    held = hostile.SUPPRESSED[0]
    root = page(
        samples.report(suppressed=(replace(held, by="waiver", reason="known", owner="me", expires="2027-01-31"),))
    )
    section = next(s for s in tags(root, "section") if s.get("aria-label") == "Suppressed findings")
    assert words(classed(section, "held")[0]) == "waived until 2027-01-31 by me: known"
    assert not classed(next(s for s in tags(root, "section") if s is not section), "finding")


def test_conformance_shows_the_first_divergence_and_what_explains_it() -> None:
    root = page(pages.FAULTY)
    section = classed(root, "conformance")[0]
    assert "First divergence layers.1.self_attention.norm_in" in words(section)
    assert words(classed(section, "here")[0]).startswith("layers.1.self_attention.norm_in RMS relative 0.0123")
    assert "99.98 %" in words(section)
    assert len([c for c in classed(section, "first") if c.tag.endswith("td")]) == 1
    # Colour is never alone: what fails has a sign.
    failed = [c for c in tags(section, "td") if c.get("class", "")[:2] in ("f1", "f2", "f3")]
    assert failed
    assert all(words(c) == "\u00d7" for c in failed)


def test_the_map_that_is_seen_first_is_that_of_the_first_divergence() -> None:
    tabs = [t for t in tags(page(pages.FAULTY), "input") if t.get("type") == "radio"]
    assert [t.get("class") for t in tabs if t.get("checked") is not None] == ["tab-0"]
    assert len({t.get("name") for t in tabs}) == 1


def test_what_is_wrong_is_marked_in_the_wiring_and_in_the_stack() -> None:
    root = page(pages.FAULTY)
    odd = classed(root, "bw-odd")
    assert [words(tags(g, "title")[0]) for g in odd] == ["decoder.self_attention.norm_in (something is wrong here)"]
    strip = classed(root, "strip")[0]
    assert strip.get("aria-label") == "decoder: 3 layers of 2 kinds in 3 runs, the longest of 1; layers 0-2 marked"
    assert [words(layer) for layer in classed(strip, "odd")] == ["0", "1", "2"]


def test_ten_thousand_findings_are_a_page_that_says_what_it_leaves_out() -> None:
    text = html.render(pages.many(10_000))
    assert len(text) < 600_000
    root = tree(text)
    assert len(classed(root, "finding")) == 200
    assert "And 9,800 more findings, whole in --format json" in words(root)
    assert "10,000 K101 missing-key" in words(classed(root, "rules")[0])


def test_a_deep_model_of_many_sites_is_a_few_hundred_kilobytes() -> None:
    sites = tuple(
        conformance_samples.site(name, mode)
        for mode in conformance_samples.MODES
        for name in conformance_samples.names(94)
    )
    run = conformance_samples.run(sites=sites, telemetry=conformance_samples.telemetry(94))
    report = conformance_samples.report(run, picture=pages.picture("qwen3_moe", 94))
    assert len(html.render(report)) < 600_000


def test_of_more_layers_than_can_be_shown_a_cell_is_the_worst_of_its_layers() -> None:
    names = conformance_samples.names(2000)
    bad = "layers.1501.mlp.norm_in"
    sites = tuple(conformance_samples.site(n, rms=0.5 if n == bad else 1e-7, passed=n != bad) for n in names)
    root = page(conformance_samples.report(conformance_samples.run(sites=sites, telemetry=())))
    cells = [c for c in tags(classed(root, "heat")[0], "td") if c.get("title")]
    assert len(cells) < 10_000
    assert [c.get("title") for c in cells if words(c)] == ["1501: 0.5 of 2.5e-06"]
    assert "layers to a cell, the worst of them shown" in words(classed(root, "heat")[0])


def test_several_reports_are_one_page_with_a_table_of_them() -> None:
    root = tree(html.render_many([samples.ACCEPTED, samples.REJECTED, pages.FAULTY]))
    assert words(tags(root, "h1")[0]) == "3 audits"
    table = tags(root, "table")[0]
    assert [words(tags(row, "td")[0]) for row in tags(table, "tr")[1:]] == ["accepted", "rejected", "rejected"]
    assert len(classed(root, "report")) == 3


def test_of_more_reports_than_a_page_can_hold_every_one_is_in_the_table() -> None:
    root = tree(html.render_many([samples.ACCEPTED] * 30))
    assert len(tags(tags(root, "table")[0], "tr")) == 31
    assert len(classed(root, "report")) == 20
    assert "The first 20 are shown in full" in words(root)


def test_the_same_report_is_the_same_page() -> None:
    assert html.render(pages.FAULTY) == html.render(pages.FAULTY)


def test_what_a_template_names_and_nobody_gives_is_an_error() -> None:
    with pytest.raises(UndefinedError):
        pages_of._environment().from_string("{{ misspelt }}").render()  # pyright: ignore[reportPrivateUsage]


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(hostile.reports)
def test_any_report_is_a_page(report: Report) -> None:
    text = html.render(report)
    assert text.isascii()
    assert not tags(tree(text), "script")
