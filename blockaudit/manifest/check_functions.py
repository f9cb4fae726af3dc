"""What branches, embeddings and heads compute, held against the tensors that are there for it."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.manifest.view import View
from blockaudit.records.functions import Attention, FeedForward, Rotary
from blockaudit.records.manifest import Branch, Manifest, Stack


def functions(manifest: Manifest) -> Iterator[str]:
    """Findings on `attention`, `feed_forward`, `inputs`, `layer_axis` and `head`."""
    view = View(manifest)
    for stack in manifest.stacks:
        yield from (f"{stack.name}.{said}" for said in _inputs(stack, manifest))
        for branch in stack.branches:
            yield from (f"{stack.name}.{branch.name}.{said}" for said in _branch(branch, stack, view))
    dense = any(t.role == "head.dense" for part in manifest.parts.values() for t in part)
    if manifest.head is not None and not dense:
        yield "head: no part has a tensor head.dense"


def _inputs(stack: Stack, manifest: Manifest) -> Iterator[str]:
    if stack.layer_axis is not None and stack.layer_axis not in manifest.axes:
        yield f"layer_axis: {stack.layer_axis} is not in axes"
    roles = {t.role for t in stack.embedding}
    if stack.inputs is not None and stack.inputs.positions == "tokens" and stack.inputs.padding_id is None:
        yield "inputs.padding_id: positions count what is not the padding, and nothing says what that is"
    if stack.inputs is not None and stack.inputs.projected == "normalised" and "project_in" not in roles:
        yield "inputs.projected: the embedding has no tensor project_in"


def _branch(branch: Branch, stack: Stack, view: View) -> Iterator[str]:
    attends = "attention" in branch.kind
    if branch.attention is not None and not attends:
        yield f"attention: the branch is {branch.kind}"
    elif branch.attention is not None:
        yield from _attention(branch.attention, {t.role for t in branch.tensors}, stack, view)
    if branch.feed_forward is not None and attends:
        yield f"feed_forward: the branch is {branch.kind}"
    elif branch.feed_forward is not None:
        yield from _feed_forward(branch.feed_forward, {t.role for t in branch.tensors})


def _attention(spec: Attention, roles: set[str], stack: Stack, view: View) -> Iterator[str]:
    if "qkv" in roles and spec.fused is None:
        yield "attention.fused: there is a tensor qkv, and its layout is not given"
    if spec.fused is not None and roles and "qkv" not in roles:
        yield "attention.fused: there is no tensor qkv"
    if spec.window is None and (spec.window_when is not None or spec.window_rotary is not None):
        yield "attention.window: not given, and window_when or window_rotary is"
    if spec.relative is not None and not any(t.role == "relative_bias" for t in stack.tensors):
        yield "attention.relative: the stack has no tensor relative_bias"
    if spec.latent is not None and roles and not roles >= {"kv_a", "kv_b"}:
        yield "attention.latent: there are no tensors kv_a and kv_b"
    heads, shared = view.value(spec.heads), view.value(spec.kv_heads)
    if isinstance(heads, int) and isinstance(shared, int) and (shared < 1 or heads % shared):
        yield f"attention.kv_heads: {heads} heads cannot share {shared}, with the defaults"
    for name, rotary in (("rotary", spec.rotary), ("window_rotary", spec.window_rotary)):
        if rotary is not None:
            yield from _rotary(f"attention.{name}", rotary, view.value(spec.head_dim), view)


def _rotary(place: str, rotary: Rotary, head_dim: object, view: View) -> Iterator[str]:
    dim = view.value(rotary.dim)
    if isinstance(dim, int | float) and isinstance(head_dim, int) and (dim % 2 or not 0 < dim <= head_dim):
        yield f"{place}.dim: {dim:g} of {head_dim} coordinates, with the defaults; an even number turns"


def _feed_forward(spec: FeedForward, roles: set[str]) -> Iterator[str]:
    if roles & {"gate_up", "expert.gate_up"} and spec.fused is None:
        yield "feed_forward.fused: there is a tensor gate_up, and its layout is not given"
    if spec.routing is not None and roles and "router" not in roles:
        yield "feed_forward.routing: there is no tensor router"
    if spec.routing is None and "router" in roles:
        yield "feed_forward.routing: there is a tensor router, and nothing says how it chooses"
