"""The picture: an XML document of shapes and texts, and nothing that runs or is fetched."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from blockaudit import resources
from blockaudit.manifest.load import library
from blockaudit.manifest.wiring import wiring
from blockaudit.records.wiring import AddMark, BlockMark, BranchMark, NormMark, StackMark, Step, Wiring
from blockaudit.report.wiring.layout import layout
from blockaudit.report.wiring.svg import render

SVG = "{http://www.w3.org/2000/svg}"
ALLOWED = {"svg", "title", "desc", "style", "rect", "path", "circle", "g", "text"}
HOSTILE = (
    "<script>alert(1)</script>", '"/><image href="x"', "]]><!--", "&amp;&#0;", "a\x00\x1b[2J\x85", "\ud800", "\u202eb",
    "</style>", "' onload='x", "x" * 5000,
)  # fmt: skip


def _svg(name: str) -> str:
    return render(layout(wiring(library(name).manifest)))


def _hostile(text: str) -> Wiring:
    norm = NormMark(text, text)
    branch = BranchMark(text, text, text, norm, norm, (NormMark(text, "inner." + text),), (text,), text, text)
    add = AddMark((branch,), text, text, norm, norm, text)
    blocks = (BlockMark(text, (add,), text), BlockMark(text, unknown=text))
    return Wiring(text, (StackMark(text, text, (Step((text,)),), blocks, True, (Step(norm=norm),), text, (norm,)),))


@pytest.mark.parametrize("name", resources.manifest_ids())
def test_every_manifest_has_a_picture(name: str) -> None:
    text = _svg(name)
    root = ElementTree.fromstring(text)
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= ALLOWED
    assert root.findtext(f"{SVG}title") == name
    assert "self_attention" in (root.findtext(f"{SVG}desc") or "")
    tips = [e.text for g in root.iter(f"{SVG}g") for e in g.findall(f"{SVG}title")]
    drawing = layout(wiring(library(name).manifest))
    assert sorted(map(str, tips)) == sorted(s.site for s in drawing.shapes if s.site)
    assert len(text) < 40_000


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_names_are_text(text: str) -> None:
    svg = render(layout(_hostile(text)))
    root = ElementTree.fromstring(svg)
    assert {e.tag.removeprefix(SVG) for e in root.iter()} <= ALLOWED
    names = {name for e in root.iter() for name in e.attrib}
    assert not any(name.startswith("on") or "href" in name for name in names)
    assert svg.encode("utf-8")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", svg)
    assert len(svg) < 80_000


def test_nothing_is_fetched_and_nothing_runs() -> None:
    svg = _svg("bart")
    assert svg.count("http") == 1  # the namespace
    for word in ("script", "url(", "@import", "@font-face", "href", "foreignObject", "javascript"):
        assert word not in svg


def test_it_is_light_or_dark() -> None:
    style = ElementTree.fromstring(_svg("llama")).findtext(f"{SVG}style") or ""
    light, _, dark = style.partition("@media (prefers-color-scheme:dark)")
    assert "#ffffff" in light
    assert "#0f1419" in dark
    # Inside a page it colours nothing but itself.
    rules = re.findall(r"([^{}]+)\{[^{}]*\}", light + dark.strip()[1:-1])
    assert all(one.strip().startswith(".bw ") for rule in rules for one in rule.split(","))


def test_a_model_without_a_stack_has_a_picture_too() -> None:
    assert "no stack is declared" in render(layout(Wiring("empty", ())))


def test_the_picture_in_the_documentation_is_the_one_that_is_drawn() -> None:
    picture = Path(__file__).parents[2] / "docs" / "wiring-gpt_neox.svg"
    assert picture.read_text(encoding="utf-8") == _svg("gpt_neox")
