"""Experiments on the config of one class: each key changed by itself, then many at once; what keys and shapes do."""

from __future__ import annotations

import inspect
import random
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, cast

from blockaudit.graph import tiny
from blockaudit.graph.drafting.samples import ABSENT, LAYER_KEYS, Sample, SampleError, base, changed, sample

_TOGETHER, _TRIES = 8, 28
# The width of the state, as config classes call it.
WIDTHS = ("hidden_size", "d_model", "n_embd", "dim", "emb_dim")
# Keys of every config that say nothing of a block.
_INERT = (
    "use_cache", "dtype", "torch_dtype", "architectures", "model_type", "transformers_version", "return_dict",
    "chunk_size_feed_forward", "problem_type", "id2label", "label2id", "is_encoder_decoder", "torchscript",
    "gradient_checkpointing", "use_return_dict", "tie_encoder_decoder",
)  # fmt: skip
_NOUGHT = ("expert", "shared", "rank", "lora", "replace", "dense", "nextn")


@dataclass
class Exploration:
    """Samples of one class. `single` holds, by key, those in which that key alone differs from the base."""

    model_type: str
    class_name: str
    base: Sample
    single: dict[str, list[Sample]] = field(default_factory=dict[str, list[Sample]])
    joint: list[Sample] = field(default_factory=list[Sample])

    @property
    def samples(self) -> list[Sample]:
        return [self.base, *(s for many in self.single.values() for s in many), *self.joint]

    @property
    def effective(self) -> list[str]:
        """Config keys that change the keys or the shapes."""
        return [k for k, many in self.single.items() if any(differs(s, self.base) for s in many)]

    def env(self, sample_: Sample) -> dict[str, Any]:
        """Config keys with their values, as config.json has them, else as the class implies them."""
        return {k: sample_.config.get(k, sample_.fields.get(k)) for k in {*sample_.fields, *sample_.config}}


def differs(a: Sample, b: Sample) -> bool:
    """Whether two samples have other keys or other shapes."""
    return a.keys != b.keys


@cache
def generic() -> frozenset[str]:
    """Keys that every config class has."""
    import transformers

    return frozenset(transformers.PretrainedConfig().to_dict()) | frozenset(_INERT)


def own_keys(data: Mapping[str, Any]) -> list[str]:
    """Keys that this config class has beside every class's."""
    tokens = ("_token_id", "_token_ids")
    return [k for k in data if k == "tie_word_embeddings" or (k not in generic() and not k.endswith(tokens))]


def explore(model_type: str, class_name: str, seed: int = 1) -> Exploration:
    """Everything that samples say of a class. Raises SampleError where not even a tiny model of it is to be had."""
    data = base(model_type, class_name)
    found = Exploration(model_type, class_name, sample(class_name, data))
    # A size that the code asks for and the config class does not have.
    hidden = [] if "head_dim" in data or not _asked(class_name, "head_dim") else ["head_dim"]
    for key in (*own_keys(data), *hidden):
        tried = (16, 4) if key in hidden else _values(model_type, key, data[key])
        for value in _words(class_name, key) if isinstance(data.get(key), str) else tried:
            if value == data.get(key):
                continue
            try:
                one = sample(class_name, changed(data, {key: value}))
            except SampleError:
                continue
            if key in one.data and not _took(one, key, value):
                continue
            found.single.setdefault(key, []).append(one)
            if len(found.single[key]) >= 3:
                break
    for key in _sized(found):
        _linked(found, key)
    _together(found, random.Random(seed))
    return found


def _sized(found: Exploration) -> list[str]:
    """Sizes that no sample has at another value than the base."""
    data = found.base.data
    sizes = [k for k in own_keys(data) if type(data[k]) is int and data[k] > 0 and (k in tiny.SIZES or k in LAYER_KEYS)]
    return [k for k in sizes if k not in found.single]


def stuck(found: Exploration) -> list[str]:
    """Sizes that the code names and that could not be varied: a literal in a shape may be one of them."""
    return [k for k in _sized(found) if _named(found.class_name, k)]


def _linked(found: Exploration, width: str) -> None:
    """A size that does not change alone, changed with each other size in turn."""
    data = found.base.data
    for key in (k for k in own_keys(data) if type(data[k]) is int and k not in (width, *LAYER_KEYS)):
        for times in (2, 3):
            try:
                one = sample(found.class_name, changed(data, {width: data[width] * times, key: data[key] * times}))
            except SampleError:
                break
            found.single.setdefault(width, []).append(one)
            if len(found.single.setdefault(key, [])) < times - 1:
                found.single[key].append(one)
            if len(found.single[width]) >= 4:
                return


