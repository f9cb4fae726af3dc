from __future__ import annotations

import io

import pytest

from blockaudit.cli.progress import progress_bar


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_nobody_watches(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar(True) as progress:
        assert progress is None
    assert capfd.readouterr().err == ""


def test_quiet_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", _Terminal())
    with progress_bar(False) as progress:
        assert progress is None


def test_a_terminal_sees_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = _Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with progress_bar(True) as progress:
        assert progress is not None
        progress("[bold]layer\u202e", 512, 1024)
        progress("[bold]layer\u202e", 1024, 1024)
    assert "[bold]layer\\u202e" in terminal.getvalue()
    assert "\u202e" not in terminal.getvalue()
