"""A bound manifest as GGUF spells it: the names, the stacked experts, and what a converter has folded in.

The manifest is translated and not the checkpoint, so that a finding names the tensors that are in the file.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from blockaudit.checkpoint.gguf.metadata import FIELDS
from blockaudit.checkpoint.gguf.tables import Names
from blockaudit.reconcile.expand import AXIS
from blockaudit.records.bound import BoundManifest, ExpectedTensor, Resolved
from blockaudit.records.checkpoint import Container

# Rotary factors that a converter writes out and that the code of the model computes.
_DERIVED = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")


def spelt(bound: BoundManifest, container: Container | None) -> BoundManifest:
    """The manifest under GGUF's names; for any other container as it is.

    Tensors that have no name there are left out, and are `unspelt` where the model cannot be without them.
    """
    if container is None:
        return bound
    names = Names(container.architecture)
    expected: list[ExpectedTensor] = []
    unspelt: list[str] = []
    for e in bound.expected:
        found = _tensor(e, bound, names)
        if found is not None:
            expected.append(found)
        elif not (e.derived or e.optional or e.ignored or (e.tied is not None and e.tied.value)):
            unspelt.append(e.template)
    foreign = (_tensor(e, bound, names) for e in bound.foreign)
    return replace(
        bound,
        expected=(*expected, *_derived()),
        foreign=tuple(e for e in foreign if e is not None),
        fields={_field(name, names): _value(name, value, container) for name, value in bound.fields.items()},
        unspelt=tuple(unspelt),
    )


def _tensor(e: ExpectedTensor, bound: BoundManifest, names: Names) -> ExpectedTensor | None:
    """One template. GGUF has every matrix as [out, in], and all experts of a layer in one tensor."""
    found = names.template(e.template)
    if found is None:
        return None
    template, stacked = found
    shape, symbols = e.shape, e.symbols
    if e.layout == "in_out":
        shape, symbols = shape[::-1], symbols[::-1]
    if stacked:
        axes = [name for name in AXIS.findall(e.template) if name != "l"]
        counts = dict(e.counts)
        shape = (*(counts.get(name) for name in axes), *shape)
        symbols = (*(bound.manifest.axes[name] for name in axes), *symbols)
    source = names.template(e.tied_to) if e.tied_to else None
    return replace(
        e,
        template=template,
        shape=shape,
        symbols=symbols,
        counts=() if stacked else e.counts,
        tied_to=source[0] if source else None,
        layout="out_in",
    )


def _derived() -> Iterable[ExpectedTensor]:
    for key in _DERIVED:
        role = key.removesuffix(".weight")
        yield ExpectedTensor(key, (None,), ("n",), "buffers", role, "buffer", optional=True, derived=True)


def _field(name: str, names: Names) -> str:
    """Fields of ties are named for the tensor."""
    found = names.template(name.removeprefix("tie.")) if name.startswith("tie.") else None
    return f"tie.{found[0]}" if found else name


def _value(name: str, value: Resolved, container: Container) -> Resolved:
    """A field as it must stand in a GGUF file."""
    if value.pinned:
        return value
    if value.keys and container.inferred.issuperset(value.keys):
        return Resolved(value.value, headers=True)
    if name.endswith(tuple(FIELDS)) and value.implied:
        # A converter writes these down: where they are absent, the default of a class in Python says nothing.
        return Resolved(None, known=False, keys=value.keys)
    if name.endswith(".scale_offset") and value.known and value.value:
        # The runtime multiplies by what is stored. A norm of 1 + weight is stored with the 1 already added.
        return replace(value, value=0)
    return value
