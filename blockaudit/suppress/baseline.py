"""A baseline: the findings that a model already has, as a small file that a review can read."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from blockaudit.errors import RequestError
from blockaudit.records.report import Finding, Report
from blockaudit.records.suppression import Baseline, Known
from blockaudit.suppress.matching import waivable

SCHEMA = "blockaudit/baseline/1"
_MAX_BYTES = 64 * 1024 * 1024


def of_findings(report: Report, findings: Iterable[Finding]) -> Baseline:
    """The baseline of an audit: of these findings, those that may be taken out of the verdict."""
    known = {(k.code, k.subject, k.fingerprint): k for k in (_known(f) for f in findings if waivable(f))}
    return Baseline(SCHEMA, report.kind, report.level, tuple(known[key] for key in sorted(known)))


def _known(finding: Finding) -> Known:
    return Known(finding.code, finding.subject, fingerprint(finding), finding.name, finding.message)


def key(finding: Finding) -> tuple[str, str, str]:
    """What a finding is known by."""
    return finding.code, finding.subject, fingerprint(finding)


def fingerprint(finding: Finding) -> str:
    """What was found, as 16 hexadecimal digits: what was expected and observed, in which tensors, layers and places.

    Words do not count, so that a message may be put better, unless nothing else says what was observed. In findings
    about numbers that were run a float counts by its power of ten: the size of an error differs between devices.
    """
    rounded = finding.code.startswith("V")
    observed = finding.message if finding.observed is None and not finding.tensors else finding.observed
    parts = [finding.expected, observed, sorted(finding.tensors), sorted(finding.also), finding.layers]
    said = json.dumps([_stable(part, rounded) for part in parts], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(said.encode()).hexdigest()[:16]


def _stable(value: Any, rounded: bool) -> Any:
    if isinstance(value, bool) or value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            return str(value)
        return f"{value:.0e}".partition("e")[2] if rounded else float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {str(k): _stable(v, rounded) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, Sequence):
        return [_stable(v, rounded) for v in cast("Sequence[Any]", value)]
    return repr(value)


def load(path: Path) -> Baseline:
    """A baseline file. Raises RequestError."""
    try:
        size = path.stat().st_size
        if size > _MAX_BYTES or not path.is_file():
            raise RequestError(f"baseline {str(path)!r}: expected a file of at most {_MAX_BYTES} bytes")
        found = msgspec.json.decode(path.read_bytes(), type=Baseline)
    except OSError as error:
        raise RequestError(
            f"baseline {str(path)!r}: cannot be read: {error.strerror}; --write-baseline writes one"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RequestError(f"baseline {str(path)!r}: {error}") from error
    if found.schema != SCHEMA:
        raise RequestError(f"baseline {str(path)!r}: expected schema {SCHEMA!r}, found {found.schema!r}")
    return found


def render(baseline: Baseline) -> str:
    """The file, the same bytes for the same findings, one key to a line so that a diff shows what came and went."""
    document = {
        "schema": baseline.schema,
        "kind": baseline.kind,
        "level": baseline.level,
        "findings": [
            {"code": k.code, "name": k.name, "subject": k.subject, "message": k.message, "fingerprint": k.fingerprint}
            for k in baseline.findings
        ],
    }
    return json.dumps(document, indent=1) + "\n"


def comparable(baseline: Baseline, kind: str, level: str) -> bool:
    """Whether an audit of this kind and level looks at all that the baseline's looked at."""
    return baseline.kind == kind and set(baseline.level.split(",")) <= {*level.split(","), "headers"}
