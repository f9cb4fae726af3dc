"""Where the config of a larger model (pictures, sound) keeps that of its text stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

# The names that lead to a nested config; none where the fields stand in config.json itself.
Steps = tuple[str, ...]
# Nested configs that describe a text stack, in the order in which they are tried.
_PLACES: tuple[Steps, ...] = (
    ("text_config",),
    ("llm_config",),
    ("language_config",),
    ("thinker_config", "text_config"),
)


# The head belongs to the larger model's class: that one says whether it is tied.
_TIE = "tie_word_embeddings"
# Fields that the larger model may have for all of it: the scheme of its weights, before any that the text stack names.
_SCHEMES = ("quantization_config", "compression_config")


def text_configs(config: dict[str, Any]) -> Iterator[tuple[Steps, dict[str, Any]]]:
    """Every config of a text stack that a larger model's config.json may hold, as one of its own, with its place."""
    for place in _PLACES:
        inner, around = _at(config, place)
        if inner is not None:
            tie = around.get(_TIE)
            yield place, inner if tie is None else {**inner, _TIE: tie}
    model_type = config.get("model_type")
    if isinstance(model_type, str) and not any(_at(config, place)[0] for place in _PLACES):
        # Older configs keep the text stack's fields beside vision_config, and the class moves them inside.
        flat = {key: value for key, value in config.items() if key != "architectures"}
        yield (), {**flat, "model_type": f"{model_type}_text"}


def dotted(config: dict[str, Any], place: Steps, key: str) -> str:
    """The key of config.json that holds what the text stack's config, which stands at `place`, calls `key`."""
    found, around = _at(config, place)
    name, inner = key.partition(".")[0], found or {}
    if name == _TIE and around.get(_TIE) is not None:
        place = place[:-1]
    elif name in _SCHEMES and (config.get(name) or name not in inner):
        place = ()
    elif name == "architectures" and not inner.get(name):
        place = ()  # the class was chosen by the larger model's
    return ".".join((*place, key))


def text_class(config: dict[str, Any], classes: Sequence[str]) -> str | None:
    """The class of the text stack's family that has the head which the larger model's class has; None where unsure.

    classes: the family's, the main one first and the one without a head last.
    """
    named = cast("Any", config.get("architectures"))
    outer = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    _, word, task = outer.partition("For")
    if outer.endswith("Model"):
        return classes[-1] if classes and classes[-1].endswith("Model") else None
    if word and task in ("ConditionalGeneration", "CausalLM"):
        return classes[0] if classes else None
    return next((name for name in classes if word and name.endswith(f"For{task}")), None)


def _at(config: dict[str, Any], place: tuple[str, ...]) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """What stands at a place of a config, and the config right around it."""
    around, inner = config, config
    for name in place:
        found = cast("Any", inner.get(name))
        if not isinstance(found, dict):
            return None, around
        around, inner = inner, cast("dict[str, Any]", found)
    return inner, around
