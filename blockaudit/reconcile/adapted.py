"""An adapter on its base: the key set of the merged function, and whether every part fits what it is added to."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from math import prod

from msgspec.structs import replace

from blockaudit.checkpoint.adapter.settings import NAME, ends_with
from blockaudit.checkpoint.files import short
from blockaudit.checkpoint.quantization.view import logical_view
from blockaudit.reconcile import expand
from blockaudit.reconcile.audit import Reconciled
from blockaudit.reconcile.names import canonical
from blockaudit.records.adapter import Adapter, Pair, Shape
from blockaudit.records.checkpoint import Checkpoint, Fault, TensorHeader

_NO_SHAPE = TensorHeader("F32", (), (0, 0))


def merged(base: Checkpoint, adapter: Adapter, stored: Checkpoint) -> Checkpoint:
    """The base with the parameters that the adapter replaces, as SOURCE; low-rank parts change no key and no shape."""
    view = logical_view(base, base.config)
    names = _found(adapter.whole, view.tensors)
    tensors, owner = dict(base.tensors), dict(base.owner)
    for file in stored.files:
        mine = {names[name]: file.tensors[key] for name, key in adapter.whole.items() if key in file.tensors}
        renamed = replace(file, tensors=mine)
        tensors |= mine
        owner |= dict.fromkeys(mine, renamed)
    faults = [f for f in stored.faults if f.rule not in ("adapter-only", "adapter-target-unmatched")]
    return replace(
        base,
        source=stored.source,
        files=(*base.files, *stored.files),
        tensors=tensors,
        owner=owner,
        faults=(*base.faults, *faults),
        base=base.source,
        apart=dict.fromkeys((*(f.name for f in stored.files), NAME), stored.folder),
    )


def misfits(
    adapter: Adapter, stored: Checkpoint, tensors: Mapping[str, TensorHeader], reconciled: Reconciled | None
) -> list[Fault]:
    """What of the adapter does not fit its base, whose tensors are `tensors` where no manifest speaks of them."""
    file = stored.files[0].name if stored.files else NAME
    known = reconciled.binding.tensors if reconciled is not None else tensors
    names = _found([f"{p.module}.weight" for p in adapter.pairs], known)
    turned = _turned(reconciled) if reconciled is not None else None
    faults = list(_absent(adapter, names, known, file))
    faults += _unfit(adapter, names, known, turned, file)
    faults += _gaps(adapter, names, known, file)
    faults += _rows(adapter, stored, known, file)
    return faults


def _found(wanted: Collection[str], known: Mapping[str, TensorHeader]) -> dict[str, str]:
    """Names as the adapter's class has them -> names of the base, whose root may be another one."""
    names, _ = canonical(dict.fromkeys(wanted, _NO_SHAPE), known, "")
    lost = [name for name in wanted if names[name] not in known]
    if lost and len(lost) < len(names):
        # Parts of a larger model may each have a root of their own.
        tails: dict[str, set[str]] = {}
        for key in known:
            for tail in _tails(key):
                tails.setdefault(tail, set()).add(key)
        for name in lost:
            hits = next((hit for tail in _tails(name) if (hit := tails.get(tail))), set[str]())
            names[name] = next(iter(hits)) if len(hits) == 1 else names[name]
    return names


def _tails(name: str) -> Iterator[str]:
    """The name without its first segments, one by one; never without a number of a layer."""
    segments = name.split(".")
    for i, segment in enumerate(segments[:-2]):
        yield ".".join(segments[i:])
        if segment.isdecimal():
            return


def _turned(reconciled: Reconciled) -> frozenset[str]:
    """Weights that are stored [in, out]."""
    templates = [t.expected for t in reconciled.binding.templates if t.expected.layout == "in_out"]
    return frozenset(key for e in templates for key in expand.keys(e))


def _absent(
    adapter: Adapter, names: Mapping[str, str], known: Mapping[str, TensorHeader], file: str
) -> Iterator[Fault]:
    gone = [p for p in adapter.pairs if names[f"{p.module}.weight"] not in known]
    if gone:
        modules = ", ".join(dict.fromkeys(short(p.module) for p in gone[:4]))
        keys = tuple(key for p in gone for key in p.stored())
        text = f"{len(gone):,} of {len(adapter.pairs):,} adapted modules are not in the base: {modules}"
        yield Fault("adapter-target-mismatch", file, text, keys, "a weight of the base", None, "keys of the base")


