"""The other classes of a modelling file: what each calls the base model, and the parts that it adds."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from blockaudit.graph.drafting import fit
from blockaudit.graph.drafting.explore import Exploration
from blockaudit.graph.drafting.follow import Symbols
from blockaudit.graph.drafting.samples import Sample, SampleError, changed, sample

_LABELS = ("n_labels", "labels")


@dataclass
class Heads:
    """Classes as `match.classes` has them (the main one is not among them), and the parts that they name."""

    base_class: str | None = None
    classes: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    parts: dict[str, list[dict[str, Any]]] = field(default_factory=dict[str, list[dict[str, Any]]])
    dims: dict[str, Any] = field(default_factory=dict[str, Any])
    left_out: dict[str, str] = field(default_factory=dict[str, str])


def heads(found: Exploration, symbols: Symbols, prefix: str, own: set[str]) -> Heads:
    """Every class of the file that can be built from the config. `own` are the main class's keys beside the base."""
    made = Heads()
    data = max([found.base, *found.single.get("tie_word_embeddings", [])], key=lambda s: len(s.keys)).data
    main = sample(found.class_name, data)
    body = {k for k in main.keys if k not in own}
    stripped = {k.removeprefix(prefix) for k in body}
    extra = {k for k in main.keys if k in own}
    for name in _names(found):
        try:
            _class(found, symbols, name, data, stripped, extra, prefix, made)
        except (SampleError, _Odd) as error:
            made.left_out[name] = str(error)
    return made


class _Odd(Exception):
    """A class that the form of `match.classes` does not hold."""


def _names(found: Exploration) -> Iterator[str]:
    import transformers

    main: Any = getattr(transformers, found.class_name)
    for name, kind in vars(sys.modules[main.__module__]).items():
        ours = inspect.isclass(kind) and kind.__module__ == main.__module__ and hasattr(kind, "_from_config")
        same = ours and getattr(kind, "config_class", None) is main.config_class
        public = hasattr(transformers, name) and not name.endswith(("PreTrainedModel", "PretrainedModel"))
        if same and public and name != found.class_name:
            yield name


def _class(
    found: Exploration,
    symbols: Symbols,
    name: str,
    data: dict[str, Any],
    stripped: set[str],
    extra: set[str],
    prefix: str,
    made: Heads,
) -> None:
    one = sample(name, {**data, "architectures": [name]}, run=False)
    called = _called(one, stripped)
    added = {k for k in one.keys if not (k.startswith(called) and k.removeprefix(called) in stripped)}
    if not added and called == "" and prefix:
        made.base_class = name
        return
    parts: list[str] = []
    if extra and extra <= added:
        parts.append("head")
        added -= extra
    if added:
        parts.append(_part(found, symbols, name, data, added, called, prefix, made))
    spec: dict[str, Any] = {"parts": parts}
    if called != prefix:
        spec["base_prefix"] = called
    if called == "" and prefix and made.base_class is None and name.endswith("Model"):
        made.base_class = name
    made.classes[name] = spec


def _called(one: Sample, stripped: set[str]) -> str:
    """The prefix of the base model's keys in a class."""
    longest = max(stripped, key=len)
    for key in one.keys:
        if key.endswith(longest):
            prefix = key.removesuffix(longest)
            if {f"{prefix}{k}" for k in stripped} <= set(one.keys):
                return prefix
    raise _Odd("it lacks keys of the base model")


def _part(
    found: Exploration,
    symbols: Symbols,
    name: str,
    data: dict[str, Any],
    added: set[str],
    called: str,
    prefix: str,
    made: Heads,
) -> str:
    """The part that holds these keys: one that is there already, or a new one."""
    samples = [(data, sample(name, data, run=False))]
    for changes in ({"num_labels": 5}, *(_together(found, one) for one in found.joint)):
        try:
            config = changed(data, changes)
            if "num_labels" in changes:
                config = {k: v for k, v in config.items() if k not in ("id2label", "label2id")}
            samples.append((config, sample(name, config, run=False)))
        except SampleError:
            continue
    sizes = symbols.names(found.effective)
    envs = [{**symbols.env(s), "n_labels": len(s.config.get("id2label") or (0, 1))} for _, s in samples]
    specs: list[dict[str, Any]] = []
    for key in sorted(added):
        shape = _shape(key, [s for _, s in samples], envs, sizes)
        for text in map(symbols.use, shape):
            if "n_labels" in text:
                made.dims = _labels(symbols)
        inside = key.startswith(called) or not called
        specs.append({"key": f"{prefix}{key.removeprefix(called)}" if inside and prefix else key, "shape": shape})
    specs = _modules(specs)
    for known, given in made.parts.items():
        if given == specs:
            return known
    label = specs[0]["role"].replace(".", "_")
    label = next(n for n in (label, *(f"{label}_{i}" for i in range(2, 99))) if n not in made.parts and n != "head")
    made.parts[label] = specs
    return label


def _shape(key: str, samples: list[Sample], envs: list[dict[str, Any]], sizes: list[str]) -> list[str]:
    """The symbolic shape of a key that every sample has."""
    if any(c.isdigit() for c in key.split(".")):
        raise _Odd(f"{key} is numbered")
    shapes = [s.keys.get(key, ()) for s in samples]
    if len({len(s) for s in shapes}) > 1 or any(key not in s.keys for s in samples):
        raise _Odd(f"{key} is there under some configs")
    found: list[str] = []
    for axis in range(len(shapes[0])):
        ys = [s[axis] for s in shapes]
        text = fit.whole(ys, envs, ["n_labels", *_nearest(sizes, ys, envs)])
        if text is None:
            raise _Odd(f"{key}: {ys} follows no config key")
        found.append(text)
    return found


def _together(found: Exploration, one: Sample) -> dict[str, Any]:
    """Sizes of a sample in which many keys differ; flags as they are."""
    return {
        k: one.data[k]
        for k in found.effective
        if isinstance(one.data.get(k), int) and not isinstance(one.data[k], bool)
    }


def _nearest(names: list[str], ys: list[int], envs: list[dict[str, Any]]) -> list[str]:
    usable = [n for n in names if all(isinstance(e[n], int) and not isinstance(e[n], bool) for e in envs)]
    return sorted(usable, key=lambda n: sum(e[n] != y for e, y in zip(envs, ys, strict=True)))[:6]


def _modules(specs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Weights with their biases as modules, each with a role."""
    by_key = {s["key"]: s for s in specs}
    found: list[dict[str, Any]] = []
    for spec in specs:
        stem, _, leaf = spec["key"].rpartition(".")
        if leaf == "bias" and f"{stem}.weight" in by_key:
            continue
        if leaf != "weight":
            found.append({"role": spec["key"], **spec})
            continue
        bias = by_key.get(f"{stem}.bias")
        if bias is not None and bias["shape"] != spec["shape"][:1]:
            raise _Odd(f"{bias['key']} has no side of its weight")
        found.append({"role": stem, "module": stem, "shape": spec["shape"], **({"bias": True} if bias else {})})
    return found


def _labels(symbols: Symbols) -> dict[str, Any]:
    import transformers

    cls: Any = transformers.CONFIG_MAPPING[symbols.found.model_type]
    count = len(cls().id2label)
    return {
        "n_labels": {"config": "num_labels", "default": {"expr": "len(labels)"}},
        "labels": {"config": "id2label", "default": list(range(count))},
    }
