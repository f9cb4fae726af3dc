"""Values and quantities as a person reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from blockaudit.report.escape import escape


def value(said: Any) -> str:
    """One contract value: `1e-06`, `yes`, `rmsnorm`, `a, b`; `-` for what nobody said."""
    if said is None:
        return "-"
    if isinstance(said, bool):
        return "yes" if said else "no"
    if isinstance(said, str):
        return escape(said) if said else '""'
    if isinstance(said, Mapping):
        pairs = cast("Mapping[Any, Any]", said).items()
        return ", ".join(f"{value(k)}: {value(v)}" for k, v in pairs) or "{}"
    if isinstance(said, Sequence):
        parts = cast("Sequence[Any]", said)
        inside = ", ".join(value(v) for v in parts)
        # Several numbers are a shape, and read as one.
        shape = len(parts) != 1 and all(isinstance(v, int) and not isinstance(v, bool) for v in parts)
        return f"[{inside}]" if shape else inside
    return escape(repr(said))


# Characters of one text that a terminal report shows: a hostile name may have a million.
_LONGEST = 600


def shortened(text: str) -> str:
    """`text`, escaped, if a person can be asked to read it; else its beginning."""
    return escape(text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... (whole in --format json)")


def count(number: int, noun: str) -> str:
    """`1 error`, `2 errors`, `0 errors`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def quantity(number: int, noun: str) -> str:
    """`812 parameters`, `8.03 B parameters`."""
    return f"{_scaled(number, (' K', ' M', ' B', ' T'))} {noun}s" if number >= 10_000 else count(number, noun)


def size(octets: int) -> str:
    """Bytes in powers of a thousand, as file managers and model hubs count them."""
    return _scaled(octets, (" kB", " MB", " GB", " TB")) if octets >= 1000 else count(octets, "byte")


def _scaled(number: int, units: tuple[str, ...]) -> str:
    power = 1
    # 999.6 would be written as 1000: then the next unit is the right one.
    while power < len(units) and number / 1000**power >= 999.5:
        power += 1
    scaled = number / 1000**power
    # The last unit takes whatever is left, in full.
    return f"{scaled:.3g}{units[power - 1]}" if scaled < 999.5 else f"{scaled:,.0f}{units[power - 1]}"


def several(names: Sequence[str], limit: int) -> str:
    """`a, b, c ... and 5 more (whole in --format json)`."""
    shown = ", ".join(shortened(name) for name in names[:limit])
    more = len(names) - limit
    return f"{shown} ... and {more:,} more (whole in --format json)" if more > 0 else shown
