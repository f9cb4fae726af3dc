"""The manifest of a family that the library lacks, from the class that a user's config.json names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from blockaudit.graph.drafting.catalog import Unfit
from blockaudit.graph.drafting.drafter import draft, explored


def of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The manifest as JSON data, drafted with tiny models of the class. Raises Unfit."""
    import transformers

    model_type, named = config.get("model_type"), cast("list[Any] | None", config.get("architectures"))
    if model_type not in transformers.CONFIG_MAPPING:
        raise Unfit(f"transformers {transformers.__version__} has no model type {model_type!r}")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    kind: Any = getattr(transformers, name, None)
    if kind is None or not str(kind.__module__).startswith("transformers."):
        raise Unfit(f"config.json names no class that transformers {transformers.__version__} has")
    return draft(explored(str(model_type), name))
