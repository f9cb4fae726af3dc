"""Memory that runs out ends in a report that says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from blockaudit import pipeline
from blockaudit.trace.memory import ran_out
from blockaudit.trace.run import Pass
from tests.trace.clean import checkpoint


def too_much(*_args: Any, **_options: Any) -> None:
    """More than any machine has: torch's own allocator says no."""
    torch.empty(1 << 55, dtype=torch.uint8)


def test_an_allocation_that_fails_is_told_from_other_errors() -> None:
    with pytest.raises(RuntimeError) as caught:
        too_much()
    assert "memory ran out" in (ran_out(caught.value) or "")
    assert "memory ran out" in (ran_out(MemoryError()) or "")
    assert ran_out(RuntimeError("mat1 and mat2 shapes cannot be multiplied")) is None
    assert ran_out(ValueError("can't allocate memory")) is None


def test_what_was_compared_until_then_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Pass._layer  # pyright: ignore[reportPrivateUsage] - the place where a real run's memory goes

    def second(self: Pass, *args: Any) -> None:
        (too_much if args[2].number == 1 else layer)(self, *args)

    monkeypatch.setattr(Pass, "_layer", second)
    report = pipeline.conform(checkpoint(tmp_path, "llama"), dtype="float32", seq_len=16)
    assert report.verdict == "unverified"
    (told,) = [f for f in report.findings if f.severity == "warning"]
    assert told.name == "site-missing"
    assert "memory ran out" in told.message
    assert "--mode layer" in told.message
    run = report.conformance
    assert run is not None
    assert {"layers.0.mlp.branch"} <= {s.site for s in run.sites}
    assert not any(s.site.startswith("layers.1.") for s in run.sites)
