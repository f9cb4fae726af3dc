"""What the `gguf` package knows of the format: how blocks are packed, and what the tensors of a model are called.

The package is an extra. Its tables are used and its reader is not: a header is anybody's, and is read by our own.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from blockaudit.errors import RequestError

_AXIS = re.compile(r"\{(\w+)\}")
_EXPERT = re.compile(r"\.\{(?!l\})\w+\}")


@cache
def _package() -> Any:
    try:
        import gguf
    except ImportError as error:
        raise RequestError(
            "a GGUF file is read with the tables of the gguf package, which is missing: pip install 'blockaudit[gguf]'"
        ) from error
    return gguf


@cache
def block_sizes() -> dict[int, tuple[str, int, int]]:
    """Type number -> (name, elements of a block, bytes of a block). Raises RequestError without the package."""
    package = _package()
    return {int(kind): (kind.name, *sizes) for kind, sizes in package.GGML_QUANT_SIZES.items()}


class Names:
    """How one architecture of GGUF calls the tensors that a manifest names."""

    def __init__(self, architecture: str) -> None:
        """Raises RequestError where the package is missing or does not know the architecture."""
        package = _package()
        known = {name: arch for arch, name in package.MODEL_ARCH_NAMES.items()}
        if architecture not in known:
            raise RequestError(
                f"the gguf package has no names for the tensors of the architecture {architecture[:80]!r}: "
                "update it, or audit the checkpoint that the file was converted from"
            )
        # The table of a model of one layer, of which the number is given a mark again.
        mapping: dict[str, Any] = package.get_tensor_name_map(known[architecture], 1).mapping
        self._names: dict[str, str] = {key: found[1] for key, found in mapping.items()}

    def template(self, key: str) -> tuple[str, bool] | None:
        """A key template as GGUF spells it, and whether its experts lie in one tensor there; None: it has no name."""
        module, _, parameter = key.rpartition(".")
        plain = _EXPERT.sub("", module)
        found = self._names.get(plain.replace("{l}", "0"))
        if found is None or len(_AXIS.findall(plain)) > 1:
            return None
        name = found.replace("blk.0.", "blk.{l}.", 1) if "{l}" in plain else found
        return f"{name}.{parameter}", plain != module