def moved(found: Exploration, one: Sample) -> dict[str, Any]:
    """Keys of a sample that are not as in the base, lists that follow the depth left out."""
    base = found.base.data
    new = {k: v for k, v in one.data.items() if v != base.get(k)}
    deeper = any(k in LAYER_KEYS for k in new)
    return {k: v for k, v in new.items() if not (deeper and isinstance(v, list))}


def _together(found: Exploration, chance: random.Random) -> None:
    """Many keys at once; and again for each change that adds keys, so that their shapes are seen to follow too."""
    named = set(found.base.keys)
    adding = {
        k: one.data.get(k)
        for k, many in found.single.items()
        for one in many
        if isinstance(found.base.data.get(k), bool | None) and {*one.keys} - named
    }
    for forced, wanted in (({}, _TOGETHER), *(({k: v}, 4) for k, v in adding.items())):
        made = 0
        for _ in range(_TRIES):
            if made >= wanted or not found.effective:
                break
            changes: dict[str, Any] = {}
            for key in found.effective:
                if chance.random() < 0.55:
                    changes |= moved(found, chance.choice(found.single[key]))
            try:
                found.joint.append(sample(found.class_name, changed(found.base.data, {**changes, **forced})))
                made += 1
            except SampleError:
                continue


def _asked(class_name: str, key: str) -> bool:
    return f'"{key}"' in _source(class_name)


def _named(class_name: str, key: str) -> bool:
    return re.search(rf"\b{re.escape(key)}\b", _source(class_name)) is not None


@cache
def _source(class_name: str) -> str:
    """The text of the file that holds a class."""
    import transformers

    return inspect.getsource(sys.modules[getattr(transformers, class_name).__module__])


def _words(class_name: str, key: str) -> Iterator[str]:
    """Words that the code compares a field with."""
    text = _source(class_name)
    yield from dict.fromkeys(re.findall(rf"\b{re.escape(key)}\s*[!=]=\s*[\"']([\w-]+)[\"']", text))
    for listed in re.findall(rf"\b{re.escape(key)}\s+(?:not\s+)?in\s+[\[({{]([^\])}}]*)", text):
        yield from re.findall(r"[\"']([\w-]+)[\"']", listed)


def _took(one: Sample, key: str, value: Any) -> bool:
    """Whether the class kept the value that it was given."""
    return one.config.get(key, one.fields.get(key)) == value


def _values(model_type: str, key: str, value: Any) -> Iterator[Any]:
    """Values worth trying in place of this one."""
    said = hint(model_type, key)
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        if key in LAYER_KEYS:
            yield from (value + 1, value + 2, value * 2)
            return
        sizes = [value * 2, value + value // 2, value * 3, value + 1, value // 2, value + 2, value - 1]
        yield from dict.fromkeys(v for v in sizes if v > 0 and v != value and (v < 8192 or v < value))
        if value and any(part in key for part in _NOUGHT):
            yield 0
        if "None" in said:
            yield None
    elif value is None and "bool" in said:
        yield from (True, False)
    elif value is None and "int" in said:
        yield from (16, 24, 8)
    elif isinstance(value, list):
        yield from _lists(cast("list[Any]", value))


def _lists(value: list[Any]) -> Iterator[list[Any]]:
    kinds = list(dict.fromkeys(x for x in value if isinstance(x, str | int)))
    if not value:
        yield from ([0], [1])
    elif len(kinds) > 1 and len(kinds) <= 4 and all(isinstance(x, type(kinds[0])) for x in value):
        yield value[::-1]
        yield value[1:] + value[:1]
        yield from ([k] * len(value) for k in kinds)


@cache
def _hints(model_type: str) -> dict[str, str]:
    import transformers

    cls: Any = transformers.CONFIG_MAPPING[model_type]
    found: dict[str, str] = {}
    for kind in reversed(cls.__mro__):
        found |= {k: str(v) for k, v in getattr(kind, "__annotations__", {}).items()}
    return found


def hint(model_type: str, key: str) -> str:
    """The type that the config class gives a field, as text."""
    return _hints(model_type).get(key, "")


def without(found: Exploration, key: str) -> list[tuple[dict[str, Any], Any]]:
    """(config values, what the class implies for one key) in configs that do not have it."""
    import transformers

    cls: Any = transformers.CONFIG_MAPPING[found.model_type]
    made: list[tuple[dict[str, Any], Any]] = []
    for one in (found.base, *found.joint[:6]):
        try:
            data = changed(one.data, {key: ABSENT})
            if key in LAYER_KEYS:  # lists of one entry a layer are the class's own then
                lists = [k for k, v in data.items() if isinstance(v, list) and k != "architectures"]
                data = changed(data, dict.fromkeys(lists, ABSENT))
            config = cls.from_dict(data)
        except Exception:  # config classes may refuse in any way
            continue
        values = cast("dict[str, Any]", vars(config))
        made.append(({**found.env(one), **values}, values.get(key)))
    return made
