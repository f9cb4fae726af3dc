"""A model with nothing wrong raises no alarm: one of every topology in bfloat16 (and so in float32 as well)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.trace.clean import checkpoint, conforms

# Pre-LN, four norms and softcaps, post-branch, parallel, Post-LN, two stacks, experts, learned positions, sharing.
FAMILIES = ("llama", "gemma2", "olmo2", "gpt_neox", "bert", "t5", "qwen3_moe", "opt", "albert")


@pytest.mark.parametrize("family", FAMILIES)
def test_no_false_alarm(family: str, tmp_path: Path) -> None:
    report = conforms(checkpoint(tmp_path, family), dtype="bfloat16")
    run = report.conformance
    assert run is not None
    assert run.depth == "full"
    assert all(s.passed for s in run.sites)
    assert {s.dtype for s in run.sites} == {"float32", "bfloat16"}
    assert {s.mode for s in run.sites} == {"local", "layer", "end-to-end"}
