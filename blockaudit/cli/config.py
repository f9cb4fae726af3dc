"""The config file: `blockaudit.toml`, or `[tool.blockaudit]` in pyproject.toml. Closed, and never one of SOURCE's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from blockaudit import pipeline
from blockaudit.cli.toml_lines import line_of, no_date
from blockaudit.errors import RequestError
from blockaudit.records.report import Place
from blockaudit.records.suppression import Waiver
from blockaudit.report import formats
from blockaudit.rules import registry
from blockaudit.suppress.waivers import said, waivers
from blockaudit.suppress.words import no_such_key

OWN, SHARED = "blockaudit.toml", "pyproject.toml"
_MAX_BYTES = 1024 * 1024
TABLE = "tool.blockaudit"
# What a folder has that nothing above belongs to.
_ROOTS = (".git", ".hg")


class Config(msgspec.Struct, frozen=True):
    """What a config file says. None: nothing. Paths are as seen from the working directory."""

    file: Path | None = None
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    strict: bool | None = None
    allow_unverified: bool | None = None
    manifest: str | None = None
    level: str | None = None
    format: str | None = None
    report: tuple[Path, ...] | None = None
    baseline: Path | None = None
    waivers: tuple[Waiver, ...] = ()
    passed_over: tuple[Path, ...] = ()  # config files that lie in SOURCE


def configured(sources: Sequence[str], named: Path | None, isolated: bool) -> Config:
    """The config of a command line: the file that it names, else the nearest one. Raises RequestError."""
    if isolated:
        if named is not None:
            raise RequestError("--config and --no-config exclude each other")
        return Config()
    if named is not None:
        table = _table(named)
        if table is None:
            raise RequestError(f"{named}: no table [{TABLE}]")
        return _read(named, table)
    return _nearest(sources)


def _nearest(sources: Sequence[str]) -> Config:
    """The first file that says something of us, from the working directory up to the root of its repository."""
    passed_over: list[Path] = []
    for folder in _folders():
        for file in (folder / OWN, folder / SHARED):
            if not os.path.isfile(file):
                continue
            # A checkpoint is somebody else's: what it says of its own audit is not heard.
            if _in_any(file, sources):
                passed_over += [file] if file.name == OWN else []
            elif (table := _table(file)) is not None:
                return msgspec.structs.replace(_read(file, table), passed_over=tuple(passed_over))
        if _is_root(folder) and not _in_any(folder / OWN, sources):
            break
    return Config(passed_over=tuple(passed_over))


def _is_root(folder: Path) -> bool:
    return any((folder / name).exists() for name in _ROOTS)


def _folders() -> Iterator[Path]:
    """The working directory and those above it, by the shortest relative names."""
    try:
        here = Path.cwd()
    except FileNotFoundError:
        return  # it was deleted under us: there is nothing in it, and no way up
    yield Path()
    for up in range(1, len(here.parts)):
        yield Path(*[os.pardir] * up)


def _in_any(file: Path, sources: Sequence[str]) -> bool:
    """Whether a file comes with one of the SOURCEs; what lies beside a weight file comes with it."""
    places = {Path(os.path.realpath(file)), Path(os.path.realpath(file.parent)) / file.name}
    for source in sources:
        subject = Path(os.path.realpath(source))
        folder = subject if os.path.isdir(subject) else subject.parent
        if os.path.exists(subject) and any(folder in place.parents for place in places):
            return True
    return False


def _bytes(file: Path) -> bytes:
    """What a file holds. A pipe could be waited for, and a device read, without an end."""
    size = file.stat().st_size
    if not file.is_file() or size > _MAX_BYTES:
        raise RequestError(f"{file}: expected a file of at most {_MAX_BYTES:,} bytes")
    return file.read_bytes()


def _table(file: Path) -> dict[str, Any] | None:
    """What a file says of us; None where a pyproject.toml says nothing. Raises RequestError."""
    try:
        data = _bytes(file)
    except OSError as error:
        raise RequestError(f"{file}: cannot be read: {error.strerror}") from error
    # Most pyproject.toml are not about us, and need no parser to say so.
    shared = file.name == SHARED
    if shared and b"blockaudit" not in data:
        return None
    import tomllib

    try:
        whole = tomllib.loads(data.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise RequestError(f"{file}: expected UTF-8: {error.reason} at byte {error.start}") from error
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise RequestError(f"{file}: not TOML: {error}{no_date(data.decode('utf-8'))}") from error
    tool = whole.get("tool")
    own = cast("dict[str, Any]", tool).get("blockaudit") if isinstance(tool, dict) else None
    if not shared and own is None:
        return whole
    if own is not None and not isinstance(own, dict):
        raise RequestError(f"{file}: [{TABLE}]: expected a table")
    return cast("dict[str, Any] | None", own)


class _Reader(msgspec.Struct, frozen=True):
    """Turns the values of one file into what options hold, and says on which line one is wrong."""

    file: Path
    text: str
    prefix: str

    def place(self, table: str, key: str, number: int = 0) -> Place:
        header = ".".join(filter(None, (self.prefix, table)))
        return Place(self.file.as_posix(), line_of(self.text, header, key, number))

    def wrong(self, key: str, what: str) -> RequestError:
        return RequestError(f"{said(self.place('', key))}: {what}")

    def text_of(self, key: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            raise self.wrong(key, f"{key}: expected a text, found {value!r}")
        return value

    def flag(self, key: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise self.wrong(key, f"{key}: expected true or false, found {value!r}")
        return value

    def texts(self, key: str, value: Any) -> tuple[str, ...]:
        items = cast("list[Any]", value) if isinstance(value, list) else [value]
        return tuple(self.text_of(key, item) for item in items)

    def held(self, key: str, text: str, known: Callable[[str], object]) -> str:
        """A text that `known` takes. What it raises of another names the option alone; here the line is known too."""
        try:
            known(text)
        except RequestError as error:
            raise self.wrong(key, f"{key}: {error}") from error
        return text

    def level(self, key: str, value: Any) -> str:
        return self.held(key, self.text_of(key, value), pipeline.levels_of)

    def format_name(self, key: str, value: Any) -> str:
        return self.held(key, self.text_of(key, value), formats.by_name)

    def codes(self, key: str, value: Any) -> tuple[str, ...]:
        codes = [code.strip() for item in self.texts(key, value) for code in item.split(",") if code.strip()]
        return tuple(self.held(key, code, lambda known: registry.chosen((known,), ())) for code in codes)

    def path(self, key: str, value: Any) -> Path:
        """A path is relative to the file that says it."""
        return self.file.parent / self.text_of(key, value)

    def paths(self, key: str, value: Any) -> tuple[Path, ...]:
        return tuple(self.file.parent / item for item in self.texts(key, value))

    def reports(self, key: str, value: Any) -> tuple[Path, ...]:
        for item in self.texts(key, value):
            self.held(key, item, lambda path: formats.by_suffix(Path(path)))
        return self.paths(key, value)

    def manifest(self, key: str, value: Any) -> str:
        """A library id, or a file."""
        name = self.text_of(key, value)
        is_file = Path(name).suffix in (".json", ".yaml", ".yml") or len(Path(name).parts) > 1
        return str(self.file.parent / name) if is_file else name

    def waivers(self, key: str, value: Any) -> tuple[Waiver, ...]:
        items = cast("list[Any]", value) if isinstance(value, list) else [value]
        if not all(isinstance(item, dict) for item in items):
            raise self.wrong(
                key, f"{key}: expected tables, each under [[{'.'.join(filter(None, (self.prefix, key)))}]]"
            )
        return waivers(items, lambda number, inner: self.place(key, inner, number))


# Every key of the file, the field of Config that it fills, and how it is read.
_KEYS: dict[str, tuple[str, Callable[[_Reader, str, Any], Any]]] = {
    "select": ("select", _Reader.codes),
    "ignore": ("ignore", _Reader.codes),
    "strict": ("strict", _Reader.flag),
    "allow-unverified": ("allow_unverified", _Reader.flag),
    "manifest": ("manifest", _Reader.manifest),
    "level": ("level", _Reader.level),
    "format": ("format", _Reader.format_name),
    "report": ("report", _Reader.reports),
    "baseline": ("baseline", _Reader.path),
    "waivers": ("waivers", _Reader.waivers),
}


def _read(file: Path, table: Mapping[str, Any]) -> Config:
    text = file.read_text(encoding="utf-8")
    # blockaudit.toml has its keys at the top, or as pyproject.toml has them.
    in_tool = file.name == SHARED or f"[{TABLE}" in text
    reader = _Reader(file, text, TABLE if in_tool else "")
    found: dict[str, Any] = {}
    for key, value in table.items():
        if key not in _KEYS:
            raise reader.wrong(key, no_such_key(key, tuple(_KEYS)))
        field, read = _KEYS[key]
        found[field] = read(reader, key, value)
    return Config(file=file, **found)
