"""A checkpoint with findings, beside which waivers, baselines and config files are written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

from blockaudit import resources
from tests.cli.conftest import Outcome
from tests.support.checkpoint import config, drop
from tests.support.manifests import repinned

Run = Callable[..., Outcome]
# The first second of 2026-06-01.
JUNE = 1780272000
WAIVER = {"rule": "epsilon-mismatch", "scope": "decoder.*", "reason": "retrained", "owner": "norms", "expires": "DATE"}


def changed(folder: Path, name: str = "ckpt", epsilon: float = 1e-5) -> Path:
    """A checkpoint whose epsilon is not the pinned one; `pinned.json` beside it is the manifest."""
    return repinned("llama", config(rms_norm_eps=epsilon))(folder / name)


def broken(folder: Path) -> Path:
    """The same, and a norm is missing."""

    def edit(draft: Any) -> None:
        config(rms_norm_eps=1e-5)(draft)
        drop("model.layers.0.input_layernorm.weight")(draft)

    return repinned("llama", edit)(folder / "broken")


def waiver(**changes: Any) -> str:
    """One waiver as TOML; a value of None leaves its key out."""
    keys = {**WAIVER, "expires": "2026-12-31", **changes}
    lines = [
        f"{k} = {json.dumps(v) if isinstance(v, str) and not v.startswith('{') else v}"
        for k, v in keys.items()
        if v is not None
    ]
    return "\n".join(["[[waivers]]", *lines, ""])


@dataclass(frozen=True)
class Audited:
    """What one command line with `--format json` said."""

    status: int
    report: dict[str, Any]
    err: str

    @property
    def names(self) -> list[str]:
        return [f["name"] for f in self.report["findings"]]

    @property
    def suppressed(self) -> list[tuple[str, str]]:
        return [(s["by"], s["finding"]["name"]) for s in self.report.get("suppressed", [])]


def audited(run: Run, *argv: str | Path) -> Audited:
    """Run it twice: the report validates, and is the same bytes both times."""
    first, second = run(*argv, "--format", "json"), run(*argv, "--format", "json")
    assert first.out, first.err
    assert first.out == second.out
    report = json.loads(first.out)
    Draft202012Validator(resources.schema("report")).validate(report)
    return Audited(first.status, report, first.err)
