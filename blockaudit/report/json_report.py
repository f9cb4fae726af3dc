"""The report as JSON: contract section 3, key for key, and byte for byte the same for the same report."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from blockaudit.errors import RequestError
from blockaudit.records.contract import WITNESSES, ContractRow, Statement, Witness
from blockaudit.records.conversion import Conversion
from blockaudit.records.layers import spoken
from blockaudit.records.report import Finding, ManifestChoice, Report, Subject, Suppressed
from blockaudit.report import conformance_json
from blockaudit.report.plain import plain

FORMAT = "json"
SUFFIX = ".json"
# One report per line: a reader may follow a long run.
STREAMS = True

SCHEMA = "blockaudit/report/1"


def render(report: Report) -> str:
    """One report, indented."""
    return _dump(report, indent=1)


def render_many(reports: Sequence[Report]) -> str:
    """Several reports, one per line."""
    return "".join(_dump(report, indent=None) for report in reports)


def _dump(report: Report, indent: int | None) -> str:
    import json  # imported here: an audit that prints text has no use for it

    separators = (",", ":") if indent is None else (",", ": ")
    # ensure_ascii: lone surrogates (file names that are no UTF-8) survive as escapes, and no locale spoils the bytes.
    text = json.dumps(to_dict(report), ensure_ascii=True, allow_nan=False, indent=indent, separators=separators)
    return text + "\n"


def to_dict(report: Report) -> dict[str, Any]:
    """The JSON document of `report`, keys in the contract's order."""
    return {
        "schema": SCHEMA,
        "kind": report.kind,
        "verdict": report.verdict,
        "level": report.level,
        "tool": {"name": "blockaudit", "version": report.version},
        "subject": _subject(report.subject),
        "manifest": None if report.manifest is None else _manifest(report.manifest),
        "contract": [_row(row) for row in report.contract],
        "findings": [_finding(finding) for finding in report.findings],
        **({"suppressed": [_suppressed(one) for one in report.suppressed]} if report.suppressed else {}),
        "not_checked": list(report.not_checked),
        "gates": plain(report.gates),
        "evaluation_state": plain(report.evaluation_state),
        **({} if report.conformance is None else {"conformance": conformance_json.to_dict(report.conformance)}),
        **({} if report.conversion is None else {"conversion": msgspec.to_builtins(report.conversion)}),
        "summary": _summary(report),
    }


def _subject(subject: Subject) -> dict[str, Any]:
    return {
        "source": subject.source,
        **({"base": subject.base} if subject.base else {}),
        "format": subject.format,
        "files": list(subject.files),
        "tensors": subject.tensors,
        "parameters": subject.parameters,
        "bytes": subject.bytes,
        "dtypes": dict(sorted(subject.dtypes.items())),
        **({"revision": subject.revision} if subject.revision else {}),
        **({"hashes": dict(sorted(subject.hashes.items()))} if subject.hashes else {}),
    }


def _manifest(choice: ManifestChoice) -> dict[str, Any]:
    return {
        "architecture_id": choice.architecture_id,
        "id": choice.id,
        "chosen_by": choice.chosen_by,
        "confidence": choice.confidence,
        "sha256": choice.sha256,
    }


def _row(row: ContractRow) -> dict[str, Any]:
    said = {w: row.statements[w] for w in WITNESSES if w in row.statements}
    return {
        "field": row.field,
        **{w: plain(row.value(w)) for w in WITNESSES},
        "agrees": row.agrees,
        "evidence": {w: _evidence(statement) for w, statement in said.items()},
    }


def _evidence(said: Statement) -> str:
    """Where a value was read, with the layers that it speaks of where they are not all."""
    return f"{spoken(said.layers)}: {said.evidence}" if said.layers else said.evidence


def _finding(finding: Finding) -> dict[str, Any]:
    return {
        "code": finding.code,
        "name": finding.name,
        "severity": finding.severity,
        "subject": finding.subject,
        "tensors": list(finding.tensors),
        "message": finding.message,
        "expected": plain(finding.expected),
        "observed": plain(finding.observed),
        "evidence": finding.evidence,
        "help": finding.help,
        "lab": list(finding.lab),
        **({"places": [{"path": p.path, "line": p.line} for p in finding.places]} if finding.places else {}),
        **({"also": list(finding.also)} if finding.also else {}),
        **({"layers": finding.layers} if finding.layers else {}),
    }


def _suppressed(one: Suppressed) -> dict[str, Any]:
    return {
        "finding": _finding(one.finding),
        "by": one.by,
        "reason": one.reason,
        "owner": one.owner,
        "expires": one.expires,
    }


def _summary(report: Report) -> dict[str, int]:
    return {
        "errors": report.count("error"),
        "warnings": report.count("warning"),
        "notes": report.count("note"),
        "checked": sum(row.agrees is not None for row in report.contract),
        "unknown": sum(not row.known for row in report.contract),
    }


def from_dict(document: dict[str, Any]) -> Report:
    """The report that a JSON document carries; `to_dict(from_dict(d)) == d` for every `d` that `to_dict` made.

    What the JSON leaves out (`required`, `bytes_read`) comes back as the nearest thing it says.
    """
    if document.get("schema") != SCHEMA:
        raise RequestError(f"not a report: expected schema {SCHEMA!r}, found {document.get('schema')!r}")
    return Report(
        kind=document["kind"],
        verdict=document["verdict"],
        level=document["level"],
        subject=msgspec.convert(document["subject"], Subject),
        manifest=msgspec.convert(document["manifest"], ManifestChoice | None),
        contract=tuple(_row_from(row) for row in document["contract"]),
        findings=msgspec.convert(document["findings"], tuple[Finding, ...]),
        not_checked=tuple(document["not_checked"]),
        version=document["tool"]["version"],
        gates=tuple(document["gates"]),
        evaluation_state=document["evaluation_state"],
        conformance=conformance_json.from_dict(document["conformance"]) if "conformance" in document else None,
        conversion=msgspec.convert(document["conversion"], Conversion) if "conversion" in document else None,
        suppressed=msgspec.convert(document.get("suppressed", []), tuple[Suppressed, ...]),
    )


def _row_from(row: dict[str, Any]) -> ContractRow:
    evidence: dict[Witness, str] = row["evidence"]
    said: dict[Witness, Statement] = {
        w: Statement(row[w], evidence[w], evidence[w]) for w in WITNESSES if w in evidence
    }
    return ContractRow(row["field"], said, row["agrees"])
