"""How many tokens the tokenizer beside the weights has: read only where config.json and the embedding disagree."""

from __future__ import annotations

import os
from typing import Any, cast

from blockaudit.checkpoint.files import read_capped
from blockaudit.checkpoint.links import leads_out

_CAP = 64 * 1024 * 1024


def tokenizer_size(folder: str) -> int | None:
    """One more than the largest token id of tokenizer.json; None where there is none that can be read."""
    import msgspec

    if leads_out(folder, "tokenizer.json"):
        return None
    try:
        data: Any = msgspec.json.decode(read_capped(os.path.join(folder, "tokenizer.json"), _CAP))
        vocabulary: Any = data["model"]["vocab"]
        added = cast("list[dict[str, Any]]", data.get("added_tokens") or [])
        ids = [int(i) for i in (vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary)))]  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
        return max([*ids, *(int(t["id"]) for t in added)]) + 1
    except (OSError, ValueError, TypeError, KeyError, AttributeError, msgspec.DecodeError, RecursionError):
        return None
