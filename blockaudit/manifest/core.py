"""The specification's core manifest (0x01), a dozen lines without stacks, as a manifest of stacks and sites."""

from __future__ import annotations

from typing import Any, cast

SCHEMA = "blockaudit/block-manifest/1"
# Evidence that is in the manifest itself: the core of the specification names no source.
EVIDENCE_WITHOUT_SOURCE = ("derived",)
# Which norm sites of a branch a placement means.
SITES: dict[Any, tuple[str, ...]] = {
    "pre_branch": ("norm_in",),
    "post_branch": ("norm_out",),
    "post_add": ("norm_post",),
    "both": ("norm_in", "norm_out"),
}
# Where the dropout of an owner acts, when the document gives its probability alone.
_POSITION = {"attention_probability": "inside_branch", "mlp_hidden": "inside_branch", "embedding": "input"}
# A core manifest says nothing of how many layers there are: config.json does.
_LAYERS = {"config": ["num_hidden_layers", "n_layer", "n_layers", "num_layers"]}


def expand_dropout(document: dict[str, Any]) -> dict[str, Any]:
    """The document with every dropout an object: a number alone is its probability."""
    given = document.get("dropout")
    if not isinstance(given, dict):
        return document
    owners = cast("dict[str, Any]", given)
    return document | {"dropout": {owner: _dropout(owner, value) for owner, value in owners.items()}}


def expand(document: dict[str, Any]) -> dict[str, Any]:
    """A core document (no `stacks`, valid against the schema) as a whole one: a decoder, or a stack per order."""
    orders: Any = document["branch_order"]
    by_stack = cast("dict[str, list[str]]", orders) if isinstance(orders, dict) else {"decoder": orders}
    sites = SITES.get(document["norm"].get("placement"), ())
    stacks: list[Any] = [
        {
            "name": name,
            "layers": _LAYERS,
            "branches": [
                {"name": branch, "kind": kind, "norms": {site: {} for site in sites}}
                for branch, kind in zip(branch_names(order), order, strict=True)
            ],
            "final_norm": _final_norm(document.get("final_norm")),
        }
        for name, order in by_stack.items()
    ]
    return {"schema": SCHEMA, **document, "stacks": stacks}


def branch_names(order: list[str]) -> list[str]:
    """Branch names for a list of kinds; a name that comes twice is numbered."""
    names = [_branch_name(kind) for kind in order]
    return [n if names.count(n) == 1 else f"{n}_{names[: i + 1].count(n)}" for i, n in enumerate(names)]


def _branch_name(kind: str) -> str:
    if "attention" not in kind:
        return "mlp"
    return "cross_attention" if "cross" in kind else "self_attention"


def _dropout(owner: str, value: Any) -> Any:
    if isinstance(value, dict):
        return value  # pyright: ignore[reportUnknownVariableType]
    return {"p": value, **({"position": _POSITION[owner]} if owner in _POSITION else {})}


def _final_norm(given: Any) -> Any:
    """A family's name alone is a norm of that family, which inherits the rest."""
    if given is None or given == "none":
        return None
    return given if isinstance(given, dict) else {"family": given}  # pyright: ignore[reportUnknownVariableType]
