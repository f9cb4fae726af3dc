"""From ids to the first state, and from the last state to the logits."""

from __future__ import annotations

from msgspec.structs import replace
from torch import Tensor

from blockaudit.records.bound import BoundManifest
from blockaudit.reference.activations import ACTIVATIONS
from blockaudit.reference.assembly import spec
from blockaudit.reference.positions import position_rows
from blockaudit.reference.spec import InputsSpec, head_activation
from blockaudit.reference.tensors import Tensors, normed


def embedded(inputs: InputsSpec, tensors: Tensors, scale: float, ids: Tensor, valid: Tensor) -> Tensor:
    """The state before the embedding's norm: scale * tokens, projected where so declared, + positions + first type.

    ids, valid: [B, S]; [B, S, d_model] or, where the projection follows the norm, [B, S, d_embed].
    """
    x = tensors.rows("tokens", ids)
    if tensors.has("project_in") and inputs.projected == "tokens":
        x = tensors.linear("project_in", x)
    if scale != 1:
        x = x * scale
    if tensors.has("types"):
        x = x + tensors.get("types")[0]
    if tensors.has("positions"):
        x = x + tensors.rows("positions", position_rows(inputs, ids, valid))
    return x


def entered(inputs: InputsSpec, tensors: Tensors, x: Tensor) -> Tensor:
    """The state that enters the first layer, from the embedding after its norm (ALBERT projects it there)."""
    projects = tensors.has("project_in") and inputs.projected == "normalised"
    return tensors.linear("project_in", x) if projects else x


def logits(
    bound: BoundManifest, part: Tensors, embedding: Tensors, x: Tensor, scale: float, softcap: float | None
) -> Tensor:
    """[B, S, vocab] from the last state [B, S, d_model], by the class's head `part`, after scale and softcap."""
    if embedding.has("project_out"):
        x = embedding.linear("project_out", x)
    if part.has("head.dense"):
        x = ACTIVATIONS[head_activation(bound)](part.linear("head.dense", x))
        norm = spec(replace(bound, fields=bound.functions), "head.norm")
        x = normed(norm, x, part.get("head.norm"), part.get("head.norm.bias") if part.has("head.norm.bias") else None)
    y = part.linear("lm_head", x)
    if not part.has("lm_head.bias") and part.has("head.bias"):
        y = y + part.get("head.bias")
    y = y * scale if scale != 1 else y
    return y if softcap is None else softcap * (y / softcap).tanh()
