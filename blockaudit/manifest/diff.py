"""What tells two manifests apart, field by field, and whether it changes the function."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from blockaudit import resources
from blockaudit.manifest.bind import bind
from blockaudit.records.bound import BoundManifest, Resolved
from blockaudit.records.manifest import Bound, Manifest

Changes = Literal["function", "numerics", "size", "nothing"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, what either manifest declares, and what the difference changes.

    `size`: the same function of other dimensions, which config.json gives. `nothing`: the same value today, read from
    other keys of config.json.
    """

    field: str
    a: Any
    b: Any
    changes: Changes


@dataclass(frozen=True, slots=True)
class Comparison:
    """Differences of two manifests: of the contract, of the dimensions, of the keys that carry the state."""

    contract: tuple[Difference, ...]
    dims: tuple[Difference, ...]
    keys: tuple[Difference, ...]

    @property
    def same_function(self) -> bool:
        return all(d.changes != "function" for d in (*self.contract, *self.dims))


def compare(a: Manifest, b: Manifest) -> Comparison:
    """Compare two manifests under their own defaults and pins."""
    one, two = bind(a, {}), bind(b, {})
    # What follows from a size (an embedding scaled by sqrt(d_model)) is compared at one size.
    known = _sizes(b, two)
    shared = {key: size for key, size in _sizes(a, one).items() if key in known}
    return Comparison(_contract(bind(a, shared), bind(b, shared)), _dims(one, two), _keys(one, two))


def _sizes(manifest: Manifest, bound: BoundManifest) -> dict[str, int]:
    """Config keys that dims are bound to, with the whole number that is their default."""
    found: dict[str, int] = {}
    for name, declared in manifest.dims.items():
        value = bound.dims[name].value
        if isinstance(declared, Bound) and declared.config is not None and isinstance(value, int):
            for key in (declared.config,) if isinstance(declared.config, str) else declared.config:
                if not isinstance(value, bool):
                    found[key] = value
    return found


def changes(field: str) -> Changes:
    """What a contract field changes, as the schema says of its last word."""
    return "numerics" if field.rpartition(".")[2] in _numeric_fields() else "function"


@cache
def _numeric_fields() -> frozenset[str]:
    schema = resources.schema("block_manifest")
    return frozenset(
        name
        for part in schema["$defs"].values()
        for name, said in part.get("properties", {}).items()
        if said["x-changes"] == "numerics"
    )


def _contract(one: BoundManifest, two: BoundManifest) -> tuple[Difference, ...]:
    found: list[Difference] = []
    for field in _union(one.fields, two.fields):
        # Ties are of keys, and keys are compared by themselves.
        if field.startswith("tie."):
            continue
        a, b = one.fields.get(field), two.fields.get(field)
        if _follows(field, one.fields, two.fields):
            continue
        if _value(a) != _value(b):
            sized = field.endswith(".layers") and not (_fixed(a) and _fixed(b))
            found.append(Difference(field, _value(a), _value(b), "size" if sized else changes(field)))
        elif a is not None and b is not None and a.keys != b.keys and not (a.pinned or b.pinned):
            found.append(Difference(field, a.bytes_read, b.bytes_read, "nothing"))
    return tuple(found)


def _follows(field: str, one: dict[str, Resolved], two: dict[str, Resolved]) -> bool:
    """Whether a field only repeats that its norm is there in one and not in the other."""
    present = f"{field.rpartition('.')[0]}.present"
    return field != present and (present in one or present in two) and (field in one) != (field in two)


def _dims(one: BoundManifest, two: BoundManifest) -> tuple[Difference, ...]:
    """Dimensions: sizes that config.json gives are no difference of function; two that are fixed are."""
    found: list[Difference] = []
    for name in _union(one.dims, two.dims):
        a, b = one.dims.get(name), two.dims.get(name)
        # Flags show in the contract, where they matter.
        sizes = [v for v in (_value(a), _value(b)) if isinstance(v, int) and not isinstance(v, bool)]
        if sizes and _value(a) != _value(b):
            both = a is not None and b is not None and _fixed(a) and _fixed(b)
            found.append(Difference(name, _value(a), _value(b), "function" if both else "size"))
    return tuple(found)


def _keys(one: BoundManifest, two: BoundManifest) -> tuple[Difference, ...]:
    """Templates and their symbolic shapes: other names carry the same state, so that they change no function."""
    a, b = _templates(one), _templates(two)
    return tuple(Difference(k, a.get(k), b.get(k), "nothing") for k in _union(a, b) if a.get(k) != b.get(k))


def _templates(bound: BoundManifest) -> dict[str, Any]:
    """Each template with its shape, whose it is, and what it is tied to: one name may mean two things."""
    found: dict[str, Any] = {}
    for tensor in (*bound.expected, *bound.foreign):
        tied = f", tied to {tensor.tied_to}" if tensor.tied_to else ""
        found.setdefault(tensor.template, f"[{', '.join(tensor.symbols)}] {tensor.owner}{tied}")
    return found


def _union(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names of both, in the order of the first, then what only the second has."""
    return list(dict.fromkeys([*a, *b]))


def _value(resolved: Resolved | None) -> Any:
    return None if resolved is None else resolved.value


def _fixed(resolved: Resolved | None) -> bool:
    """Whether the manifest holds the value itself."""
    return resolved is not None and (resolved.pinned or not resolved.keys)
