"""The keys of a PEFT adapter, taken apart: which module each belongs to, and which part of it."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from blockaudit.records.adapter import Pair, Shape
from blockaudit.records.checkpoint import TensorHeader

ROOT = "base_model.model."
_PARTS = {
    "lora_A": "A",
    "lora_B": "B",
    "lora_embedding_A": "A",
    "lora_embedding_B": "B",
    "lora_magnitude_vector": "magnitude",
    "ia3_l": "vector",
}
# Words that PEFT's wrappers put into the path of a module.
_WRAPPED = ("base_layer", "modules_to_save", "token_adapter")


class Keys(msgspec.Struct, frozen=True):
    """All keys by what they are; `odd` are those that no adapter of these kinds has."""

    pairs: tuple[Pair, ...]
    whole: dict[str, str]
    tokens: dict[str, str]
    saved: frozenset[str]  # names in `whole` whose key says that a module was saved with the adapter
    odd: tuple[str, ...]


def read_keys(tensors: Mapping[str, TensorHeader]) -> Keys:
    """Take every key apart. The name of the adapter (`.default`) may stand behind a part."""
    parts: dict[str, dict[str, tuple[str, Shape]]] = {}
    embeddings: set[str] = set()
    whole: dict[str, str] = {}
    tokens: dict[str, str] = {}
    saved: set[str] = set()
    odd: list[str] = []
    for key, header in tensors.items():
        segments = key.removeprefix(ROOT).split(".")
        at = next((i for i, word in enumerate(segments) if word in _PARTS), None)
        if at is not None:
            module = ".".join(word for word in segments[:at] if word not in _WRAPPED)
            part = _part(segments[at:])
            if not module or not part:
                odd.append(key)
                continue
            parts.setdefault(module, {})[part] = key, header.shape
            if segments[at].startswith("lora_embedding"):
                embeddings.add(module)
        elif "original_module" in segments:
            continue  # the base's own numbers, which PEFT keeps beside those that replace them
        elif segments[-1] == "trainable_tokens_delta":
            tokens[".".join(word for word in segments[:-1] if word not in _WRAPPED)] = key
        elif segments[-1] in ("weight", "bias") and len(segments) > 1:
            name = _bare(segments)
            whole[name] = key
            if "modules_to_save" in segments or "base_layer" in segments:
                saved.add(name)
        else:
            odd.append(key)
    pairs = tuple(Pair(module, found, module in embeddings) for module, found in parts.items())
    return Keys(pairs, whole, tokens, frozenset(saved), tuple(odd))


def _part(segments: list[str]) -> str:
    """`A` of `lora_A.weight` or `lora_A.default.weight`, `bias` of `lora_B.bias`; empty for what is no part."""
    rest = segments[1:]
    last = rest[-1] if rest and rest[-1] in ("weight", "bias") else ""
    if len(rest) > (2 if last else 1):
        return ""
    return "bias" if last == "bias" else _PARTS[segments[0]]


def _bare(segments: list[str]) -> str:
    """The parameter's name in the base: without wrappers, and without the adapter's name behind modules_to_save."""
    found: list[str] = []
    for i, word in enumerate(segments):
        named = i and segments[i - 1] == "modules_to_save" and i < len(segments) - 1
        if word not in _WRAPPED and not (named and word == "default"):
            found.append(word)
    return ".".join(found)
