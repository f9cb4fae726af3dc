"""A manifest from headers and config.json alone, of an architecture that the library does not have.

It says what is stored and how it is called, and claims no place for anything: norms go to `unplaced`, tensors to the
layer or to a part, and the residual equation stays open.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from blockaudit.errors import RequestError
from blockaudit.manifest.core import SCHEMA
from blockaudit.manifest.draft_keys import Keys, Template, group
from blockaudit.manifest.draft_shapes import LAYERS, Symbols
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.manifest import (
    Bound,
    ClassSpec,
    Manifest,
    Match,
    Norm,
    Residual,
    Stack,
    TensorSpec,
    Value,
)

_NORM = re.compile(r"norm|(^|[._])ln([._0-9]|$)", re.IGNORECASE)
_EPSILON = re.compile(r"(^|_)(eps|epsilon)$")
PART = "outside_layers"


def structure(checkpoint: Checkpoint) -> tuple[Manifest, list[str]]:
    """The manifest, and remarks on what was chosen among several."""
    usable = {k: t.shape for k, t in checkpoint.tensors.items() if _can_be_named(k)}
    if not usable:
        raise RequestError(f"{checkpoint.source}: no tensor that a manifest could name")
    drafter = _Drafter(group(usable), checkpoint.config)
    drafter.remarks += [
        f"key {k!r} cannot stand in a template and is left out" for k in checkpoint.tensors if k not in usable
    ]
    return drafter.manifest(), [*drafter.remarks, *drafter.symbols.remarks]


def _can_be_named(key: str) -> bool:
    return 0 < len(key) <= 390 and not set("{}") & set(key) and not re.search("[\ud800-\udfff]", key)


class _Drafter:
    def __init__(self, keys: Keys, config: dict[str, Any] | None) -> None:
        self.keys, self.config = keys, config or {}
        self.symbols = Symbols(config)
        self.remarks: list[str] = []
        self.epsilon = self._epsilon()
        if keys.rivals:
            self.remarks.append(f"the layers are {keys.layer_list}; as long are {', '.join(keys.rivals)}")

    def manifest(self) -> Manifest:
        layers = len(self.keys.layers)
        count: Any = self.symbols.count("n_layers", LAYERS, layers + self.keys.layers.start, "layers") if layers else 0
        norms, inside, outside = self._sorted()
        stack = Stack(
            name="decoder",
            layers=Bound(expr=count) if isinstance(count, str) and not self.keys.layers.start else layers,
            first_layer=self.keys.layers.start,
            parallel=None,
            embedding_scale=None,
            logit_scale=None,
            unplaced=norms,
            tensors=inside,
        )
        axes = {name: self._axis(name, number) for name, number in self.keys.axes.items()}
        model_type, named = self.config.get("model_type"), self._class_name()
        return Manifest(
            schema=SCHEMA,
            architecture_id=_identifier(model_type),
            evidence_label="source-local",
            source="tensor headers and config.json" if self.config else "tensor headers",
            witness="headers",
            match=Match(
                model_types=[model_type] if isinstance(model_type, str) else [],
                classes={named: ClassSpec(parts=[PART])} if outside else {},
            ),
            residual=Residual(
                shortcut=None,
                shortcut_source=None,
                shortcut_scale=None,
                attention_branch_scale=None,
                cross_attention_branch_scale=None,
                mlp_branch_scale=None,
                update=None,
            ),
            dims=self.symbols.dims,
            axes=axes,
            stacks=[stack],
            parts={PART: outside} if outside else {},
        )

    def _sorted(self) -> tuple[dict[str, Norm], list[TensorSpec], list[TensorSpec]]:
        """Templates as norms, tensors of the layers, and tensors outside of them."""
        norms: dict[str, Norm] = {}
        inside: list[TensorSpec] = []
        outside: list[TensorSpec] = []
        for module, weight, bias in self._modules():
            if len(weight.shape) == 1 and _is_norm(module):
                norms[_free_name(module, norms)] = self._norm(module, weight, bias is not None)
                continue
            spec = TensorSpec(role=module, module=module, bias=bias is not None, **self._common(weight, bias))
            (inside if weight.in_layers else outside).append(spec)
        modules = {spec.role for spec in (*inside, *outside)}
        for template in self._loose():
            # A parameter may be called as a module is.
            role = f"{template.text} (key)" if template.text in modules else template.text
            spec = TensorSpec(role=role, key=template.text, **self._common(template, None))
            (inside if template.in_layers else outside).append(spec)
        return norms, inside, outside

    def _modules(self) -> Iterator[tuple[str, Template, Template | None]]:
        """Modules that have a weight, with the bias where it stands everywhere that the weight does."""
        self._taken: set[int] = set()
        by_text: dict[str, list[Template]] = {}
        for template in self.keys.templates:
            by_text.setdefault(template.text, []).append(template)
        for text, weights in by_text.items():
            module = text.removesuffix(".weight")
            # Of several shapes by layer, each is a key of its own.
            if module == text or len(weights) > 1 or not weights[0].shape:
                continue
            biases = by_text.get(f"{module}.bias", [])
            bias = biases[0] if len(biases) == 1 and _belongs(biases[0], weights[0]) else None
            self._taken |= {id(weights[0]), id(bias)}
            yield module, weights[0], bias

    def _loose(self) -> Iterator[Template]:
        yield from (t for t in self.keys.templates if id(t) not in self._taken)

    def _common(self, weight: Template, bias: Template | None) -> dict[str, Any]:
        conv1d = bias is not None and len(weight.shape) == 2 and bias.shape[0] != weight.shape[0]
        return {
            "shape": self._shape(weight.shape),
            "layout": "in_out" if conv1d else "out_in",
            "when": weight.when,
        }

    def _norm(self, module: str, weight: Template, bias: bool) -> Norm:
        when: dict[str, Any] = {} if weight.when is None else {"when": weight.when}
        return Norm(
            family=None,
            placement=None,
            epsilon=self.epsilon,
            bias=bias,
            module=module,
            shape=self._shape(weight.shape),
            **when,
        )

    def _shape(self, shape: Sequence[int]) -> list[str]:
        return [self.symbols.of(size) for size in shape]

    def _axis(self, name: str, number: int) -> str:
        keys = ("num_local_experts", "num_experts", "n_routed_experts") if name == "e" else ()
        return str(self.symbols.count("n_experts", keys, number, f"of axis {{{name}}}"))

    def _epsilon(self) -> Value:
        """Bound to config.json where one key alone can be meant."""
        keys = [k for k, v in self.config.items() if _EPSILON.search(k) and isinstance(v, int | float)]
        if len(keys) > 1:
            self.remarks.append(f"epsilon may be {', '.join(keys)}: left open")
        return Bound(config=keys[0]) if len(keys) == 1 else None

    def _class_name(self) -> str:
        named = self.config.get("architectures")
        first: Any = named[0] if isinstance(named, list) and named else None  # pyright: ignore[reportUnknownVariableType]
        return first if isinstance(first, str) and first else "Model"


def _is_norm(module: str) -> bool:
    return _NORM.search(module.rpartition(".")[2] if "{" not in module.rpartition(".")[2] else module) is not None


def _belongs(bias: Template, weight: Template) -> bool:
    """Whether a bias is this weight's: one number for each output, in the same layers."""
    if bias.when != weight.when or len(bias.shape) != 1:
        return False
    return bias.shape[0] in (weight.shape[0], weight.shape[1] if len(weight.shape) == 2 else weight.shape[0])


def _free_name(module: str, taken: dict[str, Norm]) -> str:
    """The last words of a module's name, as many as tell it from the others."""
    words = [w for w in re.split(r"[.{}]+", module) if w and w != "l"]
    for many in range(1, len(words) + 1):
        name = re.sub(r"\W", "_", "_".join(words[-many:]), flags=re.ASCII)[:60]
        name = name if name[:1].isalpha() or name[:1] == "_" else f"n_{name}"
        if name not in taken:
            return name
    return f"norm_{len(taken)}"


def _identifier(model_type: Any) -> str:
    text = re.sub(r"[^A-Za-z0-9_.-]", "_", model_type)[:100] if isinstance(model_type, str) else ""
    return text if text[:1].isalnum() else "unknown"
