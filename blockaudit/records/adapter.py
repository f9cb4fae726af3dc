"""A PEFT adapter as its file and adapter_config.json describe it."""

from __future__ import annotations

import msgspec

from blockaudit.records.checkpoint import Fault

Shape = tuple[int, ...]


class Pair(msgspec.Struct, frozen=True):
    """What adapts one module: key and shape of each part, by the part's name (`A`, `B`, `magnitude`, `vector`).

    `module` is named as the base model's class names it.
    """

    module: str
    parts: dict[str, tuple[str, Shape]]
    embedding: bool = False

    def shape(self, part: str) -> Shape | None:
        return self.parts[part][1] if part in self.parts else None

    def stored(self) -> tuple[str, ...]:
        return tuple(key for key, _ in self.parts.values())


class Adapter(msgspec.Struct, frozen=True):
    """`kind` is the peft_type, `base` the model that it was made for, `read` whether this kind is understood.

    `whole` are parameters that stand in place of the base's: name in the base's class -> key in the file. `tokens` are
    rows of embeddings that replace the base's: module -> key. `excluded` is None where the config gives a pattern.
    """

    kind: str
    base: str
    read: bool
    pairs: tuple[Pair, ...] = ()
    whole: dict[str, str] = {}
    tokens: dict[str, str] = {}
    says: str = ""
    targets: tuple[str, ...] = ()
    layers: frozenset[int] | None = None
    excluded: tuple[str, ...] | None = ()
    # What is missing from settings that give neither rank nor alpha: nobody can merge by them.
    unsaid: tuple[Fault, ...] = ()
    # Modules that adapter_config.json lists and no key belongs to.
    unmatched: tuple[str, ...] = ()
