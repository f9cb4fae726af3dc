"""How a model is wired, whoever read it: stacks of blocks, residual adds, the branches and norms of each.

Neutral on purpose: a manifest fills it, an executed graph may, and a drawing needs nothing else. Texts are as their
source gives them; whoever draws them escapes them.
"""

from __future__ import annotations

import msgspec


class NormMark(msgspec.Struct, frozen=True):
    """One norm: what it is called, and its site (`decoder.mlp.norm_in`), which no other norm has."""

    label: str
    site: str


class Step(msgspec.Struct, frozen=True):
    """What the state passes on its way into the layers or out of them: a norm, or a box with a line for each part."""

    lines: tuple[str, ...] = ()
    norm: NormMark | None = None


class BranchMark(msgspec.Struct, frozen=True):
    """One branch of an add. `factor` multiplies its update, behind `norm_out`; nothing where it is 1.

    Two branches with one `norm_in` read it together. `reads` names what the branch takes from outside the stream
    (`memory`); with `detached` it reads that alone, and not the state.
    """

    name: str
    kind: str
    site: str
    norm_in: NormMark | None = None
    norm_out: NormMark | None = None
    inner: tuple[NormMark, ...] = ()
    notes: tuple[str, ...] = ()
    factor: str = ""
    reads: str = ""
    detached: bool = False


class AddMark(msgspec.Struct, frozen=True):
    """One residual add, of one branch or of several beside each other.

    `state` is the name of what enters. `shortcut` multiplies the state on the straight line, `carried` is a norm on
    that line, before branches and shortcut part: the normalised state is what is carried. `merge` says how they are
    joined where it is no plain sum.
    """

    branches: tuple[BranchMark, ...]
    state: str = ""
    shortcut: str = ""
    carried: NormMark | None = None
    norm_post: NormMark | None = None
    merge: str = ""


class BlockMark(msgspec.Struct, frozen=True):
    """One kind of layer. `unknown` says why there is nothing to draw."""

    title: str
    adds: tuple[AddMark, ...] = ()
    result: str = ""
    unknown: str = ""


class StackMark(msgspec.Struct, frozen=True):
    """One stack. `series`: its blocks follow one another; else each layer is one of them."""

    name: str
    start: str
    before: tuple[Step, ...]
    blocks: tuple[BlockMark, ...]
    series: bool
    after: tuple[Step, ...]
    end: str
    unplaced: tuple[NormMark, ...] = ()


class Wiring(msgspec.Struct, frozen=True):
    """A whole model, stacks in the order in which they run."""

    title: str
    stacks: tuple[StackMark, ...]
