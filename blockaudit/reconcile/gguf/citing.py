"""Evidence of a GGUF file cites its metadata, where that of other checkpoints cites config.json."""

from __future__ import annotations

import re

from msgspec.structs import replace

from blockaudit.records.checkpoint import Container
from blockaudit.records.contract import ContractRow
from blockaudit.records.report import Finding

_CITED = re.compile(r"config\.json: (\w[\w.]*(?:, \w[\w.]*)*)")


def text(words: str, container: Container | None) -> str:
    """A message or a piece of evidence with every citation of config.json led back to where its value stands."""
    if container is None or "config.json" not in words:
        return words
    places = container.places

    def cited(hit: re.Match[str]) -> str:
        keys = [places.get(key, f"GGUF metadata: nothing for {key}") for key in hit[1].split(", ")]
        return ", ".join(dict.fromkeys(keys))

    return _CITED.sub(cited, words).replace("config.json", "the GGUF metadata")


def rows(found: tuple[ContractRow, ...], container: Container | None) -> tuple[ContractRow, ...]:
    """Contract rows with their evidence led back."""
    if container is None:
        return found
    return tuple(
        replace(
            row, statements={w: replace(s, evidence=text(s.evidence, container)) for w, s in row.statements.items()}
        )
        for row in found
    )


def findings(found: tuple[Finding, ...], container: Container | None) -> tuple[Finding, ...]:
    """Findings with their words led back."""
    if container is None:
        return found
    return tuple(
        replace(
            f,
            subject=text(f.subject, container),
            message=text(f.message, container),
            evidence=text(f.evidence, container),
            help=text(f.help, container),
        )
        for f in found
    )
