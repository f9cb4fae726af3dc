"""Every output format, by name and by suffix.

A format is one module beside this one that defines `FORMAT` and `render(report) -> str`; it is found here and
registered nowhere. It may also define `SUFFIX` (else no `--report` picks it), `render_many(reports) -> str` (else the
reports follow one another), `STREAMS = True` (its documents may simply be joined, so each report is written as soon
as it is ready) and `PICTURES = True` (it shows `Report.picture`, which is made for it alone).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import msgspec

from blockaudit.errors import RequestError
from blockaudit.records.report import Report


class Format(msgspec.Struct, frozen=True):
    """One way to write a report."""

    name: str
    suffix: str | None
    render: Callable[[Report], str]
    render_many: Callable[[Sequence[Report]], str]
    streams: bool = False
    pictures: bool = False


def by_name(name: str) -> Format:
    """The format called `name`."""
    found = available().get(name)
    if found is None:
        raise RequestError(f"unknown format {name!r}: this release writes {', '.join(available())}")
    return found


def by_suffix(path: Path) -> Format:
    """The format that the suffix of `path` picks."""
    suffix = path.suffix.lower()
    for candidate in available().values():
        if candidate.suffix == suffix:
            return candidate
    known = ", ".join(f"{f.suffix} ({f.name})" for f in available().values() if f.suffix)
    raise RequestError(f"cannot tell the report format of {str(path)!r} by its suffix: this release writes {known}")


def wants_pictures(name: str, files: Sequence[Path]) -> bool:
    """Whether a report that is written so is to carry its picture (`Report.picture`)."""
    return any(form.pictures for form in (by_name(name), *map(by_suffix, files)))


@cache
def available() -> dict[str, Format]:
    """Every format in this release by name, in alphabetical order."""
    import importlib
    import pkgutil

    import blockaudit.report as package

    modules = (importlib.import_module(f"{package.__name__}.{m.name}") for m in pkgutil.iter_modules(package.__path__))
    formats = (_format(module) for module in modules if hasattr(module, "FORMAT"))
    return {f.name: f for f in sorted(formats, key=lambda f: f.name)}


def _format(module: object) -> Format:
    render: Callable[[Report], str] = getattr(module, "render")  # noqa: B009  (a module is an open object to the checker)

    def one_after_another(reports: Sequence[Report]) -> str:
        return "".join(render(report) for report in reports)

    return Format(
        name=getattr(module, "FORMAT"),  # noqa: B009
        suffix=getattr(module, "SUFFIX", None),
        render=render,
        render_many=getattr(module, "render_many", one_after_another),
        streams=getattr(module, "STREAMS", False),
        pictures=getattr(module, "PICTURES", False),
    )
