"""What a rule is, and the few ways in which rules build their findings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from blockaudit.reconcile.audit import Audit
from blockaudit.reconcile.contract import same
from blockaudit.records.binding import TemplateBinding
from blockaudit.records.contract import ContractRow, Statement, Witness
from blockaudit.records.layers import spoken
from blockaudit.records.report import Finding, Severity

Check = Callable[[Audit], Iterable[Finding]]


class Rule(msgspec.Struct, frozen=True):
    """One rule: its code and name, what it is by default, the failures of the lab it names, and what to do about it."""

    code: str
    name: str
    help: str
    severity: Severity = "error"
    lab: tuple[int, ...] = ()
    # A finding of this rule leaves the audit unverified where nothing rejects it.
    unverified: bool = False
    # Whether a waiver or a baseline may take a finding out of the verdict: not where it means that files went unread.
    waivable: bool = True

    def finding(
        self,
        subject: str,
        message: str,
        *,
        tensors: Sequence[str] = (),
        expected: Any = None,
        observed: Any = None,
        evidence: str = "",
        severity: Severity | None = None,
        help: str | None = None,
        lab: Sequence[int] | None = None,
        also: Sequence[str] = (),
        layers: str = "",
    ) -> Finding:
        """A finding of this rule. severity, help, lab: in place of the rule's, where this one is milder or another."""
        return Finding(
            code=self.code,
            name=self.name,
            severity=severity or self.severity,
            subject=subject,
            message=message,
            tensors=tuple(tensors),
            expected=expected,
            observed=observed,
            evidence=evidence,
            help=self.help if help is None else help,
            lab=self.lab if lab is None else tuple(lab),
            also=tuple(also),
            layers=layers,
        )


def from_faults(rule: Rule, audit: Audit) -> Iterator[Finding]:
    """The faults that reading the files met under this rule's name."""
    for fault in audit.checkpoint.faults:
        if fault.rule == rule.name:
            yield rule.finding(
                fault.file,
                fault.message,
                tensors=fault.tensors,
                expected=fault.expected,
                observed=fault.observed,
                evidence=fault.evidence,
            )


def from_rows(rule: Rule, audit: Audit, wanted: Callable[[str], bool]) -> Iterator[Finding]:
    """Disagreeing contract rows whose field `wanted` accepts; sites that disagree in the same way are one finding."""
    yield from together(rule, disagreeing(audit, wanted))


def together(rule: Rule, rows: Iterable[ContractRow]) -> Iterator[Finding]:
    """Disagreeing rows, those that disagree in the same way as one finding."""
    groups: dict[str, list[ContractRow]] = {}
    for row in rows:
        # Measured evidence cites the numbers of its own site: what it says, and of which layers, is what sites share.
        values = tuple((w, s.value, s.layers if w == "measured" else s.evidence) for w, s in row.statements.items())
        groups.setdefault(repr((row.field.rpartition(".")[2], values)), []).append(row)
    for alike in groups.values():
        yield row_finding(rule, alike)


def disagreeing(audit: Audit, wanted: Callable[[str], bool]) -> Iterator[ContractRow]:
    """Rows on which witnesses disagree."""
    if audit.reconciled is not None:
        yield from (r for r in audit.reconciled.rows if r.agrees is False and wanted(r.field))


def row_finding(rule: Rule, rows: Sequence[ContractRow], severity: Severity | None = None) -> Finding:
    """One finding for rows that disagree in the same way."""
    first = rows[0]
    subject, _, name = first.field.rpartition(".")
    said, declared, _, other = opposed(first)
    odd = against(first)
    alike = [(w, s) for w, s in odd if same(s.value, other.value)]
    layers = next((s.layers for _, s in alike if s.layers), "")
    where = f" in {spoken(layers)}" if layers else ""
    others = [r.field.rpartition(".")[0] for r in rows[1:]]
    also = f"; the same at {', '.join(others)}" if others else ""
    voices = " and ".join(w for w, _ in alike)
    return rule.finding(
        subject,
        f"{name} is {said} {shown(declared.value)} and {voices} as {shown(other.value)}{where}{also}",
        expected=declared.value,
        observed=other.value,
        evidence="; ".join(f"{w}: {s.evidence}" for w, s in ((said, declared), *odd)),
        severity=severity,
        also=others,
        layers=layers,
    )


