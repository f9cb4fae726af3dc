"""T5 1.1 as T5X stores it: names of its Flax modules, flattened with dots; kernels are [in, out].

Names and equations: google-research/t5x @ 247d329, t5x/examples/t5/network.py, and @ 03dfc44, layers.py
(MultiHeadDotProductAttention, MlpBlock, RelativePositionBiases, LayerNorm). Scores are not scaled, distances share one
table of biases in all layers (Raffel et al. 2020, section 2.1), and a tied head takes its input over sqrt(d_model).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F

from tests.migrate.library.layouts.equations import rms_norm
from tests.migrate.library.layouts.sizes import Drawn, Sizes

Weights = dict[str, torch.Tensor]
BUCKETS, FARTHEST, EPSILON = 32, 128, 1e-6
_PROJECTIONS = ("query", "key", "value")


def config(sizes: Sizes, *, gated: bool = True, tied: bool = False) -> dict[str, Any]:
    """Fields of T5Config. A head is narrower than d_model / heads, so that no projection is square."""
    return {
        "vocab_size": sizes.vocab, "emb_dim": sizes.d_model, "num_heads": sizes.n_heads, "head_dim": 6,
        "num_encoder_layers": sizes.n_layers, "num_decoder_layers": sizes.n_layers + 1, "mlp_dim": sizes.d_ff,
        "mlp_activations": ["gelu", "linear"] if gated else ["relu"], "dropout_rate": 0.0,
        "logits_via_embedding": tied,
    }  # fmt: skip


def _branches(stack: str) -> dict[str, str]:
    """Branch -> the norm before it."""
    if stack == "encoder":
        return {"attention": "pre_attention_layer_norm", "mlp": "pre_mlp_layer_norm"}
    return {
        "self_attention": "pre_self_attention_layer_norm",
        "encoder_decoder_attention": "pre_cross_attention_layer_norm",
        "mlp": "pre_mlp_layer_norm",
    }


def _wide(given: dict[str, Any]) -> tuple[str, ...]:
    return ("wi",) if len(given["mlp_activations"]) == 1 else ("wi_0", "wi_1")


def weights(given: dict[str, Any], seed: int) -> Weights:
    """Weights of a model of this config."""
    draw, d, inner = Drawn(seed), given["emb_dim"], given["num_heads"] * given["head_dim"]
    found: Weights = {"token_embedder.embedding": draw.matrix(given["vocab_size"], d)}

    def kernel(name: str, into: int, out: int) -> None:
        found[f"{name}.kernel"] = draw.matrix(out, into).T.contiguous()

    for stack in ("encoder", "decoder"):
        found[f"{stack}.relpos_bias.rel_embedding"] = draw.matrix(given["num_heads"], BUCKETS)
        for n in range(given[f"num_{stack}_layers"]):
            at = f"{stack}.layers_{n}."
            for branch, norm in _branches(stack).items():
                found[f"{at}{norm}.scale"] = draw.gain(d)
                if branch == "mlp":
                    for name in _wide(given):
                        kernel(f"{at}mlp.{name}", d, given["mlp_dim"])
                    kernel(f"{at}mlp.wo", given["mlp_dim"], d)
                    continue
                for name in _PROJECTIONS:
                    kernel(f"{at}{branch}.{name}", d, inner)
                kernel(f"{at}{branch}.out", inner, d)
        found[f"{stack}.{stack}_norm.scale"] = draw.gain(d)
    if not given["logits_via_embedding"]:
        kernel("decoder.logits_dense", d, given["vocab_size"])
    return found


def _buckets(tokens: int, *, both: bool) -> torch.Tensor:
    """[tokens, tokens]: the bucket of each distance, half of them exact, the rest growing with its logarithm."""
    distance = torch.arange(tokens)[:, None] - torch.arange(tokens)[None, :]
    count = BUCKETS // 2 if both else BUCKETS
    first = (distance < 0).long() * count if both else torch.zeros_like(distance)
    far = distance.abs() if both else distance.clamp(min=0)
    exact = count // 2
    grown = exact + (torch.log(far.clamp(min=1) / exact) / math.log(FARTHEST / exact) * (count - exact)).long()
    return first + torch.where(far < exact, far, grown.clamp(max=count - 1))


def _attended(found: Weights, at: str, x: torch.Tensor, memory: torch.Tensor, bias: torch.Tensor | float,
              count: int) -> torch.Tensor:  # fmt: skip
    q, k, v = (
        (y @ found[f"{at}.{name}.kernel"]).unflatten(-1, (count, -1))
        for y, name in zip((x, memory, memory), _PROJECTIONS, strict=True)
    )
    scores = torch.einsum("bqhr,bkhr->bhqk", q, k) + bias
    return torch.einsum("bhqk,bkhr->bqhr", scores.softmax(-1), v).flatten(2) @ found[f"{at}.out.kernel"]


def _stack(found: Weights, given: dict[str, Any], stack: str, ids: torch.Tensor, memory: Any = None) -> torch.Tensor:
    x, tokens = found["token_embedder.embedding"][ids], ids.shape[1]
    bias = found[f"{stack}.relpos_bias.rel_embedding"][:, _buckets(tokens, both=stack == "encoder")]
    if stack == "decoder":
        bias = bias.masked_fill(torch.ones(tokens, tokens, dtype=torch.bool).triu(1), float("-inf"))
    act = {"gelu": lambda y: F.gelu(y, approximate="tanh"), "relu": F.relu}[given["mlp_activations"][0]]
    for n in range(given[f"num_{stack}_layers"]):
        at = f"{stack}.layers_{n}."
        for branch, norm in _branches(stack).items():
            h = rms_norm(x, found[f"{at}{norm}.scale"], EPSILON)
            if branch == "mlp":
                first, *second = (h @ found[f"{at}mlp.{name}.kernel"] for name in _wide(given))
                h = act(first) * second[0] if second else act(first)
                x = x + h @ found[f"{at}mlp.wo.kernel"]
                continue
            crossed = branch == "encoder_decoder_attention"
            read, added = (memory, 0.0) if crossed else (h, bias)
            x = x + _attended(found, f"{at}{branch}", h, read, added, given["num_heads"])
    return rms_norm(x, found[f"{stack}.{stack}_norm.scale"], EPSILON)


def logits(found: Weights, given: dict[str, Any], ids: torch.Tensor, decoded: torch.Tensor) -> torch.Tensor:
    """[batch, decoded tokens, vocab] of ids [batch, tokens] and ids [batch, decoded tokens], none of them padding."""
    y = _stack(found, given, "decoder", decoded, _stack(found, given, "encoder", ids))
    if given["logits_via_embedding"]:
        return (y / math.sqrt(given["emb_dim"])) @ found["token_embedder.embedding"].T
    return y @ found["decoder.logits_dense.kernel"]
