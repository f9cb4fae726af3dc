from __future__ import annotations

import json
import re
import typing
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
import torch.nn.functional as F
from jsonschema import Draft202012Validator
from msgspec.structs import replace
from torch import Tensor

from blockaudit import resources
from blockaudit.errors import RequestError
from blockaudit.records import tolerance as records
from blockaudit.records.conformance import MODES, Difference
from blockaudit.records.norm_spec import NormSpec
from blockaudit.records.tolerance import EPS, SiteTolerance, TolerancePolicy
from blockaudit.reference.norms import apply, variants
from blockaudit.trace.compare import difference
from blockaudit.trace.probes import rows
from blockaudit.trace.tolerance import DEFAULT, completed, described, judge, load, widest

DOCUMENT = Path(__file__).parents[2] / "docs" / "traces.md"
PARTS: list[tuple[str, type[Any]]] = [
    ("", records.TolerancePolicy), ("closeness", records.Closeness), ("mode", records.ModeTolerance),
    ("bits", records.BitTolerance), ("site", records.SiteTolerance),
]  # fmt: skip
MINIMAL = {"schema": "blockaudit/tolerance-policy/1", "name": "mine"}


def _file(tmp_path: Path, document: Any, name: str = "policy.json") -> str:
    path = tmp_path / name
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


# The schema and the records say the same.


def _part(name: str) -> dict[str, Any]:
    whole = resources.schema("tolerance_policy")
    return whole["$defs"][name] if name else whole


@pytest.mark.parametrize(("name", "struct"), PARTS, ids=[n for n, _ in PARTS])
def test_properties_are_the_fields(name: str, struct: type[Any]) -> None:
    part, fields = _part(name), msgspec.structs.fields(struct)
    assert set(part["properties"]) == {f.encode_name for f in fields}
    assert set(part["required"]) == {f.encode_name for f in fields if f.required}
    assert part["additionalProperties"] is False
    assert all(field["description"].endswith(".") for field in part["properties"].values())


def test_the_schema_is_one_and_every_part_is_used() -> None:
    schema = resources.schema("tolerance_policy")
    Draft202012Validator.check_schema(schema)
    used = set(re.findall(r"#/\$defs/(\w+)", json.dumps(schema)))
    assert used == set(schema["$defs"]) == {name for name, _ in PARTS if name}


def test_modes_and_dtypes_are_those_of_the_records() -> None:
    properties = resources.schema("tolerance_policy")["properties"]
    assert tuple(properties["modes"]["properties"]) == MODES
    assert set(properties["dtypes"]["properties"]) == set(typing.get_args(records.FloatDtype)) == set(EPS)
    site = _part("site")["properties"]
    assert tuple(site["modes"]["items"]["enum"]) == MODES
    assert set(site["dtypes"]["items"]["enum"]) == set(EPS)


def test_eps_is_torchs() -> None:
    assert {name: torch.finfo(getattr(torch, name)).eps for name in EPS} == EPS


def test_declared_bounds_are_torchs_own() -> None:
    for name, bound in DEFAULT.dtypes.items():
        ones = torch.ones(1, dtype=getattr(torch, name))
        with pytest.raises(AssertionError) as caught:
            torch.testing.assert_close(ones, ones + 1)
        said = re.findall(r"up to (\S+) allowed", str(caught.value))
        assert [float(s) for s in said] == [bound.atol, bound.rtol]


# Files.


def test_no_file_is_the_default() -> None:
    assert load(None) is DEFAULT
    assert set(DEFAULT.modes) == set(MODES)
    assert all(m.reason for m in DEFAULT.modes.values())


def test_a_minimal_file_is_the_default_by_another_name(tmp_path: Path) -> None:
    assert load(_file(tmp_path, MINIMAL)) == replace(DEFAULT, name="mine")


