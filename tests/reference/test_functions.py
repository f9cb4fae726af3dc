"""The parts of the full reference by themselves: against definitions, and against transformers at real sizes."""

from __future__ import annotations

import math
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from blockaudit.reference.activations import ACTIVATIONS  # noqa: E402
from blockaudit.reference.attention import attend, visible  # noqa: E402
from blockaudit.reference.feed_forward import route, unfused  # noqa: E402
from blockaudit.reference.positions import (  # noqa: E402
    alibi_slopes,
    distance_buckets,
    position_rows,
    rotary_frequencies,
    rotate,
)
from blockaudit.reference.spec import InputsSpec, RotarySpec, RoutingSpec  # noqa: E402

LENGTHS = (7, 3000)


def _random(*shape: int, seed: int = 0) -> Any:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_attention_by_its_definition() -> None:
    q, k, v = _random(1, 4, 3, 5), _random(1, 2, 3, 5, seed=1), _random(1, 2, 3, 6, seed=2)
    seen = visible(torch.ones(1, 3, dtype=torch.bool), 3, causal=True, window=None)
    y = attend(q, k, v, 0.7, seen, softcap=2.0)
    for head in range(4):
        for row in range(3):
            scores = [2 * math.tanh(0.7 * float(q[0, head, row] @ k[0, head // 2, key]) / 2) for key in range(row + 1)]
            weights = torch.tensor([math.exp(s) for s in scores], dtype=torch.float64)
            expected = (weights / weights.sum()) @ v[0, head // 2, : row + 1]
            assert torch.allclose(y[0, head, row], expected, atol=1e-12)


def test_a_sink_takes_its_part_and_gives_nothing() -> None:
    q, k, v = _random(1, 2, 3, 4), _random(1, 2, 3, 4, seed=1), _random(1, 2, 3, 4, seed=2)
    seen = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    sinks = torch.tensor([0.3, -torch.inf], dtype=torch.float64)
    plain, sunk = attend(q, k, v, 0.5, seen), attend(q, k, v, 0.5, seen, sinks=sinks)
    mass = (0.5 * q @ k.transpose(-1, -2)).exp().sum(-1, keepdim=True)
    assert torch.allclose(sunk[:, 0], (plain * mass / (mass + math.exp(0.3)))[:, 0])
    assert torch.allclose(sunk[:, 1], plain[:, 1])


def test_what_a_query_sees() -> None:
    valid = torch.tensor([[0, 1, 1, 1]], dtype=torch.bool)
    assert visible(valid, 4, causal=True, window=2)[0, 0].int().tolist() == [
        [0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1],
    ]  # fmt: skip
    assert visible(valid, 2, causal=False, window=None)[0, 0].int().tolist() == [[0, 1, 1, 1], [0, 1, 1, 1]]


def test_a_row_that_sees_nothing_stays_finite() -> None:
    q = _random(1, 1, 2, 4).requires_grad_()
    y = attend(q, q, q, 1.0, torch.zeros(1, 1, 2, 2, dtype=torch.bool))
    y.sum().backward()
    assert y.isfinite().all()
    assert q.grad.isfinite().all()


@pytest.mark.parametrize("name", sorted(ACTIVATIONS))
def test_an_activation_is_the_one_of_that_name(name: str) -> None:
    from transformers.activations import ACT2FN

    x = torch.linspace(-6, 6, 1001, dtype=torch.float64)
    assert torch.allclose(ACTIVATIONS[name](x), ACT2FN[name](x), atol=1e-6)


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 71, 112])
def test_alibi_slopes(heads: int) -> None:
    from transformers.models.bloom.modeling_bloom import (
        _get_alibi_slopes,  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue, reportUnknownVariableType]
    )

    assert torch.allclose(alibi_slopes(heads).float(), _get_alibi_slopes(heads, torch.device("cpu")), rtol=1e-6)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("buckets", "longest"), [(32, 128), (8, 20), (64, 500)])
def test_distance_buckets(causal: bool, buckets: int, longest: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    bucket: Any = getattr(T5Attention, "_relative_position_bucket")  # noqa: B009
    distance = torch.arange(700)[None, :] - torch.arange(700)[:, None]
    theirs = bucket(distance, bidirectional=not causal, num_buckets=buckets, max_distance=longest)
    assert torch.equal(distance_buckets(700, 700, buckets, longest, causal), theirs)


PARAMETERS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 3.0},
    "yarn": {"factor": 8.0, "original_max_position_embeddings": 512, "beta_fast": 30.0, "beta_slow": 2.0},
    "longrope": {
        "original_max_position_embeddings": 512,
        "short_factor": [1 + i / 64 for i in range(64)],
        "long_factor": [1 + i / 4 for i in range(64)],
    },
    "llama3": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 512},
}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("kind", sorted(PARAMETERS))
def test_rotary_frequencies_at_real_size(kind: str, length: int) -> None:
    """128 coordinates, a base of 500000 and at most 2048 positions: transformers' own angles, to the last bits."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    given = {"rope_type": kind, "rope_theta": 500000.0, **PARAMETERS[kind]}
    config = LlamaConfig(head_dim=128, max_position_embeddings=2048, rope_parameters=given)
    cos, _ = LlamaRotaryEmbedding(config)(torch.zeros(1, 1, 1), torch.arange(length)[None])
    listed = {k: tuple(map(float, v)) for k, v in PARAMETERS[kind].items() if isinstance(v, list)}
    named = {k: v for k, v in PARAMETERS[kind].items() if not k.startswith("original")} | listed
    spec = RotarySpec(
        theta=500000.0, dim=128, type=kind, max_length=2048,
        original_length=PARAMETERS[kind].get("original_max_position_embeddings", 2048), **named,
    )  # fmt: skip
    frequencies, factor = rotary_frequencies(spec, length, torch.float32)
    ours = (torch.arange(length).float()[:, None] * frequencies).cos() * factor
    assert torch.allclose(ours, cos[0, :, :64], atol=2e-4 if length > 1000 else 1e-6)


def test_both_pairings_turn_every_pair_by_one_angle() -> None:
    x = _random(1, 1, 5, 10)
    angle = _random(1, 5, 3, seed=1)
    halves = rotate(x, (angle.cos(), angle.sin()), interleaved=False)
    pairs = rotate(x[..., [0, 3, 1, 4, 2, 5, 6, 7, 8, 9]], (angle.cos(), angle.sin()), interleaved=True)
    assert torch.allclose(pairs[..., [0, 2, 4, 1, 3, 5, 6, 7, 8, 9]], halves)
    assert torch.equal(halves[..., 6:], x[..., 6:])
    assert torch.allclose(halves.norm(dim=-1), x.norm(dim=-1))


def test_how_positions_are_counted() -> None:
    ids = torch.tensor([[7, 7, 1, 1], [1, 1, 7, 7]])
    valid = torch.tensor([[1, 1, 0, 0], [0, 0, 1, 1]], dtype=torch.bool)
    assert position_rows(InputsSpec("index", 2), ids, valid).tolist() == [[2, 3, 4, 5], [2, 3, 4, 5]]
    assert position_rows(InputsSpec("mask", 2), ids, valid).tolist() == [[2, 3, 1, 1], [1, 1, 2, 3]]
    assert position_rows(InputsSpec("tokens", 2, 1), ids, valid).tolist() == [[2, 3, 1, 1], [1, 1, 2, 3]]


def test_routing_by_softmax() -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0]])
    weights, chosen = route(RoutingSpec(2, "softmax", False, None, None, 1.0, False), logits)
    assert chosen.tolist() == [[1, 2]]
    assert torch.allclose(weights, logits.softmax(-1)[:, [1, 2]])
    weights, _ = route(RoutingSpec(2, "softmax", True, None, None, 1.0, False), logits)
    assert torch.allclose(weights, logits[:, [1, 2]].softmax(-1))


def test_a_correction_chooses_and_does_not_weigh() -> None:
    logits, correction = torch.tensor([[1.0, 0.9, -2.0, -3.0]]), torch.tensor([0.0, 0.0, 5.0, 5.0])
    spec = RoutingSpec(2, "sigmoid", False, 2, 1, 2.5, True)
    weights, chosen = route(spec, logits, correction)
    assert chosen.tolist() == [[2, 3]]
    assert torch.allclose(weights, 2.5 * torch.sigmoid(logits[:, [2, 3]]))
    assert route(spec, logits)[1].tolist() == [[0, 1]]


def test_fused_gates() -> None:
    y = torch.arange(6.0)
    assert [t.tolist() for t in unfused("gate_up", y)] == [[0, 1, 2], [3, 4, 5]]
    assert [t.tolist() for t in unfused("up_gate", y)] == [[3, 4, 5], [0, 1, 2]]
    assert [t.tolist() for t in unfused("interleaved", y)] == [[0, 2, 4], [1, 3, 5]]
