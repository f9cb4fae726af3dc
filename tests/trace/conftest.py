"""Tiny models in one thread: on a busy machine two threads wait for each other longer than they work."""

from __future__ import annotations

from collections.abc import Generator

import pytest

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
