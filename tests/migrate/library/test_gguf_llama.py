"""GGUF files of LLaMA to transformers and back, tensors that are not quantised."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.migrate.library.layouts import gguf_llama
from tests.migrate.library.layouts.sizes import PLAIN, SQUARE, Sizes, tokens
from tests.migrate.library.proving import agree, back, computed, same_bytes, there

pytest.importorskip("gguf")
DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("sizes", "tied"), [(PLAIN, False), (PLAIN, True), (SQUARE, False)])
def test_gguf(tmp_path: Path, dtype: str, sizes: Sizes, *, tied: bool) -> None:
    config = gguf_llama.config(sizes)
    weights = gguf_llama.weights(sizes, 1, tied=tied)
    source = gguf_llama.save(weights, config, tmp_path / "source", dtype)
    stored = {k: t.to(DTYPES[dtype]) if t.ndim == 2 else t for k, t in weights.items()}
    target = there("gguf_llama", source, tmp_path / "target")
    wanted = gguf_llama.logits({k: t.float() for k, t in stored.items()}, config, tokens(sizes))
    agree(computed(target, tokens(sizes)), wanted)
    same_bytes(back("gguf_llama", target, tmp_path / "again"), stored)
