"""A conversion in the terminal: what was written from what, what was proved of it, and the hashes."""

from __future__ import annotations

from collections import Counter

from blockaudit.records.conversion import Conversion, Ends
from blockaudit.report.escape import escape
from blockaudit.report.layout import Line, wrapped
from blockaudit.report.words import count, shortened, size


def conversion(done: Conversion, width: int) -> list[Line]:
    """The whole section."""
    lines: list[Line] = [(), (("Conversion", "head"),)]
    for label, text in facts(done):
        lines += wrapped(f"  {label:<10}  ", text, width)
    return lines


def brief(done: Conversion, width: int) -> list[Line]:
    """One sentence: what was written, and what was proved."""
    return [(), *wrapped("", f"{origins(done)}; {proved(done)}", width)]


def facts(done: Conversion) -> list[tuple[str, str]]:
    """Each fact with its label."""
    backwards = ", run backwards" if done.map.reversed and "revers" not in done.map.name else ""
    said = [
        ("map", f"{escape(done.map.name)}{backwards}  (sha256 {done.map.sha256[:16]}...)"),
        ("source", end(done.source)),
        ("target", end(done.target)),
        ("tensors", origins(done)),
        ("round trip", proved(done)),
        ("config", ", ".join(shortened(row.key) for row in done.config) or "the same on both sides"),
        ("carried", ", ".join(shortened(row.name) for row in done.carried) or "no other file"),
    ]
    if done.conform is not None:
        said.append(("conform", shortened(str(done.conform.get("said", "")))))
    return said


def end(of: Ends) -> str:
    """One end in a line, with the hash that does not depend on its files."""
    told = f"{count(len(of.files), 'file')}, {count(of.tensors, 'tensor')}, {size(of.bytes)}"
    manifest = f"{escape(of.manifest)}: " if of.manifest else ""
    return f"{manifest}{told}; semantic hash {of.semantic}" if of.semantic else f"{manifest}{told}; not hashed"


def origins(done: Conversion) -> str:
    """How many tensors of the target came from what."""
    how = Counter(row.how for row in done.tensors)
    said = [f"{how[word]:,} {word}" for word in ("copied", "computed", "filled") if how[word]]
    others = ((len(done.aliases), "tied, not stored"), (len(done.dropped), "dropped"))
    return ", ".join([*said, *(f"{number:,} {word}" for number, word in others if number)])


def proved(done: Conversion) -> str:
    """What the way back gave."""
    same = sum(row.tensors for row in done.round_trip if row.outcome == "identical")
    lost = [row for row in done.round_trip if row.outcome == "not_reversible"]
    parts = [f"{count(same, 'source tensor')} came back bit for bit"] if same else []
    for row in lost:
        parts.append(f"rule {row.rule} is not reversible: {escape(row.op)}: {shortened(row.why)}")
    return "; ".join(parts) or "nothing to prove: every tensor is copied"
