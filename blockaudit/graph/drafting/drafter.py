"""Draft the manifest of a model type from its class alone: samples, readings, assembly."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from blockaudit.graph.drafting import reading
from blockaudit.graph.drafting.assemble import Assembly
from blockaudit.graph.drafting.blocks import Read
from blockaudit.graph.drafting.catalog import Unfit
from blockaudit.graph.drafting.classes import heads
from blockaudit.graph.drafting.dropping import dropouts
from blockaudit.graph.drafting.explore import WIDTHS, Exploration, explore, generic, hint, own_keys, stuck
from blockaudit.graph.drafting.samples import LAYER_KEYS, SampleError, changed, sample
from blockaudit.graph.record import RecordingError

_MOST_READINGS = 16
# Floats that no operator of an eval pass reads, or that are no factor.
_SILENT = re.compile(r"drop|init|std|theta|coef|jitter|layerdrop|alpha_loss|label_smoothing|base|loss")


def explored(model_type: str, class_name: str) -> Exploration:
    """Samples of a class. Raises Unfit where not even a tiny model of it is to be had."""
    try:
        return explore(model_type, class_name)
    except SampleError as error:
        raise Unfit(f"not built: {error}") from error


def draft(found: Exploration, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The manifest as JSON data. Raises Unfit, with the reason, where facts do not make a whole one."""
    import transformers

    model_type, class_name = found.model_type, found.class_name
    tell(f"{len(found.samples)} samples, follows {', '.join(found.effective)}")
    fixed = stuck(found)
    if fixed:
        raise Unfit(f"{', '.join(fixed)} could not be varied, so that what follows of it is not known")
    reads = list(_reads(found, tell))
    main: Any = getattr(transformers, class_name)
    prefix = _base(found, main)
    assembly = Assembly(found, reads, prefix)
    configs = [found.base.data, *_with_more(reads)]
    assembly.dropout = dropouts(found, configs, [s.name for s in assembly.stacks.values()], assembly.symbols)
    body = assembly.manifest()
    others = heads(found, assembly.symbols, prefix, assembly.own)
    for name, reason in others.left_out.items():
        tell(f"class {name} left out: {reason}")
    body["parts"] = {**body.get("parts", {}), **others.parts}
    body["dims"] = {**assembly.symbols.dims(), **others.dims}
    body = {k: v for k, v in body.items() if v or k == "dims"}
    head: dict[str, Any] = {
        "schema": "blockaudit/block-manifest/1",
        "architecture_id": model_type,
        "evidence_label": "implementation",
        "source": f"drafted from the executed graph of transformers {transformers.__version__} {class_name}",
        "witness": "graph",
        "match": {
            "model_types": [model_type],
            "base_class": others.base_class,
            "base_prefix": prefix,
            "classes": {class_name: {"parts": ["head"] if "head" in body.get("parts", {}) else []}, **others.classes},
        },
    }
    return {**head, **body, "config_reads": _unbound(found, body, main)}


def _reads(found: Exploration, tell: Callable[[str], None]) -> Iterator[Read]:
    """The base with its casts; then factors of every value, and each flag that changes keys or numbers."""
    base = found.base
    try:
        first = reading.read(base.config)
    except RecordingError as error:
        raise Unfit(f"not recorded: {error}") from error
    yield Read(base, first)
    # What stays as it is under other factors and another width is a constant; without both nothing is known to be one.
    same: list[dict[str, Any]] = [{}]
    for turn, plans in enumerate((same, list(_sizes(found)))):
        read = next((r for plan in plans if not isinstance(r := _planned(found, first, plan, turn), str)), None)
        if read is None:
            raise Unfit(f"not recorded with {'another width' if turn else 'other factors'}")
        yield read
    flips = list(_flips(found))
    for turn, plan in enumerate(flips[:_MOST_READINGS], 2):
        said = _planned(found, first, plan, turn)
        if isinstance(said, str):
            tell(f"left out: {', '.join(plan)}: {said}")
        else:
            yield said
    if len(flips) > _MOST_READINGS:
        raise Unfit(f"{len(flips)} flags are more than are read")


def _planned(found: Exploration, first: reading.Reading, plan: dict[str, Any], turn: int) -> Read | str:
    """The reading with these keys changed and every factor moved; why there is none."""
    base = found.base.data
    try:
        one = sample(found.class_name, changed(base, {**_factors(base, turn), **plan}))
        read = reading.numbers(one.config)
        if _news(read, first):
            read = reading.read(one.config)
    except (SampleError, RecordingError) as error:
        return str(error)
    return Read(one, _with_casts(read, first))