def test_what_a_file_names_replaces_the_default(tmp_path: Path) -> None:
    text = (
        "schema: blockaudit/tolerance-policy/1\nname: strict\nkind: declared\n"
        "dtypes:\n  bfloat16: {rtol: 1e-2, atol: 0, source: ours}\n"
        "modes:\n  local: {factor: 2, reason: ours}\n"
    )
    policy = load(_file(tmp_path, text, "policy.yaml"))
    assert policy.kind == "declared"
    assert policy.dtypes["bfloat16"].rtol == 1e-2
    assert policy.dtypes["float32"] == DEFAULT.dtypes["float32"]
    assert (policy.modes["local"].factor, policy.modes["local"].max_factor) == (2, None)
    assert policy.modes["layer"] == DEFAULT.modes["layer"]


def test_the_example_of_the_document_is_valid(tmp_path: Path) -> None:
    blocks = re.findall(r"^```json\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    policies = [b for b in blocks if "tolerance-policy" in b]
    assert len(policies) == 1
    assert load(_file(tmp_path, policies[0])).sites


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"dtypes": {"bfloat16": {"rtol": "1", "atol": 0, "source": "x"}}}, "dtypes.bfloat16.rtol: expected a number"),
        ({"dtypes": {"bfloat16": {"rtol": 1e-2, "source": "x"}}}, "dtypes.bfloat16: expected field 'atol'"),
        ({"dtypes": {"bf16": {}}}, "dtypes.bf16: expected one of float64"),
        ({"modes": {"local": {"factor": 0, "reason": "x"}}}, "modes.local.factor: expected exclusiveMinimum 0"),
        ({"modes": {"local": {"factor": 2}}}, "expected field 'reason'"),
        ({"sites": [{"site": "*", "reason": "x", "mode": ["local"]}]}, "sites[0].mode: expected one of"),
        ({"kind": "measure"}, "kind: expected one of measured, declared, found 'measure'; did you mean 'measured'?"),
        ({"schema": "blockaudit/tolerance-policy/2"}, "schema: expected blockaudit/tolerance-policy/1"),
    ],
    ids=str,
)  # fmt: skip
def test_a_fault_is_one_line_with_file_and_field(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    path = _file(tmp_path, MINIMAL | change)
    with pytest.raises(RequestError) as caught:
        load(path)
    message = str(caught.value)
    assert message.startswith(path)
    assert said in message
    assert "\n" not in message


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    for path in (str(tmp_path / "none.json"), str(tmp_path), _file(tmp_path, "{"), _file(tmp_path, "[]")):
        with pytest.raises(RequestError) as caught:
            load(path)
        assert path in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_report_says_which_policy_and_its_hash(tmp_path: Path) -> None:
    mine, default = described(load(_file(tmp_path, MINIMAL))), described(DEFAULT)
    assert (mine["name"], mine["kind"]) == ("mine", "measured")
    assert mine["sha256"] != default["sha256"]
    assert described(completed(TolerancePolicy(schema=DEFAULT.schema, name="default"))) == default


# Judging.

ZERO = Difference(max_abs=0, rms_rel=0, cosine=1, rms=1, scale=3, elements=10_000)
FLOOR = replace(ZERO, max_abs=0.02, rms_rel=2e-3, row_rel=3e-3)


def _judged(
    found: Difference, floor: Difference | None = FLOOR, policy: TolerancePolicy = DEFAULT, **other: Any
) -> Any:
    asked: dict[str, Any] = {"site": "layers.0.mlp.branch", "mode": "local", "dtype": "bfloat16", "is_norm": False}
    return judge(difference=found, floor=floor, policy=policy, **(asked | other))


def test_no_difference_passes() -> None:
    assert _judged(ZERO).passed
    assert _judged(ZERO, None).passed


@pytest.mark.parametrize(
    ("metric", "limit"), [("rms_rel", 4 * 2e-3), ("row_rel", 8 * 3e-3), ("max_abs", 8 * 0.02)]
)  # fmt: skip
def test_each_metric_is_held_to_its_factor_above_the_floor(metric: str, limit: float) -> None:
    below, above = (_judged(replace(ZERO, **{metric: limit * f})) for f in (0.99, 1.01))
    assert below.passed
    assert (above.metric, above.passed) == (metric, False)
    assert above.tolerance == pytest.approx(limit)
    assert above.observed == pytest.approx(limit * 1.01)


def test_a_floor_of_zero_allows_a_rounding_and_no_more() -> None:
    eps = EPS["bfloat16"]
    assert _judged(replace(ZERO, rms_rel=0.29 * eps, row_rel=0.5 * eps, max_abs=0.5 * eps * 3), ZERO).passed
    assert not _judged(replace(ZERO, rms_rel=1.1 * eps), ZERO).passed


def test_the_modes_loosen_and_end_to_end_judges_no_single_token() -> None:
    off = replace(ZERO, rms_rel=5 * FLOOR.rms_rel)
    assert [_judged(off, mode=m).passed for m in MODES] == [False, True, True]
    single = replace(ZERO, row_rel=100 * FLOOR.row_rel, max_abs=100 * FLOOR.max_abs)
    assert [_judged(single, mode=m).passed for m in MODES] == [False, False, True]


def test_what_is_not_finite_fails_whatever_is_allowed() -> None:
    everything = completed(replace(DEFAULT, sites=(SiteTolerance(site="*", reason="", factor=1e9, max_factor=1e9),)))
    held = _judged(replace(ZERO, non_finite=2), policy=everything)
    assert held == ("non_finite", 2.0, 0.0, False)


def test_norms_are_judged_by_bits_too_in_local_mode() -> None:
    found, floor = replace(ZERO, bits=0.01), replace(FLOOR, bits=1e-4)
    held = _judged(found, floor, is_norm=True)
    assert (held.metric, held.passed) == ("bits", False)
    assert _judged(found, floor).passed
    assert _judged(found, floor, is_norm=True, mode="layer").passed
    assert _judged(found, replace(floor, bits=0.02), is_norm=True).passed
    # float32 against float32 differs in half of its bits, and that says nothing.
    assert _judged(replace(ZERO, bits=0.9), is_norm=True, dtype="float32").passed


def test_a_few_elements_are_no_evidence() -> None:
    assert _judged(replace(ZERO, bits=1 / 256, elements=256), is_norm=True).passed
    assert not _judged(replace(ZERO, bits=1 / 256, elements=1 << 20), is_norm=True).passed


def test_declared_bounds_judge_where_nothing_is_measured() -> None:
    found = replace(ZERO, max_abs=0.04)  # 1.6e-2 x 3 + 1e-5
    assert _judged(found, None).passed
    assert not _judged(replace(found, max_abs=0.05), None).passed
    assert _judged(replace(found, max_abs=0.05), None, mode="layer").passed
    declared = replace(DEFAULT, kind="declared")
    assert _judged(replace(ZERO, rms_rel=0.017), policy=declared).metric == "rms_rel"
    assert not _judged(replace(ZERO, rms_rel=0.017), policy=declared).passed
    # Next to zero atol is what is allowed.
    assert _judged(Difference(max_abs=9e-6, rms_rel=1, cosine=0), None).passed


def test_exceptions_are_for_the_sites_modes_and_dtypes_that_they_name() -> None:
    off = replace(ZERO, rms_rel=20 * FLOOR.rms_rel)
    given = SiteTolerance(
        site="layers.*.mlp.*", reason="a router", factor=30, modes=("local",), dtypes=("bfloat16",)
    )  # fmt: skip
    policy = replace(DEFAULT, sites=(given,))
    assert _judged(off, policy=policy).passed
    assert not _judged(off, policy=policy, mode="layer").passed
    assert not _judged(off, policy=policy, dtype="float16").passed
    assert not _judged(off, policy=policy, site="layers.0.self_attention.branch").passed
    last = replace(DEFAULT, sites=(given, SiteTolerance(site="*.branch", reason="exact", rtol=0.0, atol=0.1)))
    assert _judged(replace(ZERO, max_abs=0.09), policy=last).passed
    assert not _judged(replace(ZERO, max_abs=0.11), policy=last).passed


def test_the_widest_noise_is_that_of_any_correct_way() -> None:
    spread = [replace(ZERO, rms_rel=3e-3, bits=0.01), replace(ZERO, max_abs=0.01, bits=0.02)]
    found = widest(FLOOR, spread)
    assert (found.rms_rel, found.row_rel, found.max_abs, found.bits) == (3e-3, 3e-3, 0.02, 0.02)
    assert widest(FLOOR, []) == FLOOR


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("width", [16, 768])
def test_no_probe_row_is_a_false_alarm_for_a_correct_norm(dtype: torch.dtype, width: int) -> None:
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    for seed, (kind, x) in product(range(2), rows(width, seed=0, dtype=dtype).items()):
        draw = torch.Generator().manual_seed(seed)
        w, b = ((c + 0.2 * torch.randn(width, generator=draw)).to(dtype) for c in (1, 0))
        for epsilon in (1e-5, 1e-6, 1e-12):
            spec = NormSpec(family="layernorm", epsilon=epsilon, center=True, bias=True)
            truth = apply(spec, x.to(wide), w.to(wide), b.to(wide))
            first, *others = variants(spec, x, w, b)
            spread = [difference(v, first, dtype=dtype, bits_against=first).settle() for v in others]
            floor = widest(difference(first, truth, dtype=dtype).settle(), spread)
            for norm in (_fused, _unfolded, _folded):
                found = difference(norm(x, w, b, epsilon), truth, dtype=dtype, bits_against=first).settle()
                held = _judged(found, floor, dtype=str(dtype).removeprefix("torch."), is_norm=True)
                assert held.passed, (kind, epsilon, norm.__name__, held)


def _fused(x: Tensor, w: Tensor, b: Tensor, epsilon: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b, epsilon)


def _unfolded(x: Tensor, w: Tensor, b: Tensor, epsilon: float) -> Tensor:
    h = x.float()
    centred = h - h.mean(-1, keepdim=True)
    return (centred / (centred.square().mean(-1, keepdim=True) + epsilon).sqrt() * w.float() + b.float()).to(x.dtype)


def _folded(x: Tensor, w: Tensor, b: Tensor, epsilon: float) -> Tensor:
    variance, mean = torch.var_mean(x.float(), -1, correction=0, keepdim=True)
    scale = (variance + epsilon).rsqrt()
    return ((x.float() * scale - mean * scale) * w.float() + b.float()).to(x.dtype)


# Simulation: what correct implementations do, and what faults do.


def _rms(x: Tensor, w: Tensor, work: torch.dtype, *, eps: float = 1e-6, divide: bool = False) -> Tensor:
    h = x.to(work)
    moment = h.square().mean(-1, keepdim=True) + eps
    row = h / moment.sqrt() if divide else h * moment.rsqrt()
    return (row * w.to(work)).to(x.dtype)


def _one_pass(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    h = x.float()
    mean = h.mean(-1, keepdim=True)
    variance = h.square().mean(-1, keepdim=True) - mean * mean
    return ((h - mean) * torch.rsqrt(variance + 1e-5) * w.float() + b.float()).to(x.dtype)


def _partial(x: Tensor, w: Tensor, n: int, kept: torch.dtype) -> Tensor:
    """A projection whose inner axis is summed in n parts, kept in a dtype."""
    parts = [F.linear(a.to(kept), b.to(kept)) for a, b in zip(x.chunk(n, -1), w.chunk(n, -1), strict=True)]
    return torch.stack(parts).sum(0).to(x.dtype)


def _mlp(x: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return F.linear(F.silu(F.linear(x, up)), down)


def _attention(q: Tensor, k: Tensor, v: Tensor, work: torch.dtype) -> Tensor:
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    future = torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype).triu(1)
    return torch.softmax((scores + future).to(work), -1).to(q.dtype) @ v


Case = tuple[str, Callable[..., Tensor], tuple[Tensor, ...], list[Callable[..., Tensor]]]


def _cases(dtype: torch.dtype, seed: int, width: int, rows: int) -> Iterator[Case]:
    """Operator, how the reference computes it, inputs, and other correct ways."""
    draw = torch.Generator().manual_seed(seed)

    def random(*shape: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(*shape, generator=draw) * scale).to(dtype)

    x, y, b = random(rows, width), random(rows, width, scale=0.3), random(width, scale=0.1)
    x[:, 3] *= 50
    w = (1 + 0.2 * torch.randn(width, generator=draw)).to(dtype)
    square, up = random(width, width, scale=width**-0.5), random(4 * width, width, scale=width**-0.5)
    down = random(width, 4 * width, scale=(4 * width) ** -0.5)
    q, k, v = (random(2, rows, max(width // 4, 8)) for _ in range(3))
    yield "copy", lambda x: x, (x,), [lambda x: x]
    yield "add", torch.add, (x, y), [lambda x, y: y + x, lambda x, y: (x.float() + y.float()).to(dtype)]
    yield "scaled add", lambda x, y: x + 0.22 * y, (x, y), [lambda x, y: torch.add(x, y, alpha=0.22)]
    yield "rmsnorm", lambda x, w: _rms(x, w, torch.promote_types(x.dtype, torch.float32)), (x, w), [
        lambda x, w: _rms(x, w, torch.float32, divide=True),
        lambda x, w: F.rms_norm(x.float(), (width,), w.float(), 1e-6).to(dtype),
    ]  # fmt: skip
    yield "layernorm", lambda x, w, b: F.layer_norm(x, (width,), w, b), (x, w, b), [_one_pass]
    yield "projection", F.linear, (x, square), [
        lambda x, w: _partial(x, w, 4, torch.float32), lambda x, w: _partial(x, w, 4, dtype),
    ]  # fmt: skip
    yield "mlp", _mlp, (x, up, down), [
        lambda x, up, down: _partial(F.silu(_partial(x, up, 4, dtype)), down, 4, dtype)
    ]  # fmt: skip
    yield "attention", lambda q, k, v: _attention(q, k, v, torch.promote_types(q.dtype, torch.float32)), (q, k, v), [
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        lambda q, k, v: _attention(q, k, v, dtype),
    ]  # fmt: skip


def _floor(
    dtype: torch.dtype, reference: Callable[..., Tensor], inputs: tuple[Tensor, ...]
) -> tuple[Tensor, Difference]:
    """The reference in the wider dtype, and the noise of the reference in its own."""
    wide = torch.float64 if dtype == torch.float32 else torch.float32
    truth = reference(*(x.to(wide) for x in inputs))
    return truth, difference(reference(*inputs), truth, dtype=dtype).settle()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(("width", "rows"), [(32, 8), (256, 128), (1024, 32)])
def test_correct_implementations_pass(dtype: torch.dtype, width: int, rows: int) -> None:
    name = str(dtype).removeprefix("torch.")
    for seed in range(3):
        for operator, reference, inputs, others in _cases(dtype, seed, width, rows):
            truth, floor = _floor(dtype, reference, inputs)
            for other in others:
                bits = reference(*inputs) if operator.endswith("norm") else None
                found = difference(other(*inputs), truth, dtype=dtype, bits_against=bits).settle()
                held = _judged(found, floor, dtype=name, is_norm=bits is not None)
                assert held.passed, (operator, seed, held)
                # With room to spare: the bounds are about twice what was ever seen.
                assert held.observed <= 0.7 * held.tolerance or held.metric == "bits", (operator, seed, held)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("fault", "scale"),
    [
        ({"eps": 1e-5}, 1e-3),
        ({"eps": 1e-5}, 1.0),
        ({"work": None}, 1.0),
    ],
    ids=["epsilon of tiny rows", "epsilon at unit scale", "moments in the dtype"],
)
def test_faults_of_a_norm_fail(dtype: torch.dtype, fault: dict[str, Any], scale: float) -> None:
    if dtype == torch.float32 and "work" in fault:
        pytest.skip("float32 is the work dtype")
    for seed in range(5):
        draw = torch.Generator().manual_seed(seed)
        x = (torch.randn(64, 512, generator=draw) * scale).to(dtype)
        w = (1 + 0.2 * torch.randn(512, generator=draw)).to(dtype)
        truth, floor = _floor(dtype, lambda x, w: _rms(x, w, torch.promote_types(x.dtype, torch.float32)), (x, w))
        wrong = _rms(x, w, dtype if "work" in fault else torch.float32, eps=fault.get("eps", 1e-6))
        rounded = _rms(x, w, torch.float32)
        found = difference(wrong, truth, dtype=dtype, bits_against=rounded).settle()
        held = _judged(found, floor, dtype=str(dtype).removeprefix("torch."), is_norm=True)
        assert not held.passed, held
