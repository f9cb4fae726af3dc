"""Where each part of a wiring stands: the residual stream straight down, what is added to it at its right."""

from __future__ import annotations

import textwrap

from blockaudit.records.wiring import AddMark, BlockMark, BranchMark, NormMark, StackMark, Step, Wiring
from blockaudit.report.layout import cells
from blockaudit.report.wiring import columns
from blockaudit.report.wiring.shapes import LONG, Drawing, Line, Shape, ShapeKind, fitted, label, moved, shape

# Columns of a page: stacks stand beside each other where they fit, else one below the other.
PAGE = 100
# Empty columns between two stacks, columns of a frame's title.
_APART, _TITLE = 4, 44


def layout(wiring: Wiring) -> Drawing:
    """The drawing of a whole model."""
    parts = [_Stack(stack, wiring.title).drawing() for stack in wiring.stacks]
    beside = sum(p.width for p in parts) + _APART * (len(parts) - 1) <= PAGE
    shapes: list[Shape] = []
    lines: list[Line] = []
    x = y = 0
    for part in parts:
        placed = moved(part, x, y)
        shapes += placed.shapes
        lines += placed.lines
        x, y = (x + part.width + _APART, 0) if beside else (0, y + part.height + 1)
    words = tuple(word for part in parts for word in part.words)
    if not shapes:
        shapes = [shape("text", ["no stack is declared"], 0, 0)]
    return fitted(label(wiring.title, LONG), words, shapes, lines)


