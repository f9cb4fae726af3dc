"""From an audit to its report: the same for every command that audits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import prod
from typing import Literal

import msgspec

from blockaudit import __version__
from blockaudit.checkpoint import storage
from blockaudit.manifest.library import Choice, Nearest
from blockaudit.manifest.load import LoadedManifest
from blockaudit.pipeline.picture import pictured
from blockaudit.pipeline.suppress import Suppression, settled
from blockaudit.reconcile import contract, inside
from blockaudit.reconcile.audit import Audit
from blockaudit.records.checkpoint import Checkpoint, TensorHeader
from blockaudit.records.report import Finding, ManifestChoice, Report, Subject, Verdict
from blockaudit.rules import documentation, registry


class Judging(msgspec.Struct, frozen=True):
    """What was asked of findings: which rules speak, what counts of what they say, and what rejects."""

    rules: tuple[registry.Entry, ...]
    strict: bool
    by: Suppression
    pictures: bool = False

    def rejected(self, findings: tuple[Finding, ...]) -> Verdict | None:
        """`rejected` where any finding rejects."""
        rejects = any(f.severity == "error" or (self.strict and f.severity == "warning") for f in findings)
        return "rejected" if rejects else None


def reported(
    kind: Literal["inspection", "conformance"],
    audit: Audit,
    chosen: tuple[Choice | Nearest, LoadedManifest | None],
    found: tuple[Finding, ...],
    how: Judging,
    otherwise: Callable[[tuple[Finding, ...]], Verdict],
) -> Report:
    """The report of what was found. `otherwise` gives the verdict where no finding that counts rejects."""
    alone = contract.reconcile([audit.alone.testimony]) if audit.alone is not None else ()
    rows = inside.rows_as_written(audit, audit.reconciled.rows) if audit.reconciled else alone

    def report(held: tuple[Finding, ...]) -> Report:
        return Report(
            kind=kind,
            verdict=how.rejected(held) or otherwise(held),
            level=audit.level,
            subject=subject_of(audit.checkpoint, audit.reconciled.binding.tensors if audit.reconciled else None),
            manifest=choice_of(*chosen),
            contract=rows,
            findings=held,
            not_checked=tuple(r.field for r in rows if r.agrees is None),
            version=__version__,
            rules=documentation.texts(),
            conformance=audit.conformance,
        )

    made = settled(report, found, how.rules, audit.checkpoint.source, how.by)
    return pictured(made, audit, chosen[1]) if how.pictures else made


def subject_of(checkpoint: Checkpoint, logical: Mapping[str, TensorHeader] | None = None) -> Subject:
    """The thing audited, counted. `logical` are its tensors unpacked, where they are known."""
    origin = storage.origin(checkpoint.folder)
    dtypes: dict[str, int] = {}
    # 90,000 tensors have a dozen shapes: what depends on the shape alone is worked out once for each.
    kinds = Counter((header.dtype, header.shape) for header in checkpoint.tensors.values())
    shapes = Counter(header.shape for header in (checkpoint.tensors if logical is None else logical).values())
    for (dtype, _), count in kinds.items():
        dtypes[dtype] = dtypes.get(dtype, 0) + count
    return Subject(
        source=checkpoint.source,
        format=checkpoint.format,
        files=tuple(f.name for f in checkpoint.files),
        tensors=len(checkpoint.tensors),
        # A shape that no memory holds is a fault, and no number of parameters.
        parameters=sum(held * count for shape, count in shapes.items() if 0 < (held := prod(shape)) < 2**64),
        bytes=sum(header.nbytes for header in checkpoint.tensors.values()),
        dtypes=dict(sorted(dtypes.items())),
        revision=origin.revision if origin else "",
        hashes={f.name: origin.hashes[f.name] for f in checkpoint.files if f.name in origin.hashes} if origin else {},
        read=origin.read if origin else 0,
        base=checkpoint.base,
    )


def choice_of(choice: Choice | Nearest, loaded: LoadedManifest | None) -> ManifestChoice | None:
    """The manifest as the report names it; None where there is none."""
    if loaded is None or isinstance(choice, Nearest):
        return None
    return ManifestChoice(
        loaded.manifest.architecture_id, loaded.id, choice.chosen_by, choice.confidence, loaded.sha256
    )
