"""SARIF 2.1.0 (OASIS): one run for each report, for code scanning and every viewer that reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from blockaudit.records.conformance import Conformance
from blockaudit.records.report import Finding, Report, Suppressed
from blockaudit.report.locate import places, uri
from blockaudit.report.plain import plain
from blockaudit.report.sarif_rules import rules
from blockaudit.report.verdict import why
from blockaudit.report.words import count, shortened

FORMAT = "sarif"
SUFFIX = ".sarif"

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ROOT = "%SRCROOT%"
# Code scanning refuses a run of more than 25,000 results.
_RESULTS = 20_000
_TENSORS = 20


def render(report: Report) -> str:
    """One log with one run."""
    return render_many([report])


def render_many(reports: Sequence[Report]) -> str:
    """One log with a run for each report."""
    import json

    seen: Counter[str] = Counter()
    log = {"$schema": SCHEMA, "version": "2.1.0", "runs": [_run(report, seen) for report in reports]}
    return json.dumps(log, ensure_ascii=True, allow_nan=False, indent=1) + "\n"


def _run(report: Report, seen: Counter[str]) -> dict[str, Any]:
    held = report.suppressed[: _RESULTS // 2]
    findings = report.findings[: _RESULTS - len(held)]
    described = rules(report, (*findings, *(one.finding for one in held)))
    index = {code: number for number, code in enumerate(described)}
    hub = report.subject.revision
    return {
        "tool": {"driver": {"name": "blockaudit", "version": _text(report.version), "rules": list(described.values())}},
        "automationDetails": {"id": _category(report, seen)},
        "invocations": [_invocation(report, len(findings) + len(held))],
        **({"versionControlProvenance": [_provenance(report)]} if hub else {}),
        **({"artifacts": list(_artifacts(report))} if report.subject.hashes else {}),
        "results": list(_results(report, findings, held, index)),
        "columnKind": "unicodeCodePoints",
        "properties": _properties(report),
    }


def _category(report: Report, seen: Counter[str]) -> str:
    """What tells this run from the others of an upload, and is the same next time: it ends before the last slash."""
    name = f"blockaudit/{report.kind}/{uri(report.level)}/{uri(report.subject.source)}"
    seen[name] += 1
    return f"{name}/" if seen[name] == 1 else f"{name}/{seen[name]}/"


def _invocation(report: Report, told: int) -> dict[str, Any]:
    """An audit that rejects was carried out: only a run that did not reach its end was not."""
    run = report.conformance
    unfinished = run.unfinished if run is not None else ""
    left = len(report.findings) + len(report.suppressed) - told
    notes = [("error", f"not every layer was compared: {unfinished}")] if unfinished else []
    notes += [("warning", f"{count(left, 'more finding')} (whole in --format json)")] if left else []
    return {
        "executionSuccessful": not unfinished,
        "exitCode": report.exit_status,
        "exitCodeDescription": report.verdict,
        "toolExecutionNotifications": [{"level": level, "message": {"text": _message(said)}} for level, said in notes],
    }


def _provenance(report: Report) -> dict[str, Any]:
    """The hub's repository and the commit that was read."""
    repository = report.subject.source.rpartition("@")[0] or report.subject.source
    return {"repositoryUri": uri(repository), "revisionId": _text(report.subject.revision)}


def _artifacts(report: Report) -> Iterator[dict[str, Any]]:
    for name, digest in sorted(report.subject.hashes.items()):
        path = f"{report.subject.source.rstrip('/')}/{name}"
        yield {"location": _artifact(path), "hashes": {"sha-256": _text(digest)}}


def _results(
    report: Report, findings: Sequence[Finding], held: Sequence[Suppressed], index: dict[str, int]
) -> Iterator[dict[str, Any]]:
    """Findings, then those suppressed. Where a run has suppressions every result says whether it is suppressed."""
    seen: Counter[tuple[str, str]] = Counter()
    for finding in findings:
        result = _result(finding, report, index, seen)
        yield {**result, "suppressions": []} if report.suppressed else result
    for one in held:
        yield {**_result(one.finding, report, index, seen), "suppressions": [_suppression(one)]}


def _result(finding: Finding, report: Report, index: dict[str, int], seen: Counter[tuple[str, str]]) -> dict[str, Any]:
    first, *others = places(finding, report)
    seen[finding.code, finding.subject] += 1
    return {
        "ruleId": finding.code,
        "ruleIndex": index[finding.code],
        "kind": "fail",
        "level": finding.severity,
        "message": {"text": _message(finding.message)},
        "locations": [
            {"physicalLocation": _physical(first.path, first.line), "logicalLocations": list(_logical(finding))}
        ],
        **({"relatedLocations": [_related(i, p.path, p.line) for i, p in enumerate(others)]} if others else {}),
        "partialFingerprints": _fingerprints(finding, seen[finding.code, finding.subject]),
        "properties": _about(finding),
    }


