"""Where a command's words go: reports to stdout, complaints to stderr, files beside SOURCE and never in it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from blockaudit.errors import RequestError
from blockaudit.report.escape import escape

# Columns of a report that goes to a file or a pipe, where no terminal says its width.
_PAGE = 100
# How much of a file's beginning and end is looked at for the mark of an earlier report.
_GLANCE = 4096


def complain(message: str) -> None:
    """One line on stderr."""
    _line(f"blockaudit: error: {escape(message)}")


def remark(message: str) -> None:
    """One line on stderr that is no complaint."""
    _line(f"blockaudit: note: {escape(message)}")


def _line(text: str) -> None:
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:  # nobody is left to be told
        _hush(2)


def say(text: str) -> None:
    """Write to stdout now; a reader that has gone (`| head`) is no fault and changes no verdict.

    Raises RequestError where it cannot be written for another reason: the report is lost.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _hush(1)
    except OSError as error:
        _hush(1)
        raise RequestError(f"cannot write to stdout: {error.strerror}") from error


def flush() -> None:
    """Write what a help page left behind; the interpreter would complain, and change the exit status, at the end."""
    for descriptor, stream in ((1, sys.stdout), (2, sys.stderr)):
        try:
            stream.flush()
        except OSError:
            _hush(descriptor)


def _hush(descriptor: int) -> None:
    # The interpreter flushes once more at exit, and would complain about the broken pipe then.
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, descriptor)
    os.close(devnull)


def wants_color(no_color: bool) -> bool:
    """Colour only on a terminal that can, and that nobody asked to be plain (https://no-color.org)."""
    plain = no_color or bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return not plain and sys.stdout.isatty()


def draws_boxes() -> bool:
    """Whether stdout has the characters that a drawing is made of."""
    try:
        "─│╌⊕◀\u00d7".encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


def width() -> int:
    """Columns of the terminal, or of a page where there is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else _PAGE


def check_report_paths(paths: Sequence[Path], sources: Sequence[str], option: str = "--report") -> None:
    """Refuse, before any work, a report file that would change what is audited."""
    for path in paths:
        for source in sources:
            _check_report_path(path, source, option)


def _check_report_path(path: Path, source: str, option: str) -> None:
    real, subject = Path(os.path.realpath(path)), Path(os.path.realpath(source))
    if real == subject or (os.path.isdir(subject) and subject in real.parents):
        raise RequestError(f"{option} {str(path)!r} lies in SOURCE {source!r}, where nothing is ever written")
    # A single file's neighbours (config.json, the other shards) are part of what is audited.
    if os.path.isfile(subject) and real.parent == subject.parent and os.path.exists(real) and not _is_report(real):
        raise RequestError(f"{option} {str(path)!r} would replace a file beside SOURCE {source!r}: choose another name")


def check_written(written: Sequence[tuple[str, Path]], read: Mapping[str, str | Path | None]) -> None:
    """Refuse, before any work, to write over a file that is read, or two things into one file.

    written: each option with its path; read: each option with the file that it names, or with what names none.
    """
    taken = {os.path.realpath(file): option for option, file in read.items() if file and os.path.exists(file)}
    for option, path in written:
        real = os.path.realpath(path)
        if real in taken:
            raise RequestError(f"{option} {str(path)!r} is the file of {taken[real]} as well: choose another name")
        taken[real] = option


def _is_report(path: Path) -> bool:
    """Whether an earlier run wrote this file, so that this one may write it again."""
    with path.open("rb") as file:
        head = file.read(_GLANCE)
        file.seek(max(path.stat().st_size - _GLANCE, 0))
        return b"blockaudit" in head + file.read(_GLANCE)


def write_report(path: Path, text: str, option: str = "--report") -> None:
    """Write one report file."""
    try:
        path.write_bytes(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise RequestError(f"cannot write {option} {str(path)!r}: {error.strerror}") from error
