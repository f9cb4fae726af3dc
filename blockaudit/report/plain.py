"""Any value of a record as JSON can carry it, the same bytes every time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Any, cast

# What a float that JSON has no number for is called.
_SPECIAL = {math.inf: "inf", -math.inf: "-inf"}


def plain(value: Any) -> Any:
    """`value` with tuples as lists, sets sorted and non-finite floats as "NaN", "inf", "-inf"."""
    if isinstance(value, float):
        if math.isnan(value):
            return "NaN"
        return _SPECIAL.get(value, value)
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in cast("Mapping[Any, Any]", value).items()}
    if isinstance(value, AbstractSet):
        return sorted((plain(v) for v in cast("AbstractSet[Any]", value)), key=repr)
    if isinstance(value, Sequence):
        return [plain(v) for v in cast("Sequence[Any]", value)]
    raise TypeError(f"a report cannot carry a {type(value).__name__}")
