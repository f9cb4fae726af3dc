"""Tiny models of torch: without it there is nothing to compare. In one thread, as tests/trace is."""

from __future__ import annotations

from collections.abc import Generator

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Generator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
