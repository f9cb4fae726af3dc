"""No false alarm: every family of the library in three dtypes, and twenty seeds of five families."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.families import models
from tests.trace.clean import checkpoint, conforms

pytestmark = pytest.mark.soak
FIVE = ("llama", "gemma2", "gpt_neox", "bert", "qwen3_moe")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("family", sorted(models.CONFIGS))
def test_every_family(family: str, dtype: str, tmp_path: Path) -> None:
    conforms(checkpoint(tmp_path, family), dtype=dtype)


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("family", FIVE)
def test_twenty_seeds(family: str, seed: int, tmp_path: Path) -> None:
    conforms(checkpoint(tmp_path, family, seed), dtype="bfloat16", seed=seed)
