"""What a manifest declares is what is drawn: every norm and every branch once, at its place."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from blockaudit import resources
from blockaudit.manifest.load import library
from blockaudit.manifest.view import View, owner_of
from blockaudit.manifest.wiring import wiring
from blockaudit.records.manifest import Manifest
from blockaudit.records.wiring import Wiring
from blockaudit.report.wiring.layout import PAGE, layout
from blockaudit.report.wiring.shapes import Drawing, Shape
from blockaudit.report.wiring.text import render
from tests.manifest import samples

DRAWN = Path(__file__).parent / "wiring"
# Settings of config.json that change the wiring of a family.
FLIPS: list[tuple[str, dict[str, Any]]] = [
    ("stablelm", {"use_parallel_residual": True, "qk_layernorm": True}),
    ("gpt_neox", {"use_parallel_residual": False}),
    ("opt", {"do_layer_norm_before": False, "word_embed_proj_dim": 512, "hidden_size": 1024}),
    ("bloom", {"apply_residual_connection_post_layernorm": True}),
    ("falcon", {"new_decoder_architecture": True}),
    ("falcon", {"parallel_attn": False, "new_decoder_architecture": False}),
    ("bert", {"is_decoder": True, "add_cross_attention": True}),
    ("gpt2", {"add_cross_attention": True}),
    ("cohere", {"use_qk_norm": True}),
    ("phi", {"qk_layernorm": True}),
    ("qwen3_moe", {"decoder_sparse_step": 2, "num_hidden_layers": 6}),
]
DEFAULTS: dict[str, Any] = {}
CASES = [*((name, DEFAULTS) for name in resources.manifest_ids()), *FLIPS]


def _drawing(name: str, config: dict[str, Any] | None = None) -> Drawing:
    return layout(wiring(library(name).manifest, config))


def _declared(manifest: Manifest, config: dict[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """(norm sites on a line, branches) of every block that differs from the others, read without the drawing."""
    view = View(manifest, config)
    norms: Counter[str] = Counter()
    boxes: Counter[str] = Counter()
    for stack in (s for s in manifest.stacks if not s.ignored):
        seen: set[tuple[str, ...]] = set()
        for kind, layers in view.kinds(stack).items():
            branches = view.branches(stack, kind) if layers else []
            owners = tuple(owner_of(b, stack) for b in branches)
            if owners in seen:
                continue
            seen.add(owners)
            boxes.update(owners)
            norms.update(
                f"{owner}.{site}"
                for owner, b in zip(owners, branches, strict=True)
                for site in view.norms(b, stack)
                if not site.startswith("inner.")
            )
        if stack.embedding_norm is not None:
            norms[f"{stack.name}.embed_norm"] += 1
        if stack.final_norm is not None and view.present(stack.final_norm.when):
            norms[f"{stack.name}.final_norm"] += 1
    return norms, boxes


@pytest.mark.parametrize(("name", "config"), CASES)
def test_every_norm_and_branch_is_drawn_once(name: str, config: dict[str, Any]) -> None:
    manifest = library(name).manifest
    drawing = _drawing(name, config)
    norms, boxes = _declared(manifest, config)
    assert Counter(s.site for s in drawing.shapes if s.kind == "norm") == norms
    assert Counter(s.site for s in drawing.shapes if s.kind == "box" and s.site) == boxes
    text = render(drawing)
    assert text.count("( ") == norms.total()
    for stack in manifest.stacks:
        for branch in stack.branches:
            inner = [site for site in View(manifest, config).norms(branch, stack) if site.startswith("inner.")]
            for box in (s for s in drawing.shapes if s.kind == "box" and s.site == owner_of(branch, stack)):
                if any(branch.kind == line for line in box.lines):
                    said = [line.partition(":")[0] for line in box.lines if ": " in line]
                    assert said == [site.removeprefix("inner.") for site in inner]


@pytest.mark.parametrize(("name", "config"), CASES)
def test_every_norm_stands_at_its_place(name: str, config: dict[str, Any]) -> None:
    drawing = _drawing(name, config)
    for frame in (s for s in drawing.shapes if s.kind == "frame"):
        inside = [s for s in drawing.shapes if s.kind != "frame" and _within(s, frame)]
        boxes = {s.site: s for s in inside if s.kind == "box" and s.site}
        sums = sorted(s.y for s in inside if s.kind == "sum")
        stream = next(s.middle for s in inside if s.kind == "sum")
        for norm in (s for s in inside if s.kind == "norm"):
            owner, _, site = norm.site.rpartition(".")
            box = boxes[owner]
            added = next(y for y in sums if y > box.y)
            if site == "norm_in":
                assert norm.y < box.y
                assert norm.middle in (box.middle, stream)
            elif site == "norm_out":
                assert box.bottom < norm.y < added
                assert norm.middle == box.middle
            else:
                assert norm.y > added
                assert norm.middle == stream
                assert not any(added < b.y < norm.y for b in boxes.values())
    frames = [s for s in drawing.shapes if s.kind == "frame"]
    for norm in (s for s in drawing.shapes if s.site.endswith((".embed_norm", ".final_norm")) and s.kind == "norm"):
        mine = [f for f in frames if f.x <= norm.middle < f.x + f.width]
        assert all(norm.y < f.y if norm.site.endswith("embed_norm") else norm.y > f.bottom for f in mine)


@pytest.mark.parametrize(("name", "config"), CASES)
def test_nothing_lies_on_anything_else(name: str, config: dict[str, Any]) -> None:
    drawing = _drawing(name, config)
    shapes = [s for s in drawing.shapes if s.kind != "frame"]
    for i, one in enumerate(shapes):
        assert not any(_overlap(one, two) for two in shapes[i + 1 :])
        # A line meets a shape at its middle or, with what is read beside the state, at its side.
        for line in drawing.lines:
            for (ax, ay), (bx, by) in zip(line.points, line.points[1:], strict=False):
                if one.y < max(ay, by) and min(ay, by) < one.bottom and ax == bx:
                    assert not one.x <= ax < one.x + one.width or ax == one.middle
    assert all(len(row) <= PAGE for row in render(drawing).splitlines())


@pytest.mark.parametrize("name", sorted(p.stem for p in DRAWN.glob("*.txt")))
def test_families_as_they_were_reviewed(name: str) -> None:
    assert render(_drawing(name)) == (DRAWN / f"{name}.txt").read_text(encoding="utf-8")


def test_enough_families_were_reviewed() -> None:
    assert len(list(DRAWN.glob("*.txt"))) >= 8


def _model(**changes: Any) -> Wiring:
    branches: list[dict[str, Any]] = [
        {"name": "self_attention", "kind": "causal_self_attention", "norms": {"norm_in": {}}},
        {"name": "mlp", "kind": "mlp", "norms": {"norm_in": {}}},
    ]
    stack: dict[str, Any] = {"name": "decoder", "layers": 2, "branches": branches, **changes.pop("stack", {})}
    document: dict[str, Any] = {
        "schema": "blockaudit/block-manifest/1",
        "architecture_id": "x",
        "norm": {"family": "rmsnorm"},
    }
    return wiring(samples.manifest(document | {"stacks": [stack]} | changes))


@pytest.mark.parametrize(
    ("residual", "said"),
    [
        ({"attention_branch_scale": 0.22}, ["\u00d7 0.22"]),
        ({"shortcut": "constant", "shortcut_scale": 2.5}, ["\u00d7 2.5", "\u00d7 2.5"]),
        ({"shortcut": "gate"}, ["\u00d7 gate(x)", "\u00d7 gate(x)"]),
        ({"mlp_branch_scale": None}, ["\u00d7 ?"]),
        ({"shortcut": None}, ["\u00d7 ?", "\u00d7 ?"]),
        ({"shortcut_source": None}, ["\u00d7 ?", "\u00d7 ?"]),
        ({"attention_branch_scale": {"value": 1.0, "learned": True}}, ["\u00d7 alpha"]),
        ({}, []),
    ],
)
def test_factors(residual: dict[str, Any], said: list[str]) -> None:
    drawing = layout(_model(residual=residual))
    assert [line for s in drawing.shapes if s.kind == "factor" for line in s.lines] == said


def test_an_update_that_is_no_sum_says_what_it_is() -> None:
    rate = {"value": 0.05, "learned": True}
    text = render(layout(_model(residual={"update": "interpolate_retract", "attention_branch_scale": rate})))
    assert "retract(shortcut + alpha * (branch - shortcut))" in text
    assert "⊕" not in text


def test_what_is_not_declared_is_not_drawn() -> None:
    unknown = render(layout(_model(stack={"parallel": None, "unplaced": {"norm1": {"module": "a.{l}.n"}}})))
    assert "not declared: how self_attention, mlp are joined" in unknown
    assert "not placed: rmsnorm decoder.unplaced.norm1" in unknown
    assert "⊕" not in unknown
    assert "not declared: its branches" in render(layout(_model(stack={"branches": []})))


def test_a_norm_of_an_earlier_branch_is_named_where_it_is_read() -> None:
    branches: list[dict[str, Any]] = [
        {"name": "self_attention", "kind": "self_attention", "norms": {"norm_in": {}}},
        {"name": "mlp", "kind": "mlp", "reads": "self_attention.norm_in"},
    ]
    text = render(layout(_model(stack={"branches": branches})))
    assert "◀── self_attention.norm_in" in text
    assert text.count("( rmsnorm )") == 1


def test_layers_that_alternate_are_alternatives() -> None:
    text = render(_drawing("qwen3_moe", {"decoder_sparse_step": 2, "num_hidden_layers": 6}))
    assert "\n     or\n" in text
    assert "     or" not in render(_drawing("deepseek_v3"))


def test_only_plain_characters_where_there_are_no_others() -> None:
    for name in resources.manifest_ids():
        plain, drawn = render(_drawing(name), ascii_only=True), render(_drawing(name))
        assert plain.isascii()
        assert [len(row) for row in plain.splitlines()] == [len(row) for row in drawn.splitlines()]


def test_wide_and_combining_names_keep_the_lines_straight() -> None:
    branches: list[dict[str, Any]] = [
        {"name": "注意力", "kind": "self_attention", "norms": {"norm_in": {}}},
        {"name": "e\u0301", "kind": "mlp"},
    ]
    rows = render(layout(_model(stack={"branches": branches}))).splitlines()
    assert any("注意力" in row for row in rows)
    assert any("│ e\u0301 " in row or " e\u0301 " in row for row in rows)


def test_hostile_names_cannot_reach_the_terminal() -> None:
    branches: list[dict[str, Any]] = [{"name": "a\x1b[2J\u202eb", "kind": "m" * 3000, "norms": {"norm_in": {}}}]
    text = render(layout(_model(stack={"branches": branches, "name": "d\ne"}, architecture_id="\x07")))
    assert all(c.isprintable() or c == "\n" for c in text)
    assert all(len(row) <= PAGE for row in text.splitlines())
    assert "\\x1b" in text


def _within(shape: Shape, frame: Shape) -> bool:
    return frame.y < shape.y < frame.bottom and frame.x <= shape.middle < frame.x + frame.width


def _overlap(a: Shape, b: Shape) -> bool:
    return a.x < b.x + b.width and b.x < a.x + a.width and a.y <= b.bottom and b.y <= a.bottom
