from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.audit import inspect
from tests.support.gguf import llama, numbers, write
from tests.support.hub import SOURCE, Hub


def test_a_gguf_on_a_hub(connected: Callable[[Path], Hub], tmp_path: Path) -> None:
    it = llama()
    it.tensors["token_embd.weight"] = numbers((200_000, 8))
    it.values["vocab_size"] = 200_000
    folder = write(tmp_path / "repository" / "model.gguf", it).parent
    hub = connected(folder)
    outcome = inspect(SOURCE)
    assert (outcome.status, outcome.grave) == (0, []), outcome.err
    assert hub.sent < (folder / "model.gguf").stat().st_size / 2


def test_a_distributed_checkpoint_on_a_hub(connected: Callable[[Path], Hub], tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tests.support.distributed import save, weights

    connected(save(tmp_path / "repository", weights()))
    outcome = inspect(SOURCE)
    assert (outcome.status, outcome.grave) == (0, []), outcome.err