def _physical(path: str, line: int) -> dict[str, Any]:
    # A weight file has no lines; code scanning still asks every result for one.
    return {"artifactLocation": _artifact(path), "region": {"startLine": max(line, 1)}}


def _related(number: int, path: str, line: int) -> dict[str, Any]:
    return {"id": number, "physicalLocation": _physical(path, line), "message": {"text": _message(path)}}


def _artifact(path: str) -> dict[str, str]:
    reference = uri(path)
    return {"uri": reference} if "://" in reference else {"uri": reference, "uriBaseId": _ROOT}


def _logical(finding: Finding) -> Iterator[dict[str, str]]:
    """The sites of the contract that a finding speaks of, then its tensors, each once as it is shown."""
    named = [("member", site) for site in (finding.subject, *finding.also) if site]
    named += [("variable", key) for key in finding.tensors[:_TENSORS]]
    for kind, name in dict.fromkeys((kind, _text(name)) for kind, name in named):
        yield {"name": name.rpartition(".")[2], "fullyQualifiedName": name, "kind": kind}


def _fingerprints(finding: Finding, number: int) -> dict[str, str]:
    """What makes it the same finding in the next run, wherever its lines and values have moved."""
    import hashlib

    named = "\0".join((finding.code, finding.name, finding.subject)).encode("utf-8", "backslashreplace")
    digest = f"{hashlib.sha256(named).hexdigest()[:32]}:{number}"
    # The second is the one that code scanning goes by; it would make its own of the line's text.
    return {"blockaudit/v1": digest, "primaryLocationLineHash": digest}


def _about(finding: Finding) -> dict[str, Any]:
    return {
        "name": finding.name,
        "subject": _text(finding.subject),
        "expected": _value(finding.expected),
        "observed": _value(finding.observed),
        "evidence": _text(finding.evidence),
        "help": _text(finding.help),
        "tensors": len(finding.tensors),
        "lab": list(finding.lab),
    }


def _suppression(one: Suppressed) -> dict[str, Any]:
    said = (one.reason, f"owner {one.owner}" if one.owner else "", f"until {one.expires}" if one.expires else "")
    reason = ", ".join(_text(part) for part in said if part)
    return {
        "kind": "external",
        "status": "accepted",
        "justification": f"{one.by}: {reason}" if reason else one.by,
    }


def _properties(report: Report) -> dict[str, Any]:
    agrees = Counter(row.agrees for row in report.contract)
    unknown = sum(not row.known for row in report.contract)
    choice = report.manifest
    return {
        "kind": report.kind,
        "verdict": report.verdict,
        "why": why(report),
        "level": _text(report.level),
        "source": _text(report.subject.source),
        "manifest": None if choice is None else {"id": _text(choice.id), "sha256": choice.sha256},
        "summary": {
            "errors": report.count("error"), "warnings": report.count("warning"), "notes": report.count("note"),
            "suppressed": len(report.suppressed),
        },
        "contract": {
            "fields": len(report.contract), "agree": agrees[True], "disagree": agrees[False],
            "notChecked": agrees[None], "unknown": unknown,
        },
        **({} if report.conformance is None else {"conformance": _conformance(report.conformance)}),
    }  # fmt: skip


def _conformance(run: Conformance) -> dict[str, Any]:
    compared = [site for site in run.sites if site.passed is not None]
    first = run.first
    return {
        "candidate": _text(run.candidate),
        "referenceDepth": run.depth,
        "compared": len(compared),
        "failed": sum(not site.passed for site in compared),
        "firstDivergence": None if first is None else {
            "site": _text(first.site), "mode": first.mode, "metric": _text(first.metric),
            "observed": plain(first.observed), "tolerance": plain(first.tolerance),
        },
    }  # fmt: skip


def _value(said: Any) -> Any:
    """A value as JSON can carry it; of one that is long, its beginning."""
    whole = plain(said)
    if isinstance(whole, bool | int | float) or whole is None:
        return whole
    return _text(whole) if isinstance(whole, str) else _text(repr(whole))


def _text(text: str) -> str:
    return shortened(text)


def _message(text: str) -> str:
    """A viewer takes `[a](b)` for a link and `{0}` for an argument: names may not make either."""
    import re

    return re.sub(r"\{(\d+)\}", r"{{\1}}", _text(text)).replace("](", "\\](")
