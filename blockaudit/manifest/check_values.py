"""Values of a block manifest: every expression parses, reads symbols that exist, and has a value by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from msgspec import UNSET

from blockaudit.manifest import grammar
from blockaudit.manifest.values import Resolver
from blockaudit.manifest.view import sites
from blockaudit.records.manifest import (
    Bound,
    Branch,
    Dropout,
    Manifest,
    Norm,
    Residual,
    Scale,
    Stack,
    Struct,
    Subset,
    TensorSpec,
)

Place = tuple[str, Any]


def values(manifest: Manifest) -> Iterator[str]:
    """Findings on every value and condition of the manifest."""
    symbols = set(manifest.dims)
    for place, value in _values(manifest):
        yield from _value(place, value, symbols)
    for place, text in _expressions(manifest):
        yield from _expression(place, text, symbols | {"l"} if place.endswith(("when", "layer_kinds")) else symbols)
    yield from _circles(manifest)
    yield from _defaults(manifest)


def _values(manifest: Manifest) -> Iterator[Place]:
    """Everything that may be bound, with its place."""
    yield from ((f"dims.{name}", value) for name, value in manifest.dims.items())
    yield from _of_norm("norm", manifest.norm)
    yield from _of_residual("residual", manifest.residual)
    for owner, dropout in manifest.dropout.items():
        yield from _of_dropout(f"dropout.{owner}", dropout)
    if isinstance(manifest.final_norm, Norm):
        yield from _of_norm("final_norm", manifest.final_norm)
    for name, _, norm in sites(manifest):
        yield from _of_norm(name, norm)
    for stack in manifest.stacks:
        yield from _of_stack(stack)
    for place, spec in tensor_specs(manifest):
        yield f"{place}.bias", spec.bias
        yield f"{place}.tie", spec.tie
        yield f"{place}.when", spec.when
    if manifest.head is not None:
        yield from _of_function("head", manifest.head)


def tensor_specs(manifest: Manifest) -> Iterator[tuple[str, TensorSpec]]:
    """Every tensor, with its place."""
    for stack in manifest.stacks:
        for branch in stack.branches:
            yield from ((f"{stack.name}.{branch.name}.{t.role}", t) for t in branch.tensors)
        yield from ((f"{stack.name}.embedding.{t.role}", t) for t in stack.embedding)
        yield from ((f"{stack.name}.layer.{t.role}", t) for t in stack.tensors)
    for part, specs in manifest.parts.items():
        yield from ((f"parts.{part}.{t.role}", t) for t in specs)
    yield from ((f"buffers.{t.role}", t) for t in manifest.buffers)


def _of_stack(stack: Stack) -> Iterator[Place]:
    yield f"{stack.name}.parallel", stack.parallel
    yield f"{stack.name}.embedding_scale", stack.embedding_scale
    yield f"{stack.name}.logit_scale", stack.logit_scale
    yield f"{stack.name}.logit_softcap", stack.logit_softcap
    yield from _of_count(f"{stack.name}.layers", stack.layers)
    yield from _of_count(f"{stack.name}.first_layer", stack.first_layer)
    yield from _of_count(f"{stack.name}.stored_layers", stack.stored_layers)
    if stack.residual is not UNSET:
        yield from _of_residual(f"{stack.name}.residual", stack.residual)
    if stack.inputs is not None:
        yield from _of_function(f"{stack.name}.inputs", stack.inputs)
    for branch in stack.branches:
        yield from _of_branch(f"{stack.name}.{branch.name}", branch)


def _of_count(place: str, value: Any) -> Iterator[Place]:
    """A text for a count is an expression."""
    yield place, Bound(expr=value) if isinstance(value, str) else value


def _of_branch(place: str, branch: Branch) -> Iterator[Place]:
    yield f"{place}.reads", branch.reads
    yield f"{place}.softcap", branch.softcap
    yield f"{place}.when", branch.when
    for function in (branch.attention, branch.feed_forward):
        if function is not None:
            yield from _of_function(place, function)


def _of_function(place: str, function: Struct) -> Iterator[Place]:
    """Every value of what a branch, an embedding or a head computes, the parts of parts too."""
    for name in function.__struct_fields__:
        value = getattr(function, name)
        if isinstance(value, Struct) and not isinstance(value, Bound):
            yield from _of_function(f"{place}.{name}", value)
        else:
            yield f"{place}.{name}", value


def _of_norm(place: str, norm: Norm) -> Iterator[Place]:
    yield f"{place}.family", norm.family
    yield f"{place}.placement", norm.placement
    yield f"{place}.epsilon", norm.epsilon
    yield f"{place}.scale", norm.scale
    yield f"{place}.scale_offset", norm.scale_offset
    yield f"{place}.bias", norm.bias
    yield f"{place}.work_dtype", norm.work_dtype
    yield f"{place}.groups", norm.groups
    yield f"{place}.when", norm.when
    if isinstance(norm.subset, Subset):
        yield f"{place}.subset.size", norm.subset.size


def _of_residual(place: str, residual: Residual) -> Iterator[Place]:
    yield f"{place}.shortcut_source", residual.shortcut_source
    yield f"{place}.dtype", residual.dtype
    for name, scale in scales(residual):
        yield f"{place}.{name}", scale.value if isinstance(scale, Scale) else scale
        if isinstance(scale, Scale):
            yield f"{place}.{name}.init", scale.init


def scales(residual: Residual) -> Iterator[Place]:
    """The four factors of a residual equation."""
    yield "shortcut_scale", residual.shortcut_scale
    yield "attention_branch_scale", residual.attention_branch_scale
    yield "cross_attention_branch_scale", residual.cross_attention_branch_scale
    yield "mlp_branch_scale", residual.mlp_branch_scale


def _of_dropout(place: str, dropout: Dropout) -> Iterator[Place]:
    yield f"{place}.p", dropout.p


def _expressions(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Texts that are expressions, with their place."""
    yield from ((f"axes.{name}", text) for name, text in manifest.axes.items())
    for place, value in _values(manifest):
        if place.endswith("when") and isinstance(value, str):
            yield place, value
    for stack in manifest.stacks:
        yield from ((f"{stack.name}.layer_kinds", text) for text in stack.layer_kinds.values())
    for place, _, norm in sites(manifest):
        yield from ((f"{place}.shape", text) for text in norm.shape or ())
    for place, spec in tensor_specs(manifest):
        yield from ((f"{place}.shape", text) for text in spec.shape or ())


