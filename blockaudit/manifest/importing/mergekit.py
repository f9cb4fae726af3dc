"""A block manifest of what a mergekit architecture says: keys, which of them may be absent, and which are tied.

Of the block itself the file says nothing, and neither does the manifest: no shape, no norm, no branch, no placement.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from blockaudit.errors import RequestError
from blockaudit.manifest import document
from blockaudit.manifest.core import SCHEMA
from blockaudit.manifest.draft import Draft
from blockaudit.manifest.importing.records import Placed, Weight, architecture, strangers
from blockaudit.manifest.load import read
from blockaudit.records.manifest import Bound, ClassSpec, Manifest, Match, Residual, Stack, TensorSpec, Value

# mergekit's default (architecture/base.py: ModuleArchitecture.num_layers_config_key).
_LAYERS = "num_hidden_layers"
# The key that transformers ties a head by; an architecture file does not say when a tie holds.
_TIE = "tie_word_embeddings"
_PLACEHOLDER = re.compile(r"\$\{(\w+)(?:([+-])1)?\}")
_SAYS_NOTHING = Residual(
    shortcut=None,
    shortcut_source=None,
    shortcut_scale=None,
    attention_branch_scale=None,
    cross_attention_branch_scale=None,
    mlp_branch_scale=None,
    update=None,
)


def from_mergekit(path: str) -> Draft:
    """The manifest of one file, JSON or YAML, and a line for everything that it leaves open or could not take over.

    Raises RequestError where the file is none.
    """
    given = document.parse(read(path), path)
    model_type, names, modules = architecture(given, path)
    builder = _Builder(frozenset(_names(modules.values())))
    for name, placed in modules.items():
        builder.add(name, placed)
    if not builder.named:
        raise RequestError(f"{path}: no tensor that a manifest could name")
    manifest = Manifest(
        schema=SCHEMA,
        architecture_id=_identifier(model_type or (names[0] if names else "")),
        evidence_label="derived",
        witness="headers",  # as a draft, it may leave the block open
        source=f"mergekit architecture {path.rpartition('/')[2]}",
        match=Match(
            model_types=[model_type] if model_type else [],
            classes={name: ClassSpec(parts=list(builder.parts)) for name in names},
        ),
        residual=_SAYS_NOTHING,
        dims=builder.dims,
        stacks=builder.stacks,
        parts=builder.parts,
    )
    return Draft(
        manifest, (*builder.remarks(), *(f"field {name} is not known and is left out" for name in strangers(given)))
    )


def _names(modules: Iterable[Placed]) -> Iterator[str]:
    """Every tensor of a file by its whole name."""
    for placed in modules:
        one = placed.architecture
        for weight in (*one.pre_weights, *one.layer_templates.weights, *one.post_weights):
            yield (placed.weight_prefix or "") + weight.name


class _Builder:
    """Stacks, parts and dimensions of all modules, and what could not be said with them."""

    def __init__(self, known: frozenset[str]) -> None:
        self._known = known
        self.stacks: list[Stack] = []
        self.parts: dict[str, list[TensorSpec]] = {}
        self.dims: dict[str, Value] = {}
        self.named = 0
        self._ties = 0
        self._left: Counter[str] = Counter()
        self._first: dict[str, str] = {}

    def add(self, name: str, placed: Placed) -> None:
        """One module: its layers are a stack, what stands before and after them a part."""
        module, prefix = placed.architecture, placed.weight_prefix or ""
        word = re.sub(r"[^a-z0-9_]", "_", name.lower(), flags=re.ASCII).strip("_")[:40] or f"stack_{len(self.stacks)}"
        layers = f"{word}_layers" if self.stacks else "n_layers"
        count = module.override_num_layers
        self.dims[layers] = Bound(config=module.num_layers_config_key or _LAYERS) if count is None else count
        inside = self._specs(module.layer_templates.weights, prefix, layers)
        self.stacks.append(
            Stack(name=word, layers=Bound(expr=layers), parallel=None, embedding_scale=None, logit_scale=None,
                  tensors=inside)
        )  # fmt: skip
        outside = self._specs((*module.pre_weights, *module.post_weights), prefix, layers)
        if outside:
            self.parts["outside_layers" if len(self.stacks) == 1 else f"outside_{word}"] = outside
        if placed.subfolder:
            self._leave("a sub-folder of its own", name)

    def remarks(self) -> Iterator[str]:
        """What is open, a line each."""
        yield "open: shapes, and which axis is the output; norms, branches, their order, placement and epsilon"
        if self._ties:
            yield f"open: when a tie holds; it is bound to {_TIE}, which the file does not name"
        for what, count in self._left.items():
            many = "1 tensor or module" if count == 1 else f"{count} tensors or modules"
            yield f"left out of {many}: {what} (first: {self._first[what]})"

    def _leave(self, what: str, where: str) -> None:
        self._left[what] += 1
        self._first.setdefault(what, where)

    def _specs(self, weights: Iterable[Weight], prefix: str, layers: str) -> list[TensorSpec]:
        """Tensors as modules where a weight and its bias go together, else by their whole keys."""
        named = {key: w for w in weights if (key := self._key(prefix + w.name, layers)) is not None}
        for key, weight in named.items():
            self._noted(key, weight)
        found: list[TensorSpec] = []
        for key, weight in named.items():
            module = key.removesuffix(".weight")
            bias = named.get(f"{module}.bias") if module != key else None
            if key.endswith(".bias") and _together(named.get(key.removesuffix("bias") + "weight"), weight):
                continue
            found.append(self._spec(key, weight, prefix, layers, has_bias=_together(weight, bias)))
        self.named += len(named)
        return found

    def _spec(self, key: str, weight: Weight, prefix: str, layers: str, *, has_bias: bool) -> TensorSpec:
        module = key.removesuffix(".weight")
        tied = self._twin(weight, prefix, layers)
        where: dict[str, Any] = {"module": module, "bias": has_bias} if module != key else {"key": key}
        if tied is not None:
            self._ties += 1
            where |= {"tied_to": tied, "tie": Bound(config=_TIE)}
        return TensorSpec(
            role=module if module != key else f"{key} (key)", shape=None, optional=weight.optional, **where
        )

    def _twin(self, weight: Weight, prefix: str, layers: str) -> str | None:
        """The first tensor of the file that this one may share the storage of."""
        names = [prefix + name for name in weight.tied_names or ()]
        known = [name for name in names if name in self._known]
        for name in names:
            if name not in self._known:
                self._leave("a tie to a tensor that the file does not have", name)
        if len(known) > 1:
            self._leave("ties beyond the first", prefix + weight.name)
        return self._key(known[0], layers) if known else None

    def _noted(self, key: str, weight: Weight) -> None:
        if weight.aliases:
            self._leave("other names that it may have", key)
        if weight.force_dtype is not None:
            self._leave("the dtype that it must have", key)
        if weight.vocabulary_axis is not None:
            self._leave("which axis counts tokens", key)

    def _key(self, name: str, layers: str) -> str | None:
        """A name as a template of ours; None where it has none."""
        try:
            text = _PLACEHOLDER.sub(lambda m: self._symbol(m, layers), name)
        except KeyError:
            text = ""
        if not 0 < len(text) <= 390 or "$" in text or not re.fullmatch(r"([^{}]|\{[a-z_][a-z0-9_]*\})+", text):
            self._leave("a name that is no template of ours", name)
            return None
        return text

    def _symbol(self, found: re.Match[str], layers: str) -> str:
        """`${layer_index}` as the axis, `${num_layers}` as a dimension. Raises KeyError."""
        name, sign = found[1], found[2]
        if name == "layer_index" and sign is None:
            return "{l}"
        if name != "num_layers":
            raise KeyError(name)
        if sign is None:
            return f"{{{layers}}}"
        symbol = f"{layers}_{'more' if sign == '+' else 'less'}"
        self.dims[symbol] = Bound(expr=f"{layers} {sign} 1")
        return f"{{{symbol}}}"


def _together(weight: Weight | None, bias: Weight | None) -> bool:
    """Whether a weight has this bias, there wherever it is."""
    return weight is not None and bias is not None and weight.optional == bias.optional and not bias.tied_names


def _identifier(name: str) -> str:
    text = re.sub(r"[^A-Za-z0-9_.-]", "_", name)[:100]
    return text if text[:1].isalnum() else "unknown"
