"""What names suggest where shapes do not decide: a reader's hint, never a rule."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from blockaudit.manifest.draft_keys import Template
from blockaudit.migrate.draft.pieces import Piece
from blockaudit.migrate.draft.records import Undecided

_WORD = re.compile(r"[A-Za-z]+")


def hints(
    undecided: Iterable[Undecided], mine: Mapping[Any, Sequence[Template]], theirs: Mapping[Any, Sequence[Piece]]
) -> Iterator[str]:
    """For each undecided piece the template of its shape whose words are nearest, where one alone is."""
    open_ = {name for one in undecided for name in one.subject.split(", ")}
    for kind, wanted in theirs.items():
        given = [t.text for t in mine.get(kind, ())]
        for piece in wanted:
            nearest = _nearest(piece.text, given)
            if piece.text in open_ and nearest is not None:
                yield f"by its name alone, which proves nothing, {nearest} may be {piece.text}"


def _nearest(text: str, given: Sequence[str]) -> str | None:
    scores = sorted(((_alike(text, name), name) for name in given), reverse=True)
    if not scores or not scores[0][0] or (len(scores) > 1 and scores[0][0] == scores[1][0]):
        return None
    return scores[0][1]


def _alike(one: str, two: str) -> float:
    a, b = (set(_WORD.findall(text.lower())) - {"l", "e", "weight", "bias"} for text in (one, two))
    return len(a & b) / len(a | b) if a | b else 0.0
