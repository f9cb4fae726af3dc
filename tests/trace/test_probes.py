from __future__ import annotations

from itertools import combinations

import pytest
import torch
import torch.nn.functional as F

from blockaudit.trace.probes import TINY, rows

KINDS = {"constant", "zero", "tiny", "shifted", "spiky", "mean"}
DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [8, 64, 1000])
def test_every_kind_is_rows_of_the_width(dtype: torch.dtype, width: int) -> None:
    made = rows(width, seed=0, dtype=dtype)
    assert set(made) == KINDS
    for values in made.values():
        assert values.dtype == dtype
        assert values.shape[1:] == (width,)
        assert torch.isfinite(values).all()


def test_a_seed_is_its_rows() -> None:
    one, same, other = (rows(64, seed=s, dtype=torch.bfloat16) for s in (1, 1, 2))
    assert all(torch.equal(one[k], same[k]) for k in KINDS)
    assert not torch.equal(one["tiny"], other["tiny"])


def test_the_kinds_are_what_they_are_called() -> None:
    made = rows(512, seed=3, dtype=torch.float64)
    assert (made["constant"].amax(-1) == made["constant"].amin(-1)).all()
    assert not made["zero"].any()
    assert made["tiny"].square().mean(-1).sqrt().tolist() == pytest.approx(list(TINY))
    shifted, spiky, mean = made["shifted"], made["spiky"], made["mean"]
    assert (shifted.mean(-1).abs() > 5 * shifted.std(-1)).all()
    assert (spiky.abs().amax(-1) > 90 * spiky.abs().median(-1).values).all()
    assert (mean.mean(-1).abs() > 0.4).all()


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("pair", list(combinations([0.0, 1e-12, 1e-8, 1e-6, 1e-5, 1e-3], 2)), ids=str)
def test_no_two_epsilons_look_alike(dtype: torch.dtype, pair: tuple[float, float]) -> None:
    if dtype == torch.float16 and max(pair) < 1e-9:
        pytest.skip("float16 has no rows so small")
    tiny = rows(256, seed=0, dtype=dtype)["tiny"].double()
    one, other = (F.rms_norm(tiny, (256,), eps=e) for e in pair)
    moved = (one - other).norm(dim=-1) / one.norm(dim=-1).clamp_min(1e-30)
    assert moved.max() > 0.25


@pytest.mark.parametrize("dtype", DTYPES[1:], ids=str)
@pytest.mark.parametrize("width", [8, 60, 768, 4096])
def test_the_mean_of_a_constant_row_is_exact_in_any_order(dtype: torch.dtype, width: int) -> None:
    constant = rows(width, seed=0, dtype=dtype)["constant"].float()
    value = constant[:, 0]
    for parts in (1, 2, 4):
        sums = torch.stack([p.sum(-1) for p in constant.chunk(parts, -1)]).sum(0)
        assert torch.equal(sums / width, value)
    assert not F.layer_norm(constant, (width,)).any()
    assert torch.equal(constant.square().mean(-1) - value.square(), torch.zeros_like(value))


def test_a_mean_that_is_not_taken_off_shows() -> None:
    for kind in ("shifted", "mean"):
        values = rows(256, seed=0, dtype=torch.float32)[kind]
        centred, plain = F.layer_norm(values, (256,)), F.rms_norm(values, (256,), eps=1e-5)
        assert ((centred - plain).norm(dim=-1) / centred.norm(dim=-1) > 0.2).all()
