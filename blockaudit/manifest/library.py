"""Which manifest of the library a checkpoint is to be held against, how that was found, and how sure it is."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any, Literal, cast

import msgspec

from blockaudit import resources
from blockaudit.manifest.fields import inherited, norm_key
from blockaudit.manifest.load import LoadedManifest, library, load
from blockaudit.manifest.text_stack import Steps, text_class, text_configs
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.manifest import Manifest

# Without a config.json, a family whose keys fit less well than this is named as the nearest, and not audited against.
SURE_ENOUGH = 0.8
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_SYMBOL = re.compile(r"\{\w+\}")


class Choice(msgspec.Struct, frozen=True):
    """The manifest to audit against; `also` are other ids whose keys fit as well."""

    loaded: LoadedManifest
    chosen_by: Literal["flag", "config", "keys"]
    confidence: float
    also: tuple[str, ...] = ()


class Nearest(msgspec.Struct, frozen=True):
    """No manifest to audit against: the family whose keys come nearest, and its score (0 to 1)."""

    id: str | None
    score: float


def effective_config(config: dict[str, Any] | None) -> dict[str, Any] | None:
    """The config of the text stack, where config.json is that of a larger model and the library speaks of its text.

    It is another object than `config` exactly there.
    """
    found = _text_stack(config)
    if config is None or found is None:
        return config
    _, inner, family = found
    name = None if inner.get("architectures") else text_class(config, signatures()[family].classes)
    return {**inner, "architectures": [name]} if name else inner


def text_place(config: dict[str, Any] | None) -> Steps:
    """The names that lead to the config of the text stack that `effective_config` gives; none where it is all of it."""
    found = _text_stack(config)
    return () if found is None else found[0]


def _text_stack(config: dict[str, Any] | None) -> tuple[Steps, dict[str, Any], str] | None:
    """The first text stack of a larger model that the library speaks of: place, config and family."""
    if config is None or _by_config(config) is not None:
        return None
    for place, inner in text_configs(config):
        if (family := _by_config(inner)) is not None:
            return place, inner, family
    return None


def speaks_of(config: dict[str, Any] | None) -> bool:
    """Whether the library has a manifest for the model type or the class that a config.json names."""
    inner = effective_config(config)
    return inner is not None and _by_config(inner) is not None


def choose(flag: str | None, checkpoint: Checkpoint) -> Choice | Nearest:
    """By `--manifest`, else by config.json's model type or class, else (no config.json) by the key set."""
    if flag is not None:
        return Choice(load(flag), "flag", 1.0)
    config = effective_config(checkpoint.config)
    named = _by_config(config) if config is not None else None
    if named is not None and config is not None:
        loaded = library(named)
        return Choice(loaded, "config", 1.0) if _speaks_of(loaded.manifest, config) else Nearest(named, 1.0)
    scores = scored(checkpoint.tensors)
    if not scores:
        return Nearest(None, 0.0)
    best, score = scores[0]
    # A config that names a family we do not have is not overruled by keys that look like one that we do.
    if config is not None and config.get("model_type"):
        return Nearest(best, score)
    if score < SURE_ENOUGH:
        return Nearest(best, score)
    drafted = signatures()[best].drafted
    also = tuple(name for name, s in scores[1:] if s == score and signatures()[name].drafted is drafted)
    return Choice(library(best), "keys", round(score / (1 + len(also)), 4), also)


def _by_config(config: dict[str, Any]) -> str | None:
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in resources.manifest_ids():
        return model_type
    classes = cast("list[Any] | None", config.get("architectures"))
    names = {n for n in classes if isinstance(n, str)} if isinstance(classes, list) else set[str]()
    if not isinstance(model_type, str) and not names:
        return None
    for name, signature in signatures().items():
        if isinstance(model_type, str):
            if model_type in signature.model_types:
                return name
        elif names & {*signature.classes}:
            return name
    return None


def _speaks_of(manifest: Manifest, config: dict[str, Any]) -> bool:
    """Whether a manifest knows the class that config.json names. A drafted one may lack classes of its family."""
    classes = cast("list[Any] | None", config.get("architectures"))
    if manifest.witness == "declared" or not isinstance(classes, list) or not classes:
        return True
    return any(c in manifest.match.classes or c == manifest.match.base_class for c in classes)


