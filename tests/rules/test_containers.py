"""Notes on containers that are not Hugging Face's: what is read in another layout, and what is not covered."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.audit import Case, Fires, Near, check, ids
from tests.support.checkpoint import family
from tests.support.gguf import built


def distributed(*beside: str) -> Any:
    """The tiny LLaMA as torch.distributed.checkpoint saves it, with more state beside it."""

    def build(folder: Path) -> Path:
        torch = pytest.importorskip("torch")
        from tests.support.distributed import save, weights

        return save(folder, {"model": weights(), **{key: {"x": torch.zeros(3)} for key in beside}})

    return build


CASES: list[Case] = [
    Fires("layout-converted", "a GGUF file", built(), severity="note", exit=0, subject="model.gguf"),
    Near("layout-converted", "the same family as safetensors", family("llama")),
    Fires(
        "part-not-covered",
        "the optimizer's state beside the model",
        distributed("optimizer"),
        severity="note",
        exit=0,
        subject=".metadata",
        observed=1,
        says=["1 tensor of"],
    ),
    Near("part-not-covered", "a model alone", distributed()),
]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_case(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
