"""A text stack inside a larger model: where it stands, and what lies beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator

import msgspec
from msgspec.structs import replace

from blockaudit.manifest.library import text_place
from blockaudit.manifest.text_stack import dotted
from blockaudit.reconcile.audit import Audit, Reconciled
from blockaudit.records.binding import Rename
from blockaudit.records.contract import ContractRow
from blockaudit.records.report import Finding

# Fields that evidence, or the subject of a finding, cites.
_CITED = re.compile(r"config\.json: (\w[\w.]*(?:, \w[\w.]*)*)")


class Beside(msgspec.Struct, frozen=True):
    """A part of a larger model that is not its text stack: the first segments of its keys, and the keys."""

    name: str
    keys: tuple[str, ...]


def root(reconciled: Reconciled) -> Rename | None:
    """The root that the text stack has in the larger model, where it is not its own."""
    return next((r for r in reconciled.binding.renames if r.kind == "prefix"), None)


def is_beside(reconciled: Reconciled, key: str) -> bool:
    """Whether an unexpected key belongs to another part of the larger model than its text stack."""
    moved = root(reconciled)
    if moved is not None and moved.old and key.startswith(moved.old):
        key = moved.new + key[len(moved.old) :]
    elif moved is not None and key.startswith(moved.new) and key not in reconciled.binding.stored_name:
        return True
    return key.partition(".")[0] not in {t.expected.template.partition(".")[0] for t in reconciled.binding.templates}


def beside(audit: Audit) -> Iterator[Beside]:
    """The parts of the larger model that were not audited, in the order of their keys."""
    reconciled = audit.reconciled
    if reconciled is None or not audit.nested or not audit.keys_known:
        return
    parts: dict[str, list[str]] = {}
    shared = _shared(reconciled)
    for key in reconciled.binding.unexpected:
        if is_beside(reconciled, key):
            parts.setdefault(_part(key, shared), []).append(key)
    yield from (Beside(name, tuple(keys)) for name, keys in parts.items())


def _shared(reconciled: Reconciled) -> tuple[str, ...]:
    """Roots that the text stack shares with other parts: `model.` of `model.language_model.`."""
    moved = root(reconciled)
    names = moved.old.split(".")[:-1] if moved is not None else []
    return tuple(".".join(names[:i]) + "." for i in range(len(names), 0, -1))


def _part(key: str, shared: tuple[str, ...]) -> str:
    """The first segment of a key that is the part's own."""
    above = next((head for head in shared if key.startswith(head)), "")
    return above + key[len(above) :].partition(".")[0]


def as_written(audit: Audit) -> Callable[[str], str]:
    """Turns what cites config.json as the text stack reads it into what cites it as the larger model has written it."""
    whole = audit.checkpoint.config
    place = text_place(whole) if audit.nested else ()
    if not place or whole is None:
        return str

    def cited(hit: re.Match[str]) -> str:
        return "config.json: " + ", ".join(dotted(whole, place, key) for key in hit[1].split(", "))

    return lambda words: _CITED.sub(cited, words) if "config.json" in words else words


def rows_as_written(audit: Audit, rows: tuple[ContractRow, ...]) -> tuple[ContractRow, ...]:
    """Contract rows with evidence that cites config.json as it is written."""
    written = as_written(audit)
    if written is str:
        return rows
    return tuple(
        replace(row, statements={w: replace(s, evidence=written(s.evidence)) for w, s in row.statements.items()})
        for row in rows
    )


def as_stored(findings: Iterable[Finding], audit: Audit) -> tuple[Finding, ...]:
    """The findings of a text stack with its tensors and config fields called as the larger model calls them."""
    written = as_written(audit)
    if written is not str:
        findings = [replace(f, subject=written(f.subject), evidence=written(f.evidence)) for f in findings]
    reconciled = audit.reconciled
    moved = root(reconciled) if reconciled is not None and audit.nested else None
    if reconciled is None or moved is None:
        return tuple(findings)
    binding = reconciled.binding

    def stored(key: str) -> str:
        if key in binding.tensors or key in audit.checkpoint.tensors:
            return binding.stored(key)
        return moved.old + key[len(moved.new) :] if key.startswith(moved.new) else key

    return tuple(replace(f, tensors=tuple(stored(k) for k in f.tensors)) if f.tensors else f for f in findings)
