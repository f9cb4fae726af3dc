"""T5X to transformers and back."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockaudit.pipeline.mapping import check_map
from tests.migrate.library.layouts import t5x
from tests.migrate.library.layouts.sizes import PLAIN, tokens
from tests.migrate.library.proving import agree, back, computed, same_bytes, saved, there


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize("gated", [True, False], ids=["gated", "plain"])
def test_t5x(tmp_path: Path, *, gated: bool, tied: bool) -> None:
    config = t5x.config(PLAIN, gated=gated, tied=tied)
    weights = t5x.weights(config, 1)
    target = there("t5x", saved(weights, config, tmp_path / "source"), tmp_path / "target")
    # Id 0 is the padding, which is masked.
    ids, decoded = tokens(PLAIN, 0).clamp(min=1), tokens(PLAIN, 1)[:, :7].clamp(min=1)
    agree(computed(target, ids, decoded), t5x.logits(weights, config, ids, decoded))
    same_bytes(back("t5x", target, tmp_path / "again"), weights)


def test_an_activation_that_transformers_computes_otherwise_is_refused(tmp_path: Path) -> None:
    """Flax's gelu is the tanh form; `feed_forward_proj: gelu` of transformers is the exact one."""
    config = t5x.config(PLAIN, gated=False) | {"mlp_activations": ["gelu"]}
    report = check_map("t5x", saved(t5x.weights(config, 1), config, tmp_path / "source"))
    assert [f.name for f in report.findings] == ["topology-change-needs-retraining"]
    assert "mlp.activation" in report.findings[0].message