def _unfit(
    adapter: Adapter,
    names: Mapping[str, str],
    known: Mapping[str, TensorHeader],
    turned: frozenset[str] | None,
    file: str,
) -> Iterator[Fault]:
    """Pairs whose product has another shape than the weight: one fault for each shape of weight."""
    found: dict[Shape, list[tuple[str, Shape]]] = {}
    for pair in adapter.pairs:
        name = names[f"{pair.module}.weight"]
        if name not in known:
            continue
        shape = known[name].shape
        # A base that no manifest speaks of does not tell which way round its weights lie.
        ways = [shape[::-1] if name in turned or pair.embedding else shape] if turned is not None else []
        ways = ways or [shape, shape[::-1]]
        found.setdefault(shape, []).extend(pair.parts[part] for part in _wrong(pair, ways))
    for shape, wrong in ((shape, wrong) for shape, wrong in found.items() if wrong):
        keys, have = [key for key, _ in wrong], wrong[0][1]
        more = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
        text = f"the adapter does not fit the base's weight of shape {list(shape)}: {short(keys[0])}{more}"
        yield Fault(
            "adapter-shape-mismatch", file, text, tuple(keys), list(shape), list(have), "tensor headers of both"
        )


def _wrong(pair: Pair, ways: list[Shape]) -> list[str]:
    """Parts that fit a weight in none of the ways in which it may lie, each [out, in, ...]; a vector takes none."""
    matrices = [way for way in ways if len(way) > 1]
    return [
        part for part, (_, have) in pair.parts.items() if not any(_fits(part, have, way[0], way[1]) for way in matrices)
    ]


def _fits(part: str, have: Shape, out: int, into: int) -> bool:
    if part == "A":
        return len(have) > 1 and have[1] == into
    if part == "B":
        return len(have) > 0 and have[0] == out
    if part == "bias":
        return have == (out,)
    if part == "vector":
        return have in ((out, 1), (1, into))
    return prod(have) in (out, into)  # DoRA's magnitudes: one for each output; of an embedding, for each column


def _gaps(adapter: Adapter, names: Mapping[str, str], known: Mapping[str, TensorHeader], file: str) -> Iterator[Fault]:
    """Modules of the base that are named as targets, like those adapted in other layers or not, and have no pair."""
    mine = {names[f"{p.module}.weight"] for p in adapter.pairs}
    alike = {spelling for spelling, _ in expand.templates_of(sorted(mine & known.keys()))}
    lost: list[str] = []
    for spelling, keys in expand.templates_of(list(known)):
        module = spelling.removesuffix(".weight")
        if module == spelling or len(known[keys[0]].shape) < 2:
            continue
        targeted = any(ends_with(module, name) for name in adapter.unmatched)
        if (spelling in alike and adapter.targets) or targeted:
            lost += [key for key in keys if key not in mine and _meant(adapter, key)]
    if lost:
        modules = ", ".join(short(key.removesuffix(".weight")) for key in lost[:4])
        text = f"{len(lost):,} modules that target_modules names have no pair in the adapter: {modules}"
        yield Fault("adapter-incomplete", file, text, tuple(lost), "lora_A and lora_B", None, f"{NAME}: target_modules")
    left = [n for n in adapter.unmatched if not any(ends_with(key.removesuffix(".weight"), n) for key in lost)]
    if left:
        text = f"target_modules lists {', '.join(map(short, left[:8]))}, and neither the adapter nor the base has it"
        yield Fault("adapter-target-unmatched", NAME, text, (), left, None, f"{NAME}: target_modules")


def _meant(adapter: Adapter, key: str) -> bool:
    """Whether a module is to be adapted: not excluded, and in a layer of layers_to_transform (the first number)."""
    module = key.removesuffix(".weight")
    if adapter.excluded is None or any(ends_with(module, name) for name in adapter.excluded):
        return False
    if adapter.layers is None:
        return True
    number = next((int(word) for word in key.split(".") if word.isdecimal()), None)
    return number in adapter.layers


def _rows(adapter: Adapter, stored: Checkpoint, known: Mapping[str, TensorHeader], file: str) -> Iterator[Fault]:
    """Rows of an embedding that are replaced one by one are as long as its own."""
    names = _found([f"{module}.weight" for module in adapter.tokens], known)
    for module, key in adapter.tokens.items():
        base, rows = known.get(names[f"{module}.weight"]), stored.tensors[key].shape
        if base is None:
            text = f"rows of {short(module)} are replaced, and the base has no such embedding"
            yield Fault(
                "adapter-target-mismatch", file, text, (key,), "an embedding of the base", None, "keys of the base"
            )
        elif rows[1:] != base.shape[1:]:
            text = (
                f"rows of {short(module)} are {list(rows[1:])} long and the base's {list(base.shape[1:])}: {short(key)}"
            )
            yield Fault(
                "adapter-shape-mismatch", file, text, (key,), list(base.shape), list(rows), "tensor headers of both"
            )