def against(row: ContractRow) -> list[tuple[Witness, Statement]]:
    """Every witness of a row that says something else than its first."""
    (_, expected), *others = row.statements.items()
    return [(w, s) for w, s in others if not same(expected.value, s.value)]


def opposed(row: ContractRow) -> tuple[Witness, Statement, Witness, Statement]:
    """The first two witnesses of a row that disagree: what is expected, and what was found."""
    first, expected = next(iter(row.statements.items()))
    witness, found = against(row)[0]
    return first, expected, witness, found


def diagnosed(rule: Rule, audit: Audit) -> Iterator[Finding]:
    """Verified edits of a conformance run that fall under this rule, of fields that the manifest has no row for."""
    run, reconciled = audit.conformance, audit.reconciled
    if run is None:
        return
    declared = reconciled.declared.fields if reconciled is not None else {}
    for edit in run.diagnosis:
        if not edit.group or edit.rule != rule.name or edit.field in declared:
            continue
        subject, _, name = edit.field.rpartition(".")
        where = f" in {spoken(edit.layers)}" if edit.layers else ""
        yield rule.finding(
            subject,
            f"{name} is declared {shown(edit.declared)} and measured as {shown(edit.value)}{where}",
            expected=edit.declared,
            observed=edit.value,
            evidence=f"the reference with this value agrees with the candidate ({edit.explains:.2%} of the error)",
            layers=edit.layers,
        )


def site(row: ContractRow) -> str:
    """The last part of a norm site's name, of its `present` row."""
    return row.field.removesuffix(".present").rpartition(".")[2]


def moved_norms(audit: Audit) -> Iterator[tuple[ContractRow | None, ContractRow | None]]:
    """Norms that run elsewhere than declared, by branch: the site that is left, and the site that is entered.

    One of the two is None where a norm is only gone, or only new.
    """
    branches: dict[str, list[ContractRow]] = {}
    for row in disagreeing(audit, lambda field: field.endswith(".present")):
        # Keys that are missing are named by key; here a config, the code or the numbers run the norm elsewhere.
        if runs(*opposed(row)[2:]):
            branches.setdefault(row.field.removesuffix(".present").rpartition(".")[0], []).append(row)
    for rows in branches.values():
        left = [r for r in rows if r.value("declared")]
        entered = [r for r in rows if not r.value("declared")]
        for i in range(max(len(left), len(entered))):
            yield (left[i] if i < len(left) else None), (entered[i] if i < len(entered) else None)


def runs(witness: Witness, said: Statement) -> bool:
    """Whether a statement is of what is run, and not of what keys and shapes show to be stored."""
    return witness in ("executed", "measured") or said.bytes_read.startswith("config.json")


Place = Literal["norm", "qk_norm", "final_norm"]


def gone_norms(audit: Audit, place: Place) -> Iterator[ContractRow]:
    """Norms of this place that the manifest declares and that is not run."""
    yield from (left for left, entered in moved_norms(audit) if left and not entered and _place(left) == place)


def new_norms(audit: Audit, place: Place) -> Iterator[ContractRow]:
    """Norms of this place that the manifest does not declare and that is run all the same."""
    yield from (entered for left, entered in moved_norms(audit) if entered and not left and _place(entered) == place)


def _place(row: ContractRow) -> Place:
    subject = row.field.removesuffix(".present")
    if subject.endswith(".final_norm"):
        return "final_norm"
    return "qk_norm" if subject.endswith((".inner.q", ".inner.k")) else "norm"


def shown(value: Any) -> str:
    """A value as a sentence shows it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(shown(v) for v in value) + "]"  # pyright: ignore[reportUnknownVariableType]
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def across(template: TemplateBinding, keys: Sequence[str]) -> str:
    """`model.layers.{l}.mlp.up_proj.weight, layers 0-31`: where in a template these keys lie."""
    from blockaudit.reconcile.expand import pattern, ranges

    text = template.expected.template
    names = [p.partition("}")[0] for p in text.split("{")[1:]]
    if not names:
        return text
    hits = [m.groups() for k in keys if (m := pattern(text).fullmatch(k))]
    words = {"l": "layers", "e": "experts"}
    where = [f"{words.get(n, n)} {ranges([int(h[i]) for h in hits])}" for i, n in enumerate(names) if hits]
    return ", ".join([text, *where])
