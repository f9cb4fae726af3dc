"""What tells two manifests apart, field by field, and whether it changes the function."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from blockaudit import resources
from blockaudit.manifest.align import align
from blockaudit.manifest.bind import bind
from blockaudit.manifest.diff_functions import differing
from blockaudit.records.bound import BoundManifest, ExpectedTensor, Resolved
from blockaudit.records.manifest import Bound, Manifest

Changes = Literal["function", "training", "numerics", "size", "nothing"]


@dataclass(frozen=True, slots=True)
class Difference:
    """One field, what either manifest declares, and what the difference changes.

    `function`: what is computed in evaluation. `training`: only what happens while weights are learned. `numerics`:
    only how it is rounded. `size`: the same function of other dimensions, which config.json gives. `nothing`: another
    name, or the same value today, read from other keys of config.json.
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
        return not self.counted("function")

    def counted(self, kind: Changes) -> int:
        """How many differences change this."""
        return sum(d.changes == kind for d in (*self.contract, *self.dims, *self.keys))


def compare(a: Manifest, b: Manifest) -> Comparison:
    """Compare two manifests under their own defaults and pins."""
    b, renamed = align(a, b)
    one, two = bind(a, {}), bind(b, {})
    # What follows from a size (an embedding scaled by sqrt(d_model)) is compared at one size.
    known = _sizes(b, two)
    shared = {key: size for key, size in _sizes(a, one).items() if key in known}
    at_one, at_two = bind(a, shared), bind(b, shared)
    names = tuple(Difference(what, mine, other, "nothing") for what, mine, other in renamed)
    return Comparison((*names, *apart(at_one, at_two)), _dims(one, two), _keys(one, two))


def apart(one: BoundManifest, two: BoundManifest) -> tuple[Difference, ...]:
    """What tells two bound manifests with one set of names apart: contract fields, layer kinds, functions."""
    return (*_contract(one, two), *_kinds(one, two), *_functions(one, two))


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
    last = field.rpartition(".")[2]
    return _said()["dropout" if ".dropout." in field else ""].get(last, "function")


@cache
def _said() -> dict[str, dict[str, Changes]]:
    """Words that change no function and what they do change; dropout's, which others use too, apart."""
    found: dict[str, dict[str, Changes]] = {"dropout": {}, "": {}}
    for part, defined in resources.schema("block_manifest")["$defs"].items():
        for name, said in defined.get("properties", {}).items():
            if said["x-changes"] in ("training", "numerics"):
                found["dropout" if part == "dropout" else ""][name] = said["x-changes"]
    return found


# What a field that only one of two spellings has comes to: a factor written as a number, a norm that is switched off.
_ABSENT = {"learned": False, "granularity": "scalar", "present": False, "score_route": "none"}


def _contract(one: BoundManifest, two: BoundManifest) -> tuple[Difference, ...]:
    found: list[Difference] = []
    for field in _union(one.fields, two.fields):
        # Ties are of keys, and keys are compared by themselves.
        if field.startswith("tie."):
            continue
        a, b = one.fields.get(field), two.fields.get(field)
        if _follows(field, one.fields, two.fields) or _silent(field, one.fields, two.fields):
            continue
        if _meant(field, a) != _meant(field, b):
            sized = field.endswith(".layers") and not (_fixed(a) and _fixed(b))
            found.append(Difference(field, _value(a), _value(b), "size" if sized else changes(field)))
        elif a is not None and b is not None and a.keys != b.keys and not (a.pinned or b.pinned):
            found.append(Difference(field, a.bytes_read, b.bytes_read, "nothing"))
    return tuple(found)


def _functions(one: BoundManifest, two: BoundManifest) -> tuple[Difference, ...]:
    """What branches, embeddings and heads compute."""
    runs = {span.name: span.run or 0 for span in two.spans}
    depths = {span.name: min(span.run or 0, runs.get(span.name, 0)) for span in one.spans}
    found = differing(one.functions, two.functions, depths)
    return tuple(Difference(f, a, b, "size" if sized else changes(f)) for f, a, b, sized in found)


