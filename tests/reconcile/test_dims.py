"""Dimensions solved from shapes."""

from __future__ import annotations

import pytest

from blockaudit.reconcile.dims import solve


@pytest.mark.parametrize(
    ("text", "size", "env", "value"),
    [
        ("n_kv * d_head", 8, {"d_head": 4}, 2),
        ("n_kv * d_head", 9, {"d_head": 4}, None),
        ("2 * n_kv + 1", 7, {}, 3),
        ("d_model", 8, {"n_kv": 1}, None),
        # A factor of config.json that no whole number can make up for: not an answer, and not an error.
        ("n_kv * d_head", 8, {"d_head": 5e-324}, None),
        ("n_kv * d_head", 8, {"d_head": float("inf")}, None),
        ("n_kv * d_head", 8, {"d_head": float("nan")}, None),
    ],
)
def test_the_number_that_makes_an_expression_a_size(
    text: str, size: int, env: dict[str, float], value: int | None
) -> None:
    assert solve(text, "n_kv", size, env) == value