def _with_more(reads: Sequence[Read]) -> list[dict[str, Any]]:
    """Configs whose blocks have branches that no config before them has."""
    seen: set[tuple[str, str]] = set()
    found: list[dict[str, Any]] = []
    for place, read in enumerate(reads):
        kinds = {(n, b.kind) for n, s in read.reading.stacks.items() for a in s.adds for b in a.branches}
        if place and kinds - seen:
            found.append(read.sample.data)
        seen |= kinds
    return found


def _news(read: reading.Reading, first: reading.Reading) -> bool:
    """Whether a reading has norms that the base has not: their casts must be read too."""
    return not set(_norms(read)) <= set(_norms(first))


def _norms(read: reading.Reading) -> Iterator[tuple[str, str]]:
    for name, stack in read.stacks.items():
        for add in stack.adds:
            for branch in add.branches:
                yield from ((f"{name}.{s}", n.weight) for s, n in reading.sites(branch).items() if n)
                yield from ((f"{name}.inner", n.weight) for n in branch.inner)
        yield from ((f"{name}.end", n.weight) for n in (stack.embed_norm, stack.final_norm) if n)


def _with_casts(read: reading.Reading, first: reading.Reading) -> reading.Reading:
    """Casts of the base's norms in place of those that an FP32 reading shows."""
    casts: dict[str, tuple[Any, Any]] = {}
    for stack in first.stacks.values():
        norms = [n for a in stack.adds for b in a.branches for n in (*reading.sites(b).values(), *b.inner) if n]
        for norm in (*norms, stack.embed_norm, stack.final_norm):
            if norm is not None:
                said = dict(norm.fields)
                casts[norm.weight] = (said["work_dtype"], said["cast_order"])
    return reading.recast(read, casts)


def _factors(data: dict[str, Any], turn: int) -> dict[str, Any]:
    """Every float of the config at a value of its own."""
    found: dict[str, Any] = {}
    for i, key in enumerate(own_keys(data)):
        value = data[key]
        if isinstance(value, float) and not _SILENT.search(key) and value:
            found[key] = value * (1.0 + 0.03125 * (i % 13 + 2 + turn))
    return found


def _sizes(found: Exploration) -> Iterator[dict[str, Any]]:
    """Sizes as in samples in which many change, then each by itself; layers and flags as they are."""
    base = found.base.data
    whole = {k: v for k, v in base.items() if k not in LAYER_KEYS and type(v) is int}
    for one in found.joint:
        moved = {k: one.data[k] for k in found.effective if k in whole and one.data.get(k) not in (whole[k], None)}
        if any(k in WIDTHS for k in moved):
            yield moved
    for key in WIDTHS:
        for one in found.single.get(key, []):
            yield {k: one.data[k] for k in whole if one.data.get(k) not in (whole[k], None)}


def _flips(found: Exploration) -> Iterator[dict[str, Any]]:
    """Changes of one key that may change the block itself: flags, keys that hold nothing, what adds or takes keys."""
    named = set(found.base.keys)
    for key, many in found.single.items():
        for one in many:
            value, before = one.data.get(key), found.base.data.get(key)
            flag = isinstance(value, bool | str) or value is None or before is None
            other = key not in LAYER_KEYS and set(one.keys) != named
            if flag or other or isinstance(value, list):
                yield {key: value}
                if not flag:
                    break
    yield from _nothings(found)


def _nothings(found: Exploration) -> Iterator[dict[str, Any]]:
    """Factors that may be left out."""
    for key in own_keys(found.base.data):
        value, said = found.base.data[key], hint(found.model_type, key)
        if _SILENT.search(key) or "float" not in said or "None" not in said:
            continue
        yield {key: None if isinstance(value, float) else 3.5}


def _base(found: Exploration, main: Any) -> str:
    """The prefix that the base model's keys lose in the class without a head; empty where there is none."""
    prefix = f"{getattr(main, 'base_model_prefix', '')}."
    return prefix if any(k.startswith(prefix) for k in found.base.keys) else ""


def _unbound(found: Exploration, body: dict[str, Any], main: Any) -> list[str]:
    """Keys of the config class that its model code names and that no value of the manifest is bound to."""
    bound: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            given = cast("dict[str, Any]", value)
            keys = given.get("config")
            bound.update([keys] if isinstance(keys, str) else keys or [])
            for inner in given.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in cast("list[Any]", value):
                walk(inner)

    walk(body)
    text = inspect.getsource(sys.modules[main.__module__])
    text += inspect.getsource(sys.modules[main.config_class.__module__])
    own = [k for k in found.base.data if k not in generic()]
    return sorted(k for k in own if k not in bound and re.search(rf"\b{re.escape(k)}\b", text))
