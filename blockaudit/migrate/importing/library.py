"""transformers' own conversion mapping of a model type: from the keys of its checkpoints to those of its classes.

Its objects rename keys themselves, so that what they do is what is written down (transformers 5.24.0,
core_model_loading.py: WeightRenaming, WeightConverter; conversion_mapping.py).
"""

from __future__ import annotations

from typing import Any, cast

from blockaudit.errors import RequestError
from blockaudit.migrate.importing.operations import translated
from blockaudit.migrate.importing.steps import Renamed

PREFIX = "transformers:"


class Conversion:
    """The transforms of one model type. Renamings are applied in turn, then at most one converter."""

    def __init__(self, transforms: list[Any], evidence: str, converter: type) -> None:
        self._renamings = [t for t in transforms if not isinstance(t, converter)]
        self._converters = [t for t in transforms if isinstance(t, converter)]
        self.evidence = evidence

    def renamed(self, key: str, axes: tuple[str, ...]) -> Renamed:
        for renaming in self._renamings:
            key, _ = renaming.rename_source_key(key)
        for number, converter in enumerate(self._converters):
            new, pattern = converter.rename_source_key(key)
            if pattern is not None:
                first, *others = converter.target_patterns
                names = (new, *(new.replace(first, other) for other in others))
                sources = converter.source_patterns
                ops, why_not = translated(converter.operations, len(sources), len(names), axes)
                return Renamed(names, number, sources.index(pattern), len(sources), ops, why_not)
        return Renamed((key,))


def of_transformers(model_type: str) -> Conversion:
    """The mapping of a model type, or of a class by name. Raises RequestError where there is none to be had."""
    try:
        import transformers
        from transformers import conversion_mapping, core_model_loading
    except ImportError as error:
        raise RequestError(
            f"{PREFIX}{model_type} needs transformers 5 and torch: pip install -c constraints.txt 'blockaudit[torch]'"
        ) from error
    version: str = transformers.__version__
    mapping_of = cast("Any", conversion_mapping).get_checkpoint_conversion_mapping
    own: list[Any] | None = mapping_of(model_type)
    if own is None:
        raise RequestError(
            f"transformers {version} has no conversion mapping for {model_type!r}: its checkpoints are named as its "
            "classes are"
        )
    legacy: list[Any] = mapping_of("legacy") or []
    evidence = f"transformers {version}: conversion_mapping.py: {model_type}"
    return Conversion([*own, *legacy], evidence, core_model_loading.WeightConverter)
