"""Symbols for sizes: a dimension that equals a number of config.json is bound to it, all others are literal.

In this order, and the first that fits is taken: the named widths of `_NAMED`, products of them, any other whole number
of config.json by its name, a new symbol `size_<n>`. Where several fit, that is said.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from blockaudit.records.manifest import Bound, Value

# Symbol -> the config keys that are known to hold it, most usual first.
_NAMED: dict[str, tuple[str, ...]] = {
    "d_model": ("hidden_size", "d_model", "n_embd", "dim", "hidden_dim", "embed_dim"),
    "d_ff": ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "ffn_hidden_size", "encoder_ffn_dim", "mlp_dim"),
    "vocab": ("vocab_size", "n_vocab"),
    "d_head": ("head_dim", "d_kv", "attention_head_dim", "kv_channels"),
    "d_moe": ("moe_intermediate_size", "expert_ffn_dim"),
    "n_ctx": ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
    "n_experts": ("num_local_experts", "num_experts", "n_routed_experts"),
    "n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "n_kv": ("num_key_value_heads", "n_kv_heads", "num_kv_heads", "multi_query_group_num"),
}
# Sizes that projections have, as products of the named ones.
_PRODUCTS = (
    "n_heads * d_head", "n_kv * d_head", "3 * d_model", "(n_heads + 2 * n_kv) * d_head", "2 * d_ff", "2 * d_moe",
    "4 * d_model", "2 * d_model", "3 * n_heads * d_head", "2 * n_kv * d_head", "n_ctx + 2",
)  # fmt: skip
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "num_decoder_layers", "decoder_layers")
# Below this a number is more likely a kernel size or a flag than a width: it stays a number.
_SMALL = 5


class Symbols:
    """The dims of a draft, named as they are needed."""

    def __init__(self, config: Mapping[str, Any] | None) -> None:
        self._numbers = dict(_numbers(config or {}))
        self.dims: dict[str, Value] = {}
        self.remarks: list[str] = []
        self._known = {name: key for name, keys in _NAMED.items() for key in [self._first(keys)] if key is not None}
        self._said: dict[int, str] = {}

    def of(self, size: int) -> str:
        """The expression for one size."""
        if size not in self._said:
            self._said[size] = self._choose(size)
        return self._said[size]

    def count(self, name: str, keys: tuple[str, ...], number: int, what: str) -> str | int:
        """A symbol for how many of something there are: bound to config.json where it says the same."""
        key = self._first(keys)
        if key is None:
            return number
        if self._numbers[key] != number:
            self.remarks.append(
                f"config.json says {key} = {self._numbers[key]} and there are {number} {what}: the keys are believed"
            )
            return number
        self.dims[name] = Bound(config=key)
        return name

    def _choose(self, size: int) -> str:
        if size < _SMALL:
            return str(size)
        named = [name for name in self._known if self._value(name) == size]
        named += ["d_head"] if self._derived_head() == size and "d_head" not in named else []
        fits = named or [text for text in _PRODUCTS if self._product(text) == size] or self._others(size)
        if not fits:
            self.dims[f"size_{size}"] = size
            return f"size_{size}"
        if len(fits) > 1:
            self.remarks.append(f"size {size} may be {', '.join(fits)}: taken as {fits[0]}")
        for name in re.findall(r"[a-z_]\w*", fits[0]):
            self._declare(name)
        return fits[0]

    def _declare(self, name: str) -> None:
        if name in self._known:
            self.dims.setdefault(name, Bound(config=self._known[name]))
        elif name == "d_head":
            for part in ("d_model", "n_heads"):
                self._declare(part)
            self.dims.setdefault(name, Bound(expr="d_model // n_heads"))
        elif name == "n_kv":
            self._declare("n_heads")
            self.dims.setdefault(name, Bound(expr="n_heads"))
        else:
            key = next(key for key in self._numbers if _symbol(key) == name)
            self.dims.setdefault(name, Bound(config=key))

    def _others(self, size: int) -> list[str]:
        taken = {*self._known.values(), *LAYERS}
        return [_symbol(k) for k in sorted(self._numbers) if self._numbers[k] == size and k not in taken]

    def _product(self, text: str) -> int | None:
        """The value of a product of named sizes, or None where config.json lacks one of them."""
        env = {name: self._value(name) for name in re.findall(r"[a-z_]\w*", text)}
        if any(value is None for value in env.values()):
            return None
        from blockaudit.manifest import grammar

        return grammar.evaluate(text, env)

    def _value(self, name: str) -> int | None:
        if name in self._known:
            return self._numbers[self._known[name]]
        return self._derived_head() if name == "d_head" else None

    def _derived_head(self) -> int | None:
        width, heads = self._known.get("d_model"), self._known.get("n_heads")
        if "d_head" in self._known or width is None or heads is None or not self._numbers[heads]:
            return None
        quotient, rest = divmod(self._numbers[width], self._numbers[heads])
        return quotient if rest == 0 else None

    def _first(self, keys: tuple[str, ...]) -> str | None:
        return next((key for key in keys if key in self._numbers), None)


def _numbers(config: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Whole numbers of config.json that may be sizes, nested ones by a dotted key."""
    found: list[tuple[str, int]] = []
    for key, value in config.items():
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**40 and not key.endswith("_id"):
            found.append((key, value))
        elif isinstance(value, dict) and key.endswith("_config"):
            inner = cast("dict[str, Any]", value)
            found += [(f"{key}.{name}", number) for name, number in _numbers(inner)]
    return [(k, v) for k, v in found if _symbol(k)]


def _symbol(key: str) -> str:
    """A config key as a symbol of expressions; empty where it cannot be one."""
    name = key.replace(".", "__")
    return name if name.isascii() and name.isidentifier() and len(name) <= 64 else ""
