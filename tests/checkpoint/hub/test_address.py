"""What is no address is refused in one line, before a request is made; so are settings that make no sense."""

from __future__ import annotations

from pathlib import Path

import pytest

from blockaudit.checkpoint.hub.address import Address, parse, token
from blockaudit.errors import RequestError
from tests.support.audit import inspect
from tests.support.hub import SOURCE, Hub

HOSTILE = (
    "hf://", "hf://name", "hf:///name", "hf://org/", "hf://org/name/", "hf://org/name/sub", "hf://../../etc",
    "hf://../name", "hf://org/..", "hf://org/.", "hf://.org/name", "hf://org/name..x", "hf://org/-name",
    "hf://org/na me", "hf://org/na%2fme", "hf://org/na\nme", "hf://org/na\x1b[31mme",
    "hf://org/n\u00e4me", "hf://org/\uff0e\uff0e", "hf://org\\name/x", "hf://user:pw@host/x/y", "hf://org/name?x=1",
    "hf://org/name#x", "hf://org/" + "n" * 97, "hf://org/name@", "hf://org/name@../../x", "hf://org/name@a/../b",
    "hf://org/name@/main", "hf://org/name@a//b", "hf://org/name@a b", "hf://org/name@a%20b", "hf://org/name@a\r\nX: y",
    "hf://org/name@a?b", "hf://org/name@a#b", "hf://org/name@-x", "hf://org/name@a@b", "hf://org/name@" + "r" * 300,
    "hf://org/name@a/./b", "hf://org/name@.", "hf://org/name@\x1b[2J",
)  # fmt: skip


@pytest.mark.parametrize("source", HOSTILE, ids=ascii)
def test_hostile_addresses_are_refused_unasked(source: str, hub: Hub) -> None:
    done = inspect(source)
    assert done.status == 2
    (line,) = done.err.splitlines()
    assert "expected" in line
    assert line.isprintable()
    assert hub.asked == []


def test_what_no_command_line_can_hold_is_refused_too() -> None:
    for source in ("hf://org/na\0me", "hf://org/name@\0", "hf://org/\udcff", "hf://org/name@\udcff"):
        with pytest.raises(RequestError, match="expected"):
            parse(source)


@pytest.mark.parametrize(
    ("source", "address"),
    [
        ("hf://org/name", Address("org/name", "main")),
        ("hf://meta-llama/Llama-3.1_8B.x@refs/pr/12", Address("meta-llama/Llama-3.1_8B.x", "refs/pr/12")),
        ("hf://0/1@v1.0+a", Address("0/1", "v1.0+a")),
    ],
)
def test_addresses(source: str, address: Address) -> None:
    assert parse(source) == address


@pytest.mark.parametrize("name", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_is_one_clear_line(name: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "1")
    done = inspect(SOURCE)
    (line,) = done.err.splitlines()
    assert (done.status, hub.asked) == (2, [])
    assert "HF_HUB_OFFLINE is set" in line


@pytest.mark.parametrize(
    "endpoint",
    ["huggingface.co", "ftp://host", "file:///etc", "http://", "https://user:s3cret@host", "http://host?q=s3cret",
     "http://h:99999", "http://[::1", "http://ho st", "http://host/\x1b"],
    ids=ascii,
)  # fmt: skip
def test_an_endpoint_that_is_none(endpoint: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    done = inspect(SOURCE)
    (line,) = done.err.splitlines()
    assert done.status == 2
    assert "HF_ENDPOINT" in line
    assert "s3cret" not in line


@pytest.mark.parametrize("name", ["BLOCKAUDIT_HUB_TIMEOUT", "BLOCKAUDIT_HUB_PATIENCE"])
@pytest.mark.parametrize("value", ["soon", "0", "-1", "nan", "inf"])
def test_a_time_that_is_none(name: str, value: str, hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    done = inspect(SOURCE)
    assert done.status == 2
    assert f"{name}: expected a number of seconds" in done.err


def test_a_token_that_is_none_is_not_shown(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_abc\r\nX-Evil: 1")
    done = inspect(SOURCE)
    assert (done.status, hub.asked) == (2, [])
    assert "HF_TOKEN: this is no token" in done.err
    assert "hf_abc" not in done.err


def test_the_token_is_found_where_the_hub_library_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "HF_TOKEN_PATH", "HF_HOME", "HF_HUB_DISABLE_IMPLICIT_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert token() == ""
    for place, name, value in (
        (tmp_path / "huggingface" / "token", "", ""),
        (tmp_path / "home" / "token", "HF_HOME", str(tmp_path / "home")),
        (tmp_path / "mine", "HF_TOKEN_PATH", str(tmp_path / "mine")),
    ):
        place.parent.mkdir(exist_ok=True)
        place.write_text(f"hf_{place.parent.name}\n")
        if name:
            monkeypatch.setenv(name, value)
        assert token() == f"hf_{place.parent.name}"
    monkeypatch.setenv("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")
    assert token() == ""
    monkeypatch.setenv("HF_TOKEN", " hf_given ")
    assert token() == "hf_given"
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.delenv("HF_HUB_DISABLE_IMPLICIT_TOKEN")
    (tmp_path / "mine").write_bytes(b"two words")
    with pytest.raises(RequestError, match="no token"):
        token()
