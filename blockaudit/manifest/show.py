"""What `manifest show` says of a manifest: equations, derived columns, norms, keys, ties. Plain data, no layout."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET

from blockaudit.manifest.bind import bind
from blockaudit.manifest.equation import around, derived, equations
from blockaudit.manifest.topology import norms_per_layer, sum_normalised, topology
from blockaudit.manifest.view import View
from blockaudit.records.bound import BoundManifest, ExpectedTensor, Resolved
from blockaudit.records.manifest import Bound, Manifest, Stack, Value


def describe(manifest: Manifest) -> dict[str, Any]:
    """Everything that a reader of the manifest asks, under its own defaults."""
    view, bound = View(manifest), bind(manifest, {})
    return {
        "architecture_id": manifest.architecture_id,
        "evidence_label": manifest.evidence_label,
        "source": manifest.source,
        "witness": manifest.witness,
        "state_layout": manifest.state_layout,
        "model_types": manifest.match.model_types,
        "base_class": manifest.match.base_class,
        "base_prefix": manifest.match.base_prefix,
        "classes": {name: spec.parts for name, spec in manifest.match.classes.items()},
        "stacks": [_stack(stack, view) for stack in manifest.stacks if not stack.ignored],
        "norms": _norms(bound),
        "dims": {name: source(value) for name, value in manifest.dims.items()},
        "axes": manifest.axes,
        "keys": [_key(t) for t in bound.expected] + [_key(t) | {"part": True} for t in bound.foreign],
        "functions": {name: value.value for name, value in bound.functions.items()},
        "ties": [{"key": t.template, "tied_to": t.tied_to, "when": _tie(t.tied)} for t in bound.expected if t.tied_to],
    }


def summary(manifest: Manifest) -> str:
    """The equation of the main stack's first kind of layer, in one line."""
    view = View(manifest)
    stack = manifest.stacks[-1]
    for candidate in manifest.stacks:
        if not candidate.ignored:
            stack = candidate
    return "; ".join(next(iter(equations(stack, view).values()), list[str]()))


def source(value: Value) -> Any:
    """Where a value comes from, in one phrase: `hidden_size (4096)`, `d_model // n_heads`."""
    if not isinstance(value, Bound):
        return value
    if value.pinned is not UNSET:
        return f"{value.pinned} (pinned)"
    if value.config is not None:
        keys = value.config if isinstance(value.config, str) else " | ".join(value.config)
        default = source(value.default)
        return keys if default is None else f"{keys} ({default})"
    if value.expr is not None:
        return value.expr
    return f"{source(value.then)} if {value.if_} else {source(value.else_)}"


def _stack(stack: Stack, view: View) -> dict[str, Any]:
    columns = derived(stack, view)
    return {
        "name": stack.name,
        "layers": source(stack.layers),
        "stored_layers": source(stack.stored_layers),
        "layer_kinds": stack.layer_kinds,
        "parallel": source(stack.parallel),
        "equations": equations(stack, view),
        "around": around(stack, view),
        "conditions": _conditions(stack),
        "topology": topology(stack, view),
        "shortcut_crosses_norm": columns.shortcut_crosses_norm,
        "branch_output_normalised": columns.branch_output_normalised,
        "residual_sum_normalised": sum_normalised(stack, view),
        "stack_final_norm": columns.stack_final_norm,
        "norms_per_layer": norms_per_layer(stack, view),
    }


def _conditions(stack: Stack) -> list[str]:
    """What the equation above depends on, where config.json may change it."""
    found: list[str] = []
    for branch in stack.branches:
        if branch.when is not None:
            found.append(f"{branch.name} ({branch.kind}) when {_when(branch.when)}")
        for site, norm in branch.norms.items():
            if norm.when is not UNSET and norm.when is not None:
                found.append(f"{branch.name}.{site} when {_when(norm.when)}")
    final = stack.final_norm
    if final is not None and final.when is not UNSET and final.when is not None:
        found.append(f"final_norm when {_when(final.when)}")
    if isinstance(stack.parallel, Bound):
        found.append(f"parallel when {source(stack.parallel)}")
    return list(dict.fromkeys(found))


def _when(when: Any) -> str:
    return when if isinstance(when, str) else str(source(when))


# What a table of norms shows of each.
_COLUMNS = ("family", "placement", "epsilon", "center", "scale", "scale_offset", "bias", "work_dtype", "cast_order")


def _norms(bound: BoundManifest) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in bound.fields:
        site, _, last = name.rpartition(".")
        if last == "family":
            row: dict[str, Any] = {"site": site}
            row |= {c: bound.fields[f"{site}.{c}"].value for c in _COLUMNS}
            rows.append(row | {"epsilon_source": bound.fields[f"{site}.epsilon"].bytes_read})
    return rows


def _key(tensor: ExpectedTensor) -> dict[str, Any]:
    row: dict[str, Any] = {"key": tensor.template, "shape": list(tensor.symbols), "owner": tensor.owner}
    flags = {
        "layout": tensor.layout != "out_in" and tensor.layout,
        "optional": tensor.optional,
        "derived": tensor.derived,
    }
    return row | {name: value for name, value in flags.items() if value}


def _tie(tied: Resolved | None) -> Any:
    if tied is None or not tied.keys:
        return "always" if tied is not None and tied.value else "never"
    return f"{', '.join(tied.keys)} (default {str(tied.value).lower()})"