class _Stack:
    """One stack, drawn downwards. The stream is column 0; `at` is the row where it has arrived."""

    def __init__(self, stack: StackMark, model: str) -> None:
        self.stack, self.model = stack, model
        self.shapes: list[Shape] = []
        self.lines: list[Line] = []
        self.words: list[str] = []
        self.at = 2
        self.columns = columns.middles([a for b in stack.blocks for a in b.adds])

    def drawing(self) -> Drawing:
        stack = self.stack
        self._put("text", [label(stack.start)], 2)
        for step in stack.before:
            self._step(step)
        self._blocks()
        for step in stack.after:
            self._step(step)
        self._onto("text", [label(stack.end)])
        for norm in stack.unplaced:
            self._left("text", f"not placed: {label(norm.label)} {label(norm.site)}", self.at + 2, 0, norm.site)
            self.at += 1
        title = f"{label(self.model)} {label(stack.name)}"
        name = Shape("head", min(s.x for s in self.shapes), 0, cells(title), 1, (title,))
        return fitted("", (f"{label(stack.name)}: " + "; ".join(self.words),), [name, *self.shapes], self.lines)

    # -- on the stream ----------------------------------------------------------------------------------------------

    def _put(self, kind: ShapeKind, lines: list[str], y: int, middle: int = 0, site: str = "") -> Shape:
        self.shapes.append(shape(kind, lines, middle, y, site))
        return self.shapes[-1]

    def _left(self, kind: ShapeKind, text: str, y: int, x: int, site: str = "") -> None:
        """A text that begins at a column."""
        self.shapes.append(Shape(kind, x, y, cells(text), 1, (text,), label(site, LONG)))

    def _onto(self, kind: ShapeKind, lines: list[str], site: str = "") -> None:
        """The next thing that the stream passes."""
        placed = self._put(kind, lines, self.at + 2, site=site)
        self._down(placed.y - (kind == "text"))
        self.at = placed.bottom

    def _down(self, y: int) -> None:
        # A text is not crossed: the first, in row 2, is left below it.
        self.lines.append(Line(((0, max(self.at, 3)), (0, y)), stream=True))

    def _norm(self, norm: NormMark) -> None:
        self._onto("norm", [label(norm.label)], norm.site)

    def _step(self, step: Step) -> None:
        if step.norm is not None:
            self._norm(step.norm)
        else:
            self._onto("box", [label(line) for line in step.lines])

    def _state(self, name: str, y: int) -> None:
        """The name that the equation gives the state, at its left."""
        self._left("text", label(name), y, -1 - cells(label(name)))

    # -- layers -----------------------------------------------------------------------------------------------------

    def _blocks(self) -> None:
        for position, block in enumerate(self.stack.blocks):
            if position and not self.stack.series:
                self._put("text", ["or"], self.at + 2)
                self.at += 3
                self._block(block, self.at + 1)
            else:
                top = self.at + 2
                self._down(top)
                self._block(block, top)

    def _block(self, block: BlockMark, top: int) -> None:
        """The frame around one layer, and what is in it; the stream enters it at its upper border."""
        title = textwrap.wrap(label(block.title, LONG), _TITLE, break_on_hyphens=False)
        first = len(self.shapes)
        for row, line in enumerate(title):
            self._left("text", line, top + 1 + row, 2)
        self.at = top
        self._down(top + len(title))
        self.at = top + len(title)
        self.words.append(label(block.title, LONG))
        for add in block.adds:
            self._add(add)
        if block.unknown:
            self._onto("sum", ["?"])
            self._left("text", label(block.unknown, PAGE // 2), self.at, 4)
            self.words.append(label(block.unknown, LONG))
        elif block.result:
            self._state(block.result, self.at + 2)
        bottom = self.at + 3
        self._down(bottom)
        self.at = bottom
        inside = self.shapes[first:]
        left, right = min(0, *(s.x for s in inside)) - 2, max(s.x + s.width for s in inside) + 2
        self.shapes.append(Shape("frame", left, top, right - left, bottom - top + 1))

    def _add(self, add: AddMark) -> None:
        if add.state:
            self._state(add.state, self.at + (2 if add.carried is None else 1))
        if add.carried is not None:
            self._norm(add.carried)
        tap = self.at + 2
        merge = self._branches(add, tap)
        if add.shortcut:
            self._down(tap + 2)
            self.at = tap + 2
            self._put("factor", [columns.times(add.shortcut)], tap + 2)
        self._down(merge)
        self._put("sum", [{"": "+", "?": "?"}.get(add.merge, "~")], merge)
        self.at = merge
        if add.merge not in ("", "?"):
            self._left("text", label(add.merge, PAGE // 2), merge + 1, 2)
        if add.norm_post is not None:
            self._norm(add.norm_post)
        self.words.append(_said(add))

    # -- branches ---------------------------------------------------------------------------------------------------

    def _branches(self, add: AddMark, tap: int) -> int:
        """Every branch of one add, from the row where they leave the stream; the row where they are added."""
        groups = columns.order(add)
        norms = any(b.norm_in for b in groups)
        shared = len({b.norm_in for b in groups if b.norm_in}) < sum(b.norm_in is not None for b in groups)
        split = tap + (4 if norms and shared else 2 if norms else 0)
        ends: list[tuple[int, int]] = []
        for position, branch in enumerate(groups):
            x = self.columns[position]
            self._enter(branch, groups[:position], x, tap, split)
            ends.append((x, self._branch(branch, x, split + 2)))
        merge = max(y for _, y in ends) + 2
        for x, y in ends:
            self.lines.append(Line(((x, y), (x, merge), (0, merge)), arrow=True))
        return merge

    def _enter(self, branch: BranchMark, before: list[BranchMark], x: int, tap: int, split: int) -> None:
        """The way from the stream into a branch: by a norm of its own, by that of a branch beside it, or straight."""
        if branch.detached:
            return
        norm = branch.norm_in
        owner = next((i for i, b in enumerate(before) if norm is not None and b.norm_in == norm), None)
        if owner is not None:
            self.lines.append(Line(((self.columns[owner], split), (x, split), (x, split + 2))))
            return
        self.lines.append(Line(((0, tap), (x, tap), (x, split + 2))))
        if norm is not None:
            self._put("norm", [label(norm.label)], tap + 2, x, norm.site)

    def _branch(self, branch: BranchMark, x: int, top: int) -> int:
        """The box of a branch and what its update passes; the last row of it."""
        box = self._put("box", columns.box(branch), top, x, branch.site)
        if branch.reads:
            row, edge = top + box.height // 2, box.x + box.width - 1
            text = label(branch.reads)
            self._left("text", text, row, edge + 5)
            self.lines.append(Line(((edge + 3, row), (edge, row)), arrow=True))
        last = box.bottom
        for kind, text, site in columns.after(branch):
            self.lines.append(Line(((x, last), (x, last + 2))))
            last = self._put(kind, [text], last + 2, x, site).bottom
        return last


def _said(add: AddMark) -> str:
    """One add in words, for a reader who does not see the picture."""
    said = " and ".join(_branch_said(b) for b in add.branches)
    carried = f"the state passes {label(add.carried.label)}; " if add.carried is not None else ""
    shortcut = f", the state times {label(add.shortcut)}" if add.shortcut else ""
    post = f", then {label(add.norm_post.label)}" if add.norm_post is not None else ""
    how = {"": "added", "?": "joined in a way that is not declared"}.get(add.merge, label(add.merge, PAGE))
    return f"{carried}{said}: {how}{shortcut}{post}"


def _branch_said(branch: BranchMark) -> str:
    parts = [label(branch.name)]
    if branch.norm_in is not None:
        parts.append(f"of {label(branch.norm_in.label)}")
    if branch.reads:
        parts.append(f"reading {label(branch.reads)}")
    if branch.norm_out is not None:
        parts.append(f"through {label(branch.norm_out.label)}")
    if branch.factor:
        parts.append(f"times {label(branch.factor)}")
    return " ".join(parts)
