"""`hf://org/name[@revision]`, and the settings of the environment that say which hub that is and how it is asked.

Everything is checked here, before a request is made.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from blockaudit.checkpoint.files import REMOTE
from blockaudit.errors import RequestError

ENDPOINT = "https://huggingface.co"
TIMEOUT = 10.0
PATIENCE = 60.0
_NAME = re.compile(r"[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,94}[A-Za-z0-9_])?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._/+=-]{0,250}", re.ASCII)
_TOKEN = re.compile(r"[!-~]{1,4096}", re.ASCII)
_TRUE = ("1", "ON", "YES", "TRUE")


class Address(msgspec.Struct, frozen=True):
    """A repository and what was asked for of it: a branch, a tag or a commit."""

    repository: str  # org/name
    revision: str


class Settings(msgspec.Struct, frozen=True):
    """Which hub, and how long to wait for it, in seconds: for any sign of life, and for one request with its retries.

    The token is not among them, so that no record of them can show it.
    """

    endpoint: str
    timeout: float
    patience: float


def parse(source: str) -> Address:
    """The address that SOURCE is. Raises RequestError for one that no hub could have."""
    repository, at, revision = source.removeprefix(REMOTE).partition("@")
    names = repository.split("/")
    if len(names) != 2 or not all(map(_is_name, names)):
        raise RequestError(
            f"{source}: not a repository of a hub: expected hf://org/name[@revision] of letters, digits, '-', '_', '.'"
        )
    if at and not _is_revision(revision):
        raise RequestError(
            f"{source}: not a revision: expected a branch, a tag or a commit after the @, such as main or refs/pr/1"
        )
    return Address(repository, revision or "main")


def _is_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None and ".." not in name and "--" not in name


def _is_revision(revision: str) -> bool:
    parts = revision.split("/")
    return _REVISION.fullmatch(revision) is not None and ".." not in revision and "" not in parts and "." not in parts


def settings(source: str) -> Settings:
    """What the environment says. Raises RequestError where it says that there is no connection, or makes no sense."""
    if (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE", "")).upper() in _TRUE:
        raise RequestError(
            f"{source}: HF_HUB_OFFLINE is set, and an hf:// source needs the hub: unset it, or name a folder"
        )
    return Settings(
        _endpoint(),
        _seconds("BLOCKAUDIT_HUB_TIMEOUT", TIMEOUT),
        _seconds("BLOCKAUDIT_HUB_PATIENCE", PATIENCE),
    )


def _endpoint() -> str:
    given = os.environ.get("HF_ENDPOINT") or ENDPOINT
    try:
        url = urlsplit(given)
        sound = url.scheme in ("http", "https") and url.hostname and url.port != 0
    except ValueError:
        sound, url = False, urlsplit("")
    # What is said of it is said without its value: a password would be part of it.
    if not sound or url.username or url.password or url.query or url.fragment or not _TOKEN.fullmatch(given):
        raise RequestError("HF_ENDPOINT is not an address of a hub: expected https://host[:port][/path] and no more")
    return given.rstrip("/")


def _seconds(name: str, default: float) -> float:
    given = os.environ.get(name)
    if not given:
        return default
    try:
        seconds = float(given)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86400:
        raise RequestError(f"{name}: expected a number of seconds above 0, found {given!r}")
    return seconds


def token() -> str:
    """The user's token, from where huggingface_hub keeps it; empty where there is none. Raises RequestError."""
    if given := os.environ.get("HF_TOKEN", "").strip():
        return _checked(given, "HF_TOKEN")
    if os.environ.get("HF_HUB_DISABLE_IMPLICIT_TOKEN", "").upper() in _TRUE:
        return ""
    path = _token_path()
    try:
        found = path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""  # nobody has logged in
    return _checked(found, str(path)) if found else ""


def _token_path() -> Path:
    if named := os.environ.get("HF_TOKEN_PATH"):
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get("HF_HOME") or f"{cache}/huggingface").expanduser() / "token"


def _checked(text: str, where: str) -> str:
    if not _TOKEN.fullmatch(text):
        raise RequestError(f"{where}: this is no token: it holds a character that a token never has")
    return text
