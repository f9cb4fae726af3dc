"""Models of nobody's library: each is read right, or answered with what could not be read."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from blockaudit.graph.norms import Norm
from blockaudit.graph.reader import Reader
from blockaudit.graph.record import record_module
from blockaudit.graph.stream import Stream
from tests.graph.modules import Is, Truth, cases

CASES = cases()
UNREAD = {"step: index_add"}


def _norm(norm: Norm | None) -> Is | None:
    if norm is None:
        return None
    return Is(norm.family, norm.epsilon, norm.epsilon_location, norm.variance_correction, norm.scale_offset)


def _read(stream: Stream) -> Any:
    """Adds with branches, their norms and factors; the final norm."""
    adds = [
        (
            a.shortcut_scale,
            _norm(a.norm_post),
            tuple((b.kind, _norm(b.norm_in), _norm(b.norm_out), b.scale) for b in a.branches),
        )
        for a in stream.adds
    ]
    return adds, _norm(stream.embed_norm), _norm(stream.final_norm)


def _expected(truth: Truth) -> Any:
    norm = truth.norm
    layer = [
        (
            truth.shortcut[i] if isinstance(truth.shortcut, tuple) else truth.shortcut,
            norm if truth.post[min(i, len(truth.post) - 1)] else None,
            tuple((k, norm if n else None, norm if o else None, s) for k, n, o, s in branches),
        )
        for i, branches in enumerate(truth.adds)
    ]
    adds = layer * 2
    if truth.shifted:
        adds[-1] = (adds[-1][0], None, adds[-1][2])
    return adds, norm if truth.shifted else None, norm if truth.final else None


@cache
def outcome(name: str) -> tuple[str, str]:
    """("right" | "unclassified" | "wrong", what was read)."""
    build, truth = CASES[name]
    torch.manual_seed(3)
    reader = Reader(record_module(build()))
    end = reader.end()
    stream = reader.stream(end) if end is not None else None
    if stream is None or stream.unread:
        return "unclassified", stream.unread if stream else "no end"
    read, expected = _read(stream), _expected(truth)
    if truth.readable and read == expected:
        return "right", ""
    return "wrong", f"{read}\n{expected}"


@pytest.mark.parametrize("name", CASES)
def test_a_module_is_read_right_or_not_at_all(name: str) -> None:
    result, why = outcome(name)
    # Only what this list names may go unread although the contract has words for it.
    allowed = ("right",) if CASES[name][1].readable and name not in UNREAD else ("right", "unclassified")
    assert result in allowed, why


def test_most_modules_are_read() -> None:
    readable = [n for n, (_, truth) in CASES.items() if truth.readable]
    right = sum(outcome(n)[0] == "right" for n in readable)
    print(f"{right} of {len(readable)} readable modules read right; {len(CASES) - len(readable)} others unclassified")
    assert right == len(readable) - len(UNREAD)


if __name__ == "__main__":
    for case in CASES:
        print(case, *outcome(case))