def _value(place: str, value: Any, symbols: set[str]) -> Iterator[str]:
    if not isinstance(value, Bound):
        return
    forms = [n for n, given in (("config", value.config), ("expr", value.expr), ("if", value.if_)) if given is not None]
    if len(forms) != 1:
        yield f"{place}: exactly one of config, expr, if; found {' and '.join(forms) or 'none'}"
    if value.config is not None and not value.config:
        yield f"{place}: config names no key"
    for text in (value.expr, value.if_):
        if text is not None:
            yield from _expression(place, text, symbols)
    for inner in (value.default, value.then, value.else_):
        yield from _value(place, inner, symbols)
    if isinstance(value.pinned, Bound):
        yield f"{place}: pinned is a value, and no way to find one"


def _expression(place: str, text: str, symbols: set[str]) -> Iterator[str]:
    try:
        unknown = [name for name in grammar.symbols(text) if name not in symbols]
    except grammar.ExpressionError as error:
        yield f"{place}: {error}"
        return
    yield from (f"{place}: {text!r} reads {name!r}, which dims does not have" for name in unknown)


def _circles(manifest: Manifest) -> Iterator[str]:
    """Dims that are computed from themselves."""
    reads = {name: set(_symbols(value)) for name, value in manifest.dims.items()}
    for name in reads:
        seen, ahead = set[str](), list(reads[name])
        while ahead:
            here = ahead.pop()
            if here not in seen:
                seen.add(here)
                ahead += reads.get(here, ())
        if name in seen:
            yield f"dims.{name}: is computed from itself"


def _symbols(value: Any) -> Iterator[str]:
    """Symbols that a value reads, wherever in it."""
    if not isinstance(value, Bound):
        return
    for text in (value.expr, value.if_):
        if text is not None:
            yield from _parsed(text)
    for inner in (value.default, value.then, value.else_):
        yield from _symbols(inner)


def _parsed(text: str) -> tuple[str, ...]:
    try:
        return grammar.symbols(text)
    except grammar.ExpressionError:
        return ()  # said where it stands


def _defaults(manifest: Manifest) -> Iterator[str]:
    """Expressions that have no value although everything they read has one."""
    resolver = Resolver(manifest.dims, {}, pins=False)
    bound = [(place, v.expr or v.if_) for place, v in _values(manifest) if isinstance(v, Bound)]
    for place, text in (*bound, *_expressions(manifest)):
        if text is None or not set(_parsed(text)) <= set(manifest.dims):
            continue
        env = {name: _default(resolver, name) for name in _parsed(text)}
        try:
            grammar.evaluate(text, env)
        except grammar.ExpressionError as error:
            if all(v is not None for v in env.values()):
                yield f"{place}: {error}, with the defaults"


def _default(resolver: Resolver, name: str) -> Any:
    try:
        return resolver.dim(name).value
    except grammar.ExpressionError:
        return None
