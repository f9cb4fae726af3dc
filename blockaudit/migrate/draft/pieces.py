"""One side of a draft as pieces: a key template, the place that its manifest gives it, and the layers that have it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from blockaudit.manifest.library import templates as raw_templates
from blockaudit.migrate import templates
from blockaudit.records.bound import BoundManifest, ExpectedTensor
from blockaudit.records.manifest import Manifest


class Place(msgspec.Struct, frozen=True):
    """What a tensor is: whose, in which group of its owner (`expert`), the role in it (`gate`), a bias or not."""

    what: str
    owner: str
    group: str
    role: str
    bias: bool


class Piece(msgspec.Struct, frozen=True):
    """One template. `layers` count from 0 in the stack, whatever the keys count from; None: it stands in no layer.

    `shift` is what the numbers in its keys are ahead of that. `text` is the template with the dimension symbols that
    the manifest writes it with, axes by the names that the target gives them.
    """

    expected: ExpectedTensor
    place: Place
    layers: tuple[int, ...] | None
    shift: int
    text: str

    @property
    def tied(self) -> bool:
        return self.expected.tied is not None and bool(self.expected.tied.value)

    @property
    def axes(self) -> tuple[str, ...]:
        """Axes of the template that count no layers: experts."""
        return tuple(a for a in templates.axes(self.expected.template) if a != "l")

    def at(self, layer: int) -> str:
        """The template in one layer."""
        return templates.placed(self.expected.template, {"l": layer + self.shift})


def pieces(bound: BoundManifest, prefix: str = "") -> tuple[Piece, ...]:
    """Every template that a bound manifest expects, derived ones left out. `prefix` stands before every key."""
    first = {span.name: span.first for span in bound.spans}
    raw = tuple(_raw(bound.manifest))
    found: list[Piece] = []
    for tensor in bound.expected:
        if tensor.derived:
            continue
        shift = first.get(tensor.stack or "", 0)
        inside = "{l}" in tensor.template
        layers = tuple(n - shift for n in tensor.layers) if inside else None
        tensor = replace(tensor, template=prefix + tensor.template, tied_to=_prefixed(prefix, tensor.tied_to))
        text = _spelt(tensor.template, raw, bound)
        found.append(Piece(tensor, place(tensor), layers, shift if inside else 0, text))
    return tuple(found)


def _prefixed(prefix: str, key: str | None) -> str | None:
    return None if key is None else prefix + key


def place(tensor: ExpectedTensor) -> Place:
    """Where a tensor stands. Parts are beside the stacks, whatever the manifest calls the part."""
    if tensor.what in ("norm", "part"):
        return Place(tensor.what, "" if tensor.what == "part" else tensor.owner, "", tensor.role, False)
    bias = tensor.role.endswith(".bias")
    group, _, role = tensor.role.removesuffix(".bias").rpartition(".")
    return Place("branch" if tensor.what == "bias" else tensor.what, tensor.owner, group, role, bias)


def _raw(manifest: Manifest) -> Iterator[str]:
    """Templates as the manifest writes them, those with a symbol that is no axis."""
    axes = {"l", *manifest.axes}
    for text, _ in raw_templates(manifest):
        if set(templates.axes(text)) - axes:
            yield text


def _spelt(template: str, raw: Iterable[str], bound: BoundManifest) -> str:
    """The template with its dimension symbols, where the manifest writes a number of a key so."""
    dims: Mapping[str, Any] = {n: d.value for n, d in bound.dims.items() if d.known and n not in bound.manifest.axes}
    return next((text for text in raw if templates.placed(text, dims) == template), template)
