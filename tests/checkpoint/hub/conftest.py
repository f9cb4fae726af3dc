from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from blockaudit.checkpoint.hub import transport
from tests.support.checkpoint import family
from tests.support.hub import Hub

TOKEN = "hf_doNotShowThis"


@pytest.fixture
def connected(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Callable[[Path], Hub]]:
    """Serve a folder as the hub that the environment names, with a token."""
    hubs: list[Hub] = []
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    # Retries follow at once; that a busy machine is slow is no fault.
    monkeypatch.setattr(transport, "_FIRST_WAIT", 0.01)
    monkeypatch.setenv("BLOCKAUDIT_HUB_TIMEOUT", "30")
    monkeypatch.setenv("BLOCKAUDIT_HUB_PATIENCE", "60")

    def serve(folder: Path) -> Hub:
        hub = Hub(folder).__enter__()
        hubs.append(hub)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        return hub

    yield serve
    for hub in hubs:
        hub.__exit__()


@pytest.fixture
def hub(connected: Callable[[Path], Hub], tmp_path: Path) -> Hub:
    """A small sound checkpoint on a hub."""
    return connected(family("llama")(tmp_path / "llama"))