def _follows(field: str, one: dict[str, Resolved], two: dict[str, Resolved]) -> bool:
    """Whether a field only repeats that its norm is there in one and not in the other."""
    present = f"{field.rpartition('.')[0]}.present"
    return field != present and _meant(present, one.get(present)) != _meant(present, two.get(present))


def _silent(field: str, one: dict[str, Resolved], two: dict[str, Resolved]) -> bool:
    """Whether a field describes a dropout that drops nothing in either."""
    if ".dropout." not in field:
        return False
    p = f"{field.rpartition('.')[0]}.p"
    return all(_value(fields.get(p)) in (None, 0) and (p not in fields or fields[p].known) for fields in (one, two))


def _meant(field: str, resolved: Resolved | None) -> Any:
    """The value, or what its absence comes to."""
    last = field.rpartition(".")[2]
    if resolved is None:
        if last == "granularity" and ".residual." not in field:
            return None
        return False if ".bias." in field else _ABSENT.get(last)
    return resolved.value


def _kinds(one: BoundManifest, two: BoundManifest) -> tuple[Difference, ...]:
    """Layers of each kind, as far as both stacks have layers."""
    found: list[Difference] = []
    others = {span.name: span for span in two.spans if not span.ignored}
    for span in one.spans:
        other = others.get(span.name)
        if other is None or span.ignored:
            continue
        both = min(span.run or 0, other.run or 0)
        mine, theirs = dict(span.kinds), dict(other.kinds)
        for kind in (k for k in mine if k in theirs):
            a, b = _runs(mine[kind], span.first, both), _runs(theirs[kind], other.first, both)
            if a != b:
                found.append(Difference(f"{span.name}.layer_kinds.{kind}", a, b, "function"))
    return tuple(found)


def _runs(layers: tuple[int, ...], first: int, count: int) -> str:
    """The layers among the first `count`, counted from 0: `0-2, 5`."""
    mine = sorted(n - first for n in layers if n - first < count)
    starts = [n for n in mine if n - 1 not in mine]
    ends = [n for n in mine if n + 1 not in mine]
    return ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in zip(starts, ends, strict=True))


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
    """Templates and their symbolic shapes: other names carry the same state, so that they change no function.

    One name that is read transposed, or that is another's storage in one of the two, does.
    """
    a, b = _templates(one), _templates(two)
    return tuple(
        Difference(k, _shown(a.get(k)), _shown(b.get(k)), _key_changes(a.get(k), b.get(k)))
        for k in _union(a, b)
        if _shown(a.get(k)) != _shown(b.get(k)) or _key_changes(a.get(k), b.get(k)) == "function"
    )


def _key_changes(a: ExpectedTensor | None, b: ExpectedTensor | None) -> Changes:
    if a is None or b is None:
        return "nothing"
    return "function" if a.layout != b.layout or _tie(a) != _tie(b) else "nothing"


def _tie(tensor: ExpectedTensor) -> str | None:
    """The key whose storage a tensor is, where the tie holds."""
    tied = tensor.tied is None or tensor.tied.value is True
    return tensor.tied_to if tied else None


def _templates(bound: BoundManifest) -> dict[str, ExpectedTensor]:
    """Each template with the first tensor that it names."""
    found: dict[str, ExpectedTensor] = {}
    for tensor in (*bound.expected, *bound.foreign):
        found.setdefault(tensor.template, tensor)
    return found


def _shown(tensor: ExpectedTensor | None) -> str | None:
    """Its shape, whose it is, how it is read and what it is tied to: one name may mean two things."""
    if tensor is None:
        return None
    layout = f", {tensor.layout}" if tensor.layout != "out_in" else ""
    how = "tied" if _tie(tensor) else "not tied by default"
    tied = f", {how} to {tensor.tied_to}" if tensor.tied_to else ""
    return f"[{', '.join(tensor.symbols)}] {tensor.owner}{layout}{tied}"


def _union(a: dict[str, Any], b: dict[str, Any]) -> list[str]:
    """Names of both, in the order of the first, then what only the second has."""
    return list(dict.fromkeys([*a, *b]))


def _value(resolved: Resolved | None) -> Any:
    return None if resolved is None else resolved.value


def _fixed(resolved: Resolved | None) -> bool:
    """Whether the manifest holds the value itself."""
    return resolved is not None and (resolved.pinned or not resolved.keys)
