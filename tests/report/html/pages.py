"""Pages that the tests look at, and the page as a tree."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from xml.etree.ElementTree import Element

import html5lib
from msgspec.structs import replace

from blockaudit.manifest.load import library
from blockaudit.manifest.wiring import wiring
from blockaudit.records.picture import Depth, Gains, Picture
from blockaudit.records.report import Finding, Report
from blockaudit.report import html
from tests.report import conformance_samples, hostile, samples

XHTML = "{http://www.w3.org/1999/xhtml}"


def picture(family: str = "llama", layers: int = 32) -> Picture:
    """The wiring of a family of the library, so many layers deep."""
    depth = tuple(range(layers))
    gains = tuple(
        Gains(f"decoder.{branch}.norm_in", depth, tuple(0.4 + n / 100 for n in depth))
        for branch in ("self_attention", "mlp")
    )
    kinds = (("sliding", depth[::2]), ("full", depth[1::2]))
    stacks = (Depth("decoder", 0, layers, kinds),)
    return Picture(wiring(library(family).manifest), stacks, (*gains, Gains("decoder.final_norm", (), (0.79,))))


HOSTILE = replace(
    hostile.EVERY_RULE,
    conformance=conformance_samples.run(
        candidate=hostile.NAMES[2], silent=hostile.NAMES, missing=hostile.NAMES, failure=hostile.NAMES[4]
    ),
    picture=Picture(
        replace(picture().wiring, title=hostile.NAMES[2]),
        (Depth(hostile.NAMES[2], 0, 4, ((hostile.NAMES[0], (0, 1)), (hostile.NAMES[5], (2, 3)))),),
        (Gains(hostile.NAMES[2], (0, 1), (1.0, float("nan"))), Gains(hostile.NAMES[12], (), (1.0,))),
    ),
    gates=tuple({"gate": n, "required": True, "status": n, "why": n, "evidence": {}} for n in hostile.NAMES),
)
FAULTY = conformance_samples.report(
    conformance_samples.FAULTY,
    verdict="rejected",
    contract=samples.ROWS,
    findings=(samples.EPSILON, conformance_samples.DIVERGENCE, samples.DTYPE, samples.POOLER),
    suppressed=hostile.SUPPRESSED[:2],
    not_checked=samples.NOT_CHECKED,
    picture=picture(layers=3),
)


def many(findings: int) -> Report:
    """A report of so many findings, each with many tensors."""
    tensors = tuple(f"model.layers.{n}.mlp.experts.{n}.down_proj.weight" for n in range(300))
    found = tuple(
        Finding("K101", "missing-key", "error", f"decoder.mlp.{n}", f"key {n} is missing", tensors, help="find it")
        for n in range(findings)
    )
    return samples.report(verdict="rejected", findings=found)


def tree(text: str) -> Element:
    """The page as a strict parser reads it. Raises ParseError for anything that is no HTML."""
    return html5lib.HTMLParser(strict=True).parse(text)


def page(report: Report) -> Element:
    return tree(html.render(report))


def tags(root: Element, name: str) -> list[Element]:
    return [e for e in root.iter() if str(e.tag).rpartition("}")[2] == name]


def classed(root: Element, name: str) -> list[Element]:
    return [e for e in root.iter() if name in e.get("class", "").split()]


def words(element: Element) -> str:
    """What it says, cell by cell."""
    return " ".join(" ".join(element.itertext()).split())


def attributes(root: Element) -> Iterator[tuple[str, str, str]]:
    """Every (element, attribute, value)."""
    for element in root.iter():
        items: Any = element.attrib.items()
        yield from ((str(element.tag).rpartition("}")[2], str(name), value) for name, value in items)
