"""Where the config of a larger model (pictures, sound) keeps that of its text stack."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, cast

# Names of nested configs that describe a text stack, in the order in which they are tried.
_PLACES = (
    ("text_config",),
    ("llm_config",),
    ("language_config",),
    ("thinker_config", "text_config"),
)


def text_configs(config: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every config of a text stack that a larger model's config.json may hold, as one of its own."""
    for place in _PLACES:
        inner, around = _at(config, place)
        if inner is not None:
            # The head belongs to the larger model's class: that one says whether it is tied.
            tie = around.get("tie_word_embeddings")
            yield inner if tie is None else {**inner, "tie_word_embeddings": tie}
    model_type = config.get("model_type")
    if isinstance(model_type, str) and not any(_at(config, place)[0] for place in _PLACES):
        # Older configs keep the text stack's fields beside vision_config, and the class moves them inside.
        flat = {key: value for key, value in config.items() if key != "architectures"}
        yield {**flat, "model_type": f"{model_type}_text"}


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
