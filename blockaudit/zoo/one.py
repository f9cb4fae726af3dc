"""Draft and prove the manifest of one type, as one line of JSON. Run by the zoo in a process of its own."""

from __future__ import annotations

import json
import sys
from typing import Any

from blockaudit.graph.drafting.catalog import Unfit
from blockaudit.graph.drafting.drafter import draft, explored
from blockaudit.zoo.prove import prove


def one(model_type: str, class_name: str) -> dict[str, Any]:
    """The row of a type: its manifest, or None and the reason."""
    row: dict[str, Any] = {"type": model_type, "class": class_name, "manifest": None}
    try:
        found = explored(model_type, class_name)
        data = draft(found, lambda text: print(text, file=sys.stderr))
        wrong = prove(data, found)
    except Unfit as error:
        return {**row, "reason": str(error)}
    except Exception as error:  # a fault of the drafter is a row, not the end of the run
        return {**row, "reason": f"drafter: {type(error).__name__}: {' '.join(str(error).split())[:160]}"}
    return {**row, "reason": f"does not hold: {wrong[0]}"} if wrong else {**row, "manifest": data, "reason": ""}


def main() -> None:
    """One row on standard output."""
    import torch
    import transformers

    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    print(json.dumps(one(sys.argv[1], sys.argv[2])), flush=True)


if __name__ == "__main__":
    main()
