"""`--repro DIR`: the first divergence, cut out and written down so that it can be handed over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save

from blockaudit.records.conformance import Conformance, SiteResult
from blockaudit.records.sites import order
from blockaudit.trace.repro import case as cutting
from blockaudit.trace.repro import folder as folders
from blockaudit.trace.repro import script as scripts
from blockaudit.trace.repro.case import Case
from blockaudit.trace.scene import Seen


@dataclass
class Finder:
    """An observer that keeps the first local divergence of a pass, at its worst."""

    case: Case | None = None
    uncut: list[str] = field(default_factory=list[str])

    def look(self, seen: Seen) -> None:
        """One layer, or what lies between layers."""
        failing = [r for r in seen.results if r.mode == "local" and r.passed is False]
        if not failing:
            return
        worst = min(failing, key=_rank)
        if self.case is not None and _rank(self.case.result) <= _rank(worst):
            return
        found = cutting.of(seen, worst)
        if found is None:
            self.uncut.append(worst.site)
        else:
            self.case = found

    def take(self, case: Case | None, uncut: list[str]) -> None:
        """What another rank kept, where it comes earlier."""
        self.uncut += uncut
        if case is not None and (self.case is None or _rank(case.result) < _rank(self.case.result)):
            self.case = case


def _rank(r: SiteResult) -> tuple[object, float]:
    """The first site as executed; of one site the worst."""
    return order(r.site), -(r.observed / r.tolerance if r.tolerance else r.observed)


def written(folder: Path, finders: Sequence[Finder], run: Conformance, source: str) -> tuple[str, str]:
    """Write the repro of the run's first divergence: (why there is none to write, why it could not be written)."""
    first = run.first
    if first is None:
        return "--repro: nothing to write, for nothing differs", ""
    if first.mode != "local":
        return f"--repro: nothing to write: no operator differs by itself, only {first.mode} comparisons do", ""
    cases = [f.case for f in finders if f.case is not None]
    mine = [c for c in cases if (c.result.site, c.result.dtype) == (first.site, first.dtype)]
    if not mine:
        return f"--repro: nothing to write: {first.site} cannot be cut out of this run", ""
    case = mine[0]
    result = case.result
    title = f"{first.site} in {first.dtype}: {result.metric} {case.found:.6g} where {result.tolerance:.6g} is allowed"
    script = scripts.script(title, case.formula, result.metric, result.tolerance)
    tensors = {name: value.contiguous() for name, value in case.tensors.items()}
    files = {
        scripts.DATA: save(tensors),
        folders.SCRIPT: script.encode(),
        folders.README: _readme(case, run, source).encode("utf-8", "backslashreplace"),
    }
    try:
        folders.write(folder, files)
    except OSError as error:
        return "", f"cannot write --repro {str(folder)!r}: {error.strerror or error}"
    return "", ""


def _readme(case: Case, run: Conformance, source: str) -> str:
    result = case.result
    lines = [
        f"# {result.site}",
        "",
        f"The first operator of `{run.candidate}` whose value is not the one that the manifest gives:",
        f"{result.metric} {case.found:.6g} where {result.tolerance:.6g} is allowed.",
        "Nothing accumulates here: the input is the candidate's own.",
        "",
        f"- checkpoint: `{source}`",
        f"- judged in {result.dtype} on {run.device}, batch {run.batch} x {run.seq_len}, seed {run.seed}",
        f"- input: {case.row}",
        "",
        "```",
        f"python {folders.SCRIPT}",
        "```",
        "",
        f"needs torch and safetensors, prints {result.metric} and exits with 1. {_formula(case)}",
        "",
        "| tensor | shape | dtype | what it is |",
        "|---|---|---|---|",
        *(f"| `{n}` | {list(v.shape)} | {_dtype(v)} | {_said(n, case)} |" for n, v in case.tensors.items()),
    ]
    if case.left_out:
        lines += ["", f"Too large to be here: {', '.join(f'`{key}`' for key in case.left_out)}."]
    edits = [d for d in run.diagnosis if d.group]
    if edits:
        best = edits[0]
        lines += [
            "",
            f"With `{best.field}` {best.value!r} for {best.declared!r} the reference agrees with the candidate.",
        ]
    return "\n".join(lines) + "\n"


def _formula(case: Case) -> str:
    if case.formula == scripts.stored():
        return "What is expected is read from the file: no few lines compute it."
    return "What is expected is computed from the formula that the manifest declares."


def _said(name: str, case: Case) -> str:
    told = {
        "observed": "what the candidate gives",
        "expected": "what the reference gives",
        "x": "what the operator reads",
    }
    if name in case.keys:
        return f"`{case.keys[name]}` of the checkpoint"
    return told.get(name, "an update that the sum adds")


def _dtype(value: torch.Tensor) -> str:
    return str(value.dtype).removeprefix("torch.")
