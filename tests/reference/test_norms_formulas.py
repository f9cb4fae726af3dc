"""Norm formulas: right values of field reports, torch's own operators, gradients, the laws that the papers state."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from blockaudit.records.manifest import NormFamily
from blockaudit.records.norm_spec import NormSpec
from blockaudit.reference import norms
from blockaudit.reference.norms.formulas import FORMULAS

B, S, D = 2, 3, 8
LAYERNORM = NormSpec("layernorm", 1e-5, center=True)
RMSNORM = NormSpec("rmsnorm", 1e-5)
# One spec of each family, with the state that it needs.
EACH: dict[str, tuple[NormSpec, dict[str, torch.Tensor]]] = {
    "layernorm": (replace(LAYERNORM, bias=True), {}),
    "layernorm_std_eps": (NormSpec("layernorm_std_eps", 1e-6, "outside", 1, True, bias=True), {}),
    "rmsnorm": (RMSNORM, {}),
    "prmsnorm": (NormSpec("prmsnorm", 1e-8, subset=3), {}),
    "scalenorm": (NormSpec("scalenorm", 1e-5, scale="scalar"), {}),
    "groupnorm": (NormSpec("groupnorm", 1e-5, center=True, bias=True, groups=2), {}),
    "instancenorm": (NormSpec("instancenorm", 1e-5, center=True, bias=True, axes=(1,)), {}),
    "batchnorm": (NormSpec("batchnorm", 1e-5, center=True, bias=True, axes=(0, 1)), {}),
    "powernorm": (NormSpec("powernorm", 1e-5, bias=True, axes=(0, 1)), {}),
    "qknorm": (NormSpec("qknorm", 1e-6, scale="none"), {}),
    "dyt": (NormSpec("dyt", None, bias=True), {"alpha": torch.tensor([0.5], dtype=torch.float64)}),
    "none": (NormSpec("none", None, bias=True), {}),
}
RUNNING = {"running_mean": torch.linspace(-1, 1, D).double(), "running_var": torch.linspace(0.5, 2, D).double()}
VALID = torch.tensor([[True, True, False], [True, False, False]])
ROW_WISE = ("layernorm", "layernorm_std_eps", "rmsnorm", "prmsnorm", "scalenorm", "groupnorm", "qknorm")


def _rows(seed: int = 0, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape or (B, S, D), generator=generator, dtype=torch.float64) * 2 + 0.3


def _row(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _affine(spec: NormSpec) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    weight = _rows(7, 1 if spec.scale == "scalar" else D) if spec.scale != "none" else None
    return weight, _rows(8, D) if spec.bias else None


def test_every_family_of_the_schema_has_a_formula() -> None:
    assert set(FORMULAS) == set(NormFamily.__args__) == set(EACH)


@pytest.mark.parametrize(
    ("spec", "size", "right"),
    [
        (replace(RMSNORM, epsilon=1e-6), 0.02, 0.99875),
        (replace(RMSNORM, epsilon=1e-5), 0.02, 0.98773),
        (replace(LAYERNORM, epsilon=1e-12), 1e-3, 1.0000),
        (replace(LAYERNORM, epsilon=1e-5), 1e-3, 0.3015),
        (replace(RMSNORM, epsilon=1e-6), 1e-3, 0.7071),
        (replace(RMSNORM, epsilon=1e-6, epsilon_location="outside"), 1e-3, 0.9990),
    ],
)
def test_small_rows_show_epsilon(spec: NormSpec, size: float, right: float) -> None:
    row = _row(*(size, -size) * 4)
    torch.testing.assert_close(norms.apply(spec, row), row.sign() * right, rtol=0, atol=6e-5)


def test_the_tutorial_layernorm_is_another_function() -> None:
    row = _row(1, 0, 0, 0)
    tutorial = NormSpec("layernorm_std_eps", 1e-5, "outside", 1, True)
    assert norms.apply(LAYERNORM, row)[0].item() == pytest.approx(1.7320, abs=6e-5)
    assert norms.apply(tutorial, row)[0].item() == pytest.approx(1.5000, abs=6e-5)
    assert norms.apply(replace(tutorial, family="layernorm"), row).equal(norms.apply(tutorial, row))


def test_layernorm_and_rmsnorm_of_one_row() -> None:
    row = _row(3, 1, 1, 1)
    layer, root = norms.apply(LAYERNORM, row), norms.apply(RMSNORM, row)
    torch.testing.assert_close(layer, _row(1.732, -0.577, -0.577, -0.577), rtol=0, atol=6e-4)
    torch.testing.assert_close(root, _row(1.732, 0.577, 0.577, 0.577), rtol=0, atol=6e-4)


@pytest.mark.parametrize(("offset", "weight", "gain"), [(1, 0.2, 1.2), (0, 0.2, 0.2), (1, 1.2, 2.2)])
def test_the_offset_is_added_to_the_weight(offset: float, weight: float, gain: float) -> None:
    row, spec = _rows(1, D), replace(RMSNORM, scale_offset=offset)
    plain = norms.apply(RMSNORM, row)
    torch.testing.assert_close(norms.apply(spec, row, torch.full_like(row, weight)), plain * gain)


def test_fields_and_not_tensors_decide_on_weight_and_bias() -> None:
    row, weight = _rows(1, D), _rows(2, D)
    assert norms.apply(replace(RMSNORM, scale="none"), row, weight, weight).equal(norms.apply(RMSNORM, row))


def test_torch_gives_the_same() -> None:
    f, x, w, b = torch.nn.functional, _rows(), _rows(7, D), _rows(8, D)
    swapped = x.transpose(1, 2)
    same = {
        "layernorm": f.layer_norm(x, (D,), w, b, 1e-5),
        "rmsnorm": f.rms_norm(x, (D,), w, 1e-5),
        "instancenorm": f.instance_norm(swapped, None, None, w, b, eps=1e-5).transpose(1, 2),
        "batchnorm": f.batch_norm(swapped, None, None, w, b, True, eps=1e-5).transpose(1, 2),
        "groupnorm": f.group_norm(x.reshape(-1, D), 2, w, b, 1e-5).reshape(x.shape),
    }
    for family, expected in same.items():
        torch.testing.assert_close(norms.apply(EACH[family][0], x, w, b), expected, rtol=1e-12, atol=1e-12)
    wide = norms.apply(replace(EACH["groupnorm"][0], axes=(1, 2)), x, w, b)
    expected = f.group_norm(swapped, 2, w, b, 1e-5).transpose(1, 2)
    torch.testing.assert_close(wide, expected, rtol=1e-12, atol=1e-12)
    evaluated = f.batch_norm(swapped, RUNNING["running_mean"], RUNNING["running_var"], w, b, False, eps=1e-5)
    ours = norms.apply(EACH["batchnorm"][0], x, w, b, RUNNING)
    torch.testing.assert_close(ours, evaluated.transpose(1, 2), rtol=1e-12, atol=1e-12)
    unit = f.normalize(x, dim=-1)
    torch.testing.assert_close(norms.apply(NormSpec("scalenorm", 0.0, scale="scalar"), x), unit)
    torch.testing.assert_close(norms.apply(NormSpec("qknorm", 0.0, scale="none"), x), unit)


def test_heads_have_their_own_weights() -> None:
    x, w = _rows(0, B, S, 2, D), _rows(1, 2, D)
    both = norms.apply(replace(LAYERNORM, scale="per_head"), x, w)
    for h in range(2):
        assert both[:, :, h].equal(norms.apply(LAYERNORM, x[:, :, h], w[h]))


def test_several_axes_are_one_row() -> None:
    x = _rows(0, B, 4, D)
    flat = norms.apply(RMSNORM, x.reshape(B, -1)).reshape(x.shape)
    torch.testing.assert_close(norms.apply(replace(RMSNORM, axes=(-2, -1)), x), flat)


def test_a_part_of_the_row_is_read() -> None:
    x = _rows()
    by_count = norms.apply(EACH["prmsnorm"][0], x)
    assert by_count.equal(norms.apply(NormSpec("prmsnorm", 1e-8, subset=(0, 1, 2)), x))
    torch.testing.assert_close(by_count, x / (x[..., :3].pow(2).mean(-1, keepdim=True) + 1e-8).sqrt())
    full = norms.apply(NormSpec("prmsnorm", 1e-5, subset=D), x)
    assert full.equal(norms.apply(RMSNORM, x))


def test_powernorm_knows_training_and_evaluation() -> None:
    x, spec = _rows(), EACH["powernorm"][0]
    phi = x.pow(2).mean((0, 1))
    torch.testing.assert_close(norms.apply(spec, x), norms.apply(spec, x, state={"running_phi": phi}))
    torch.testing.assert_close(norms.apply(spec, x, state={"running_phi": 4 * phi}), x / (4 * phi + 1e-5).sqrt())


@pytest.mark.parametrize("family", ["instancenorm", "batchnorm", "powernorm"])
def test_padding_stays_out_of_the_statistics(family: str) -> None:
    spec, x = EACH[family][0], _rows()
    filled = torch.where(VALID[..., None], x, 1e6)
    first, second = (norms.apply(spec, v, state={"valid": VALID})[VALID] for v in (x, filled))
    assert first.equal(second)
    every = norms.apply(spec, x, state={"valid": torch.ones(B, S, dtype=torch.bool)})
    torch.testing.assert_close(every, norms.apply(spec, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("family", sorted(EACH))
def test_dtype_and_shape_are_the_state_s(family: str, dtype: torch.dtype) -> None:
    spec, state = EACH[family]
    y = norms.apply(spec, _rows().to(dtype), *_affine(spec), state)
    assert y.dtype == dtype
    assert y.shape == (B, S, D)
    exact = norms.apply(spec, _rows().to(dtype).double(), *_affine(spec), state)
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)


KEPT = {"running": RUNNING, "padded": {"valid": VALID}}


@pytest.mark.parametrize(
    ("family", "kept"), [(f, "") for f in sorted(EACH)] + [(f, k) for f in ("batchnorm", "instancenorm") for k in KEPT]
)
def test_gradients_are_finite_differences(family: str, kept: str) -> None:
    spec, state = EACH[family]
    weight, bias = _affine(spec)
    given = [t.requires_grad_() for t in (_rows(3), weight, bias) if t is not None]

    def run(*values: torch.Tensor) -> torch.Tensor:
        left = iter(values[1:])
        w, b = (next(left) if t is not None else None for t in (weight, bias))
        return norms.apply(spec, values[0], w, b, {**state, **KEPT.get(kept, {})})

    assert torch.autograd.gradcheck(run, given)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (NormSpec("groupnorm", 1e-5, groups=3), "groups: expected a divisor of 8 channels, found 3"),
        (NormSpec("groupnorm", 1e-5), "found None"),
        (NormSpec("groupnorm", 1e-5, groups=2, axes=(1,)), "reduction_axes"),
        (NormSpec("prmsnorm", 1e-5), "subset"),
        (NormSpec("prmsnorm", 1e-5, subset=9), "subset: expected coordinates of a row of 8, found 9"),
        (NormSpec("prmsnorm", 1e-5, subset=(0, 8)), "subset"),
        (NormSpec("batchnorm", 1e-5), "reduction_axes: batchnorm has one statistic per channel"),
        (NormSpec("powernorm", 1e-5, axes=(2,)), "reduction_axes"),
        (NormSpec("dyt"), "alpha"),
        (NormSpec("cosinenorm"), "family: expected one of layernorm"),
    ],
)
def test_what_a_declaration_lacks_is_said(spec: NormSpec, said: str) -> None:
    with pytest.raises(norms.NormError, match=said):
        norms.apply(spec, _rows())


SEEDS = st.integers(0, 2**31)
GAINS = st.floats(1e-3, 1e3)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(ROW_WISE), SEEDS, GAINS)
def test_scale_is_lost_without_epsilon(family: str, seed: int, gain: float) -> None:
    spec = replace(EACH[family][0], epsilon=0.0)
    x = _rows(seed)
    torch.testing.assert_close(norms.apply(spec, gain * x), norms.apply(spec, x), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(norms.apply(spec, -gain * x), -norms.apply(spec, x), rtol=1e-9, atol=1e-9)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["layernorm", "layernorm_std_eps", "groupnorm", "instancenorm", "batchnorm"]), SEEDS, GAINS)
def test_shift_is_lost_where_the_mean_is_taken_off(family: str, seed: int, shift: float) -> None:
    spec, x = EACH[family][0], _rows(seed)
    torch.testing.assert_close(norms.apply(spec, x + shift), norms.apply(spec, x), rtol=1e-8, atol=1e-8)


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(["rmsnorm", "prmsnorm", "scalenorm", "powernorm", "qknorm", "dyt", "none"]), SEEDS)
def test_shift_stays_where_it_is_not(family: str, seed: int) -> None:
    spec, state = EACH[family]
    x = _rows(seed)
    assert not torch.allclose(norms.apply(spec, x + 1, state=state), norms.apply(spec, x, state=state), atol=1e-3)


@settings(deadline=None, max_examples=40)
@given(SEEDS)
def test_the_normalised_row_has_the_declared_moment(seed: int) -> None:
    x = _rows(seed)
    layer = norms.apply(replace(LAYERNORM, epsilon=0.0), x)
    root = norms.apply(replace(RMSNORM, epsilon=0.0), x)
    one = torch.ones(B, S, dtype=torch.float64)
    torch.testing.assert_close(layer.mean(-1), one * 0, rtol=0, atol=1e-12)
    torch.testing.assert_close(layer.pow(2).mean(-1), one)
    torch.testing.assert_close(root.pow(2).mean(-1), one)
    centred = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(norms.apply(RMSNORM, centred), norms.apply(LAYERNORM, x))


@pytest.mark.parametrize("family", sorted(EACH))
@pytest.mark.parametrize("value", [0.0, 1e-30, 7.0])
def test_a_constant_row_is_finite(family: str, value: float) -> None:
    spec, state = EACH[family]
    x = torch.full((B, S, D), value, dtype=torch.float64)
    weight, bias = _affine(spec)
    y = norms.apply(spec, x, weight, bias, state)
    assert y.isfinite().all()
    if family in ("layernorm", "layernorm_std_eps", "groupnorm", "instancenorm", "batchnorm"):
        assert bias is not None
        torch.testing.assert_close(y, bias.expand_as(y), rtol=0, atol=1e-9)


@pytest.mark.parametrize("center", [True, False])
def test_layernorm_jacobian_is_the_closed_form(center: bool) -> None:
    x = _rows(0, D)
    spec = LAYERNORM if center else RMSNORM
    eye = torch.eye(D, dtype=torch.float64)
    c = eye - 1 / D if center else eye
    z = c @ x
    r = (z.dot(z) / D + 1e-5).sqrt()
    found = torch.autograd.functional.jacobian(lambda v: norms.apply(spec, v), x)
    torch.testing.assert_close(found, c / r - torch.outer(z, z) / (D * r**3), rtol=1e-10, atol=1e-12)