def scored(keys: Iterable[str]) -> list[tuple[str, float]]:
    """Every family with the share of keys it explains (harmonic mean of both coverages), best first, then by id.

    Families with a drafted manifest come after those with one made by hand that the keys fit well enough.
    """
    shapes = {_NUMBER.sub("#", key) for key in keys}
    if not shapes:
        return []
    known = signatures()
    scores = {name: _score(signature, shapes) for name, signature in known.items()}

    def rank(name: str) -> tuple[bool, float, int, str]:
        # Of families whose keys fit equally well, the one whose manifest asks for least beside the keys comes first.
        sure = scores[name] >= SURE_ENOUGH and not known[name].drafted
        return not sure, -scores[name], known[name].size, name

    return [(name, scores[name]) for name in sorted((n for n in scores if scores[n] > 0), key=rank)]


class Signature(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a family is recognised by: `size` is its manifest's in bytes, keys are templates with `#` for each axis."""

    model_types: tuple[str, ...]
    classes: tuple[str, ...]
    prefix: str
    size: int
    drafted: bool
    required: frozenset[str]
    optional: frozenset[str] = frozenset()


def signature(loaded: LoadedManifest, size: int) -> Signature:
    """The signature of a manifest of the library."""
    manifest, required, optional = loaded.manifest, set[str](), set[str]()
    for template, maybe in templates(manifest):
        (optional if maybe else required).add(_NUMBER.sub("#", _SYMBOL.sub("#", template)))
    match = manifest.match
    classes = (*match.classes, *([match.base_class] if match.base_class else []))
    return Signature(
        tuple(match.model_types),
        classes,
        match.base_prefix,
        size,
        manifest.witness != "declared",
        frozenset(required),
        frozenset(optional - required),
    )


@cache
def signatures() -> dict[str, Signature]:
    """By id, from the index beside the manifests; those that it lacks from their manifests."""
    index = resources.index_path()
    known = msgspec.json.decode(index.read_bytes(), type=dict[str, Signature]) if index.is_file() else {}
    found: dict[str, Signature] = {}
    for name in resources.manifest_ids():
        found[name] = known.get(name) or signature(library(name), resources.manifest_path(name).stat().st_size)
    return found


def _score(family: Signature, shapes: set[str]) -> float:
    """Keys are compared with every number replaced; a missing root (`model.`) does not count against them."""
    required, prefix = family.required, family.prefix
    possible = required | family.optional
    rooted = {s if s in possible else prefix + s for s in shapes}
    explained, found = len(rooted & possible), len(required & rooted)
    if not explained or not required:
        return 0.0
    precision, recall = explained / len(shapes), found / len(required)
    return round(2 * precision * recall / (precision + recall), 4) if recall else 0.0


def templates(manifest: Manifest) -> Iterator[tuple[str, bool]]:
    """Key templates of a manifest whatever its config, and whether a model of this family may lack the key."""
    for stack in manifest.stacks:
        norms = [(n, False) for n in (stack.embedding_norm, stack.final_norm) if n is not None]
        norms += [(n, b.when is not None) for b in stack.branches for n in b.norms.values()]
        norms += [(n, False) for n in stack.unplaced.values()]
        for norm, optional in norms:
            if isinstance(norm.module, str):
                maybe = optional or isinstance(norm.when, str) or stack.ignored
                yield norm_key(norm, manifest.norm, "weight"), maybe
                bias = inherited(norm, manifest.norm, "bias")
                if bias is not False:
                    yield norm_key(norm, manifest.norm, "bias"), maybe or bias is not True
        specs = [(t, False) for t in (*stack.embedding, *stack.tensors)]
        specs += [(t, b.when is not None or bool(b.layer_kinds)) for b in stack.branches for t in b.tensors]
        for spec, optional in specs:
            maybe = optional or spec.optional or spec.when is not None or spec.tied_to is not None or stack.ignored
            yield spec.key or f"{spec.module}.weight", maybe
            if spec.module is not None and spec.bias is not False:
                yield f"{spec.module}.bias", spec.bias is not True or maybe
    for spec in (t for group in (*manifest.parts.values(), manifest.buffers) for t in group):
        yield spec.key or f"{spec.module}.weight", True
        if spec.module is not None and spec.bias is not False:
            yield f"{spec.module}.bias", True
