"""The page in Chromium: nothing complains, asks or is cut off; light, dark, narrow and printed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from blockaudit.records.report import Report
from blockaudit.report import html
from tests.report import samples
from tests.report.html import pages

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed (.ci/run installs it)")

REPORTS = {"accepted": samples.ACCEPTED, "faulty": pages.FAULTY, "hostile": pages.HOSTILE}


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for all pages; without a sandbox, which a container often does not allow."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


class Opened:
    """One page in a window, and what the browser had to say of it."""

    def __init__(self, browser: Any, file: Path, scheme: str, width: int) -> None:
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self.page: Any = browser.new_page(viewport={"width": width, "height": 800}, color_scheme=scheme)
        self.page.on("console", lambda said: self.complaints.append(said.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.goto(file.as_uri())


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Any]:
    windows: list[Opened] = []

    def opens(report: Report, scheme: str = "light", width: int = 1280) -> Opened:
        file = tmp_path / "report.html"
        file.write_text(html.render(report), encoding="ascii")
        windows.append(Opened(chromium, file, scheme, width))
        return windows[-1]

    yield opens
    for window in windows:
        window.page.close()


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_it_opens_without_a_word_and_without_a_request(opened: Any, report: Report, scheme: str, width: int) -> None:
    window = opened(report, scheme, width)
    assert window.complaints == []
    assert [url for url in window.requests if not url.startswith(("file:", "data:,"))] == []
    assert len([url for url in window.requests if url.startswith("file:")]) == 1
    # The page itself never scrolls sideways; what is wide scrolls in a box of its own.
    assert window.page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_style_sheet_is_applied_in_both_colours(opened: Any) -> None:
    ground = "getComputedStyle(document.body).backgroundColor"
    assert opened(samples.ACCEPTED).page.evaluate(ground) == "rgb(255, 255, 255)"
    assert opened(samples.ACCEPTED, "dark").page.evaluate(ground) == "rgb(16, 21, 27)"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_hard_to_perceive(opened: Any, scheme: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    window = opened(pages.FAULTY, scheme)
    found = axe.Axe().run(window.page).response["violations"]
    assert [(v["id"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found] == []


def test_a_box_that_is_unchecked_hides_what_it_names(opened: Any) -> None:
    page = opened(pages.FAULTY).page
    errors, notes = page.locator(".finding.is-error").first, page.locator(".finding.is-note").first
    assert errors.is_visible()
    page.locator(".show-error").uncheck()
    assert not errors.is_visible()
    assert notes.is_visible()
    page.locator(".show-K").uncheck()
    assert not notes.is_visible()


def test_the_contract_can_show_disagreements_alone_and_what_was_read(opened: Any) -> None:
    page = opened(pages.FAULTY).page
    page.locator(".show-agree").uncheck()
    page.locator(".show-one").uncheck()
    page.locator(".show-unknown").uncheck()
    assert page.locator(".fields tbody tr:not(.group)").locator("visible=true").count() == 1
    assert page.locator(".fields tbody .group").locator("visible=true").count() == 1
    evidence = page.locator(".is-disagree .evidence").first
    assert not evidence.is_visible()
    page.locator(".show-evidence").check()
    assert evidence.is_visible()


def test_a_cell_and_a_layer_say_their_numbers_under_the_pointer(opened: Any) -> None:
    page = opened(pages.FAULTY).page
    cell = page.locator("td.first")
    cell.hover()
    said = cell.evaluate("cell => getComputedStyle(cell, '::after').content")
    assert "1: 0.012 of 2.5e-06" in said
    assert page.locator(".col:hover text").count() == 0
    page.locator(".col rect").first.hover()
    assert page.locator(".col:hover text").text_content().startswith("layer 0: p05")


def test_another_map_can_be_chosen(opened: Any) -> None:
    page = opened(pages.FAULTY).page
    assert [page.locator(f".map-{n}").is_visible() for n in range(3)] == [True, False, False]
    page.locator(".tab-2").check()
    assert [page.locator(f".map-{n}").is_visible() for n in range(3)] == [False, False, True]


def test_in_print_everything_is_open_and_filters_are_gone(opened: Any) -> None:
    page = opened(pages.FAULTY, "dark").page
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.locator(".filter:visible").count() == 0
    assert page.locator(".panel:visible").count() == 3
    assert page.locator("details:not([open]) .names li").first.is_visible()
    assert page.pdf(format="A4")[:5] == b"%PDF-"
