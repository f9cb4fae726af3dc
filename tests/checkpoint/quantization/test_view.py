"""Schemes told apart by their keys, and the shapes that weights have unpacked."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest

from blockaudit.checkpoint.quantization.view import View, logical_view
from blockaudit.records.checkpoint import Checkpoint, FileHeader, TensorHeader
from blockaudit.records.quantised import QuantisedWeight
from tests.checkpoint.build import opened, values

Kinds = dict[str, tuple[str, tuple[int, ...]]]


def checkpoint(kinds: Kinds, declared: dict[str, Any] | None, metadata: dict[str, str] | None = None) -> Checkpoint:
    """Headers alone: there is no file to read values from."""
    tensors = {key: TensorHeader(dtype, shape, (0, 0)) for key, (dtype, shape) in kinds.items()}
    file = FileHeader("m", "m", 0, "safetensors", 0, tensors, metadata or {})
    config = {"quantization_config": declared} if declared is not None else {}
    return Checkpoint("m", "safetensors", ".", (file,), tensors, dict.fromkeys(tensors, file), config, ())


def view(declared: dict[str, Any] | None = None, /, **kinds: tuple[str, tuple[int, ...]]) -> View:
    return logical_view(checkpoint({k.replace("__", "."): v for k, v in kinds.items()}, declared))


def weight(found: View) -> QuantisedWeight:
    (only,) = found.quantised.weights.values()
    return only


def problems(found: View) -> list[tuple[str, str]]:
    return [(m.problem, m.key) for m in found.quantised.misfits]


def test_plain_tensors_are_left_as_they_are() -> None:
    plain = checkpoint({f"l.{i}.weight": ("BF16", (4, 4)) for i in range(9)}, None)
    found = logical_view(plain)
    assert found.tensors is plain.tensors
    assert (found.quantised.scheme, found.quantised.declared) == ("none", False)
    assert view({"quant_method": "fp8"}, a__weight=("BF16", (4, 4))).quantised.declared


@pytest.mark.parametrize(
    ("scale", "scheme"), [((), "fp8-tensor"), ((1,), "fp8-tensor"), ((4, 1), "fp8-channel"), ((2, 2), "fp8-block")]
)
@pytest.mark.parametrize("spelling", ["a__weight_scale", "a__weight_scale_inv", "a__scale"])
def test_fp8(spelling: str, scale: tuple[int, ...], scheme: str) -> None:
    found = view(a__weight=("F8_E4M3", (4, 4)), **{spelling: ("F32", scale)})
    assert (found.quantised.scheme, weight(found).shape, problems(found)) == (scheme, (4, 4), [])
    assert list(found.tensors) == ["a.weight"]


def test_fp8_experts_in_one_tensor() -> None:
    found = view(
        {"quant_method": "fp8", "weight_block_size": [128, 128]},
        e__gate_up_proj=("F8_E4M3", (3, 256, 384)), e__gate_up_proj_scale_inv=("F32", (3, 2, 3)),
    )  # fmt: skip
    assert (weight(found).shape, problems(found)) == ((3, 256, 384), [])


def test_a_norm_named_scale_is_no_scale_of_a_weight() -> None:
    found = view(a__weight=("F8_E4M3", (4, 4)), a__weight_scale=("F32", ()), n__scale=("F32", (4,)))
    assert list(found.tensors) == ["a.weight", "n.scale"]
    assert problems(found) == []


def test_scales_without_a_weight_are_orphans() -> None:
    found = view(a__weight=("F8_E4M3", (4, 4)), a__weight_scale=("F32", ()), c__weight_scale=("F32", ()))
    assert problems(found) == [("scales without a quantised weight", "c.weight_scale")]
    # Beside plain weights `weight_scale` may be anybody's.
    assert view(a__weight=("F32", (4, 4)), a__weight_scale=("F32", (4,))).quantised.scheme == "none"


def test_gptq_and_awq_are_told_apart_by_their_scales() -> None:
    parts = {"a__qzeros": ("I32", (1, 8)), "a__scales": ("F16", (1, 64))}
    gptq = view(a__qweight=("I32", (16, 64)), **parts)
    awq = view(a__qweight=("I32", (128, 8)), **parts)
    assert (weight(gptq).scheme, weight(gptq).shape, weight(gptq).bits) == ("gptq", (64, 128), 4)
    assert (weight(awq).scheme, weight(awq).shape, weight(awq).bits) == ("awq", (64, 128), 4)
    assert (list(gptq.tensors), gptq.stored) == (["a.weight"], {"a.weight": "a.qweight"})


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_gptq_of_every_width(bits: int) -> None:
    found = view(
        {"quant_method": "gptq", "bits": bits, "group_size": 64},
        a__qweight=("I32", (128 * bits // 32, 96)), a__qzeros=("I32", (2, 96 * bits // 32)),
        a__scales=("F16", (2, 96)), a__g_idx=("I32", (128,)),
    )  # fmt: skip
    assert (weight(found).shape, weight(found).bits, problems(found)) == ((96, 128), bits, [])


def test_numbers_of_their_own_are_held_against_nothing() -> None:
    """gptqmodel's `dynamic` gives modules bits of their own: what is stored stands."""
    said = {"quant_method": "gptq", "bits": 4, "group_size": 64, "dynamic": {"+:.*a": {"bits": 8}}}
    parts = {"a__qzeros": ("I32", (2, 24)), "a__scales": ("F16", (2, 96)), "a__g_idx": ("I32", (128,))}
    found = view(said, a__qweight=("I32", (32, 96)), **parts)
    assert (weight(found).bits, problems(found)) == (8, [])


def test_int8() -> None:
    own = view(a__weight__qweight=("I8", (4, 6)), a__weight__scale=("F32", (4, 1)))
    assert (weight(own).scheme, weight(own).shape, list(own.tensors)) == ("qweight-int8", (4, 6), ["a.weight"])
    rows = view(a__weight=("I8", (4, 6)), a__weight_scale=("BF16", (4, 1)))
    assert (weight(rows).scheme, problems(rows)) == ("int8-channel", [])


def test_mxfp4_as_gpt_oss_stores_it() -> None:
    said = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    kinds = {"e__up_proj_blocks": ("U8", (3, 96, 2, 16)), "e__up_proj_scales": ("U8", (3, 96, 2))}
    found = view(said, **kinds, e__up_proj_bias=("BF16", (3, 96)))
    assert (weight(found).shape, weight(found).bits, problems(found)) == ((3, 64, 96), 4, [])
    assert list(found.tensors) == ["e.up_proj", "e.up_proj_bias"]
    wrong = view(said, **{**kinds, "e__up_proj_scales": ("U8", (3, 96, 4))})
    assert problems(wrong) == [("scales of the wrong shape", "e.up_proj_scales")]
    lost = view(said, e__up_proj_blocks=("U8", (3, 96, 2, 16)))
    assert problems(lost) == [("quantised weights without scales", "e.up_proj_blocks")]


@pytest.mark.parametrize(
    ("packed", "scale", "scheme"),
    [(("U8", (96, 32)), ("F8_E4M3", (96, 4)), "nvfp4"), (("U8", (96, 32)), ("U8", (96, 2)), "mxfp4")],
)
def test_compressed_tensors_of_four_bit_floats(packed: Any, scale: Any, scheme: str) -> None:
    more = {"a__weight_global_scale": ("F32", (1,))} if scheme == "nvfp4" else {}
    found = view(a__weight_packed=packed, a__weight_scale=scale, **more)
    assert (weight(found).scheme, weight(found).shape, problems(found)) == (scheme, (96, 64), [])


def test_modelopt_nvfp4_keeps_the_name() -> None:
    found = view(
        {"quant_method": "modelopt"},
        a__weight=("U8", (96, 32)), a__weight_scale=("F8_E4M3", (96, 4)), a__weight_scale_2=("F32", ()),
        a__input_scale=("F32", ()),
    )  # fmt: skip
    assert (weight(found).shape, problems(found), list(found.tensors)) == ((96, 64), [], ["a.weight"])


def torchao(kind: str, qdata: tuple[str, tuple[int, ...]], scale: tuple[int, ...], **data: Any) -> View:
    said = {"_type": kind, "_data": data, "_tensor_data_names": ["qdata", "scale"]}
    kinds: Kinds = {"m.a._weight_qdata": qdata, "m.a._weight_scale": ("F32", scale)}
    return logical_view(checkpoint(kinds, {"quant_method": "torchao"}, {"m.a.weight": json.dumps(said)}))


def test_torchao() -> None:
    rows = torchao("Int8Tensor", ("I8", (96, 64)), (96, 1), block_size=[1, 64])
    assert (weight(rows).name, weight(rows).shape, problems(rows)) == ("m.a.weight", (96, 64), [])
    groups = torchao("Float8Tensor", ("F8_E4M3", (96, 64)), (96, 1), block_size=[1, 32])
    assert problems(groups) == [("_weight_scale of the wrong shape", "m.a._weight_scale")]
    four = torchao("Int4Tensor", ("U8", (96, 32)), (2, 96), block_size=[1, 32], shape=[96, 64])
    assert (weight(four).shape, weight(four).bits, problems(four)) == ((96, 64), 4, [])
    strange = torchao("EvilTensor", ("I8", (96, 64)), (96, 1))
    assert problems(strange) == [("torchao weights of a class that is not known", "m.a.weight")]
    assert weight(strange).shape is None


def test_torchao_without_its_metadata() -> None:
    found = view({"quant_method": "torchao"}, a___weight_qdata=("I8", (4, 4)))
    assert [p for p, _ in problems(found)] == ["torchao weights that no metadata describes"]


@pytest.mark.parametrize(
    "state",
    [
        b"\xff\xfe{",
        b"[1, 2]",
        b'{"shape": [4, -4]}',
        b'{"shape": [1e9999, 2]}',
        b'{"shape": ' + b"[" * 2000,
        b"{" * 5000,
    ],
)
def test_a_hostile_quant_state_is_a_misfit(tmp_path: Path, state: bytes) -> None:
    key = "a.weight.quant_state.bitsandbytes__nf4"
    values(tmp_path / "model.safetensors", {
        "a.weight": ("U8", (8, 1), bytes(8)), "a.weight.absmax": ("F32", (1,), bytes(4)),
        "a.weight.quant_map": ("F32", (16,), bytes(64)), key: ("U8", (len(state),), state),
    })  # fmt: skip
    found = logical_view(opened(tmp_path))
    assert weight(found).shape is None
    assert [k for _, k in problems(found)] == [key]


def test_a_weight_that_is_stored_twice() -> None:
    found = view(
        a__weight=("F16", (64, 128)),
        a__qweight=("I32", (16, 64)),
        a__qzeros=("I32", (1, 8)),
        a__scales=("F16", (1, 64)),
    )
    assert problems(found) == [("weights stored both packed and plain", "a.weight")]


_WORDS = (
    "qweight", "qzeros", "scales", "g_idx", "weight", "SCB", "weight.absmax", "weight.quant_state.bitsandbytes__nf4",
    "weight_packed", "weight_scale", "weight_shape", "weight_zero_point", "up_blocks", "up_scales", "_weight_qdata",
    "weight_scale_inv", "scale", "weight_g_idx", "weight_global_scale", "weight_scale_2",
)  # fmt: skip
_DTYPES = ("I32", "I8", "U8", "F8_E4M3", "F8_E8M0", "BF16", "F32", "I64", "I16")
_VALUES = (None, 0, -1, 4, 10**30, 1.5, "x", "re:.*", [], [4, 4], [0, 0], ["re:(", None], {"a": 1}, {"-:x": {}}, True)
_FIELDS = (
    "bits", "group_size", "weight_block_size", "dynamic", "ignore", "modules_to_not_convert", "load_in_4bit",
    "load_in_8bit", "version", "desc_act", "config_groups", "bnb_4bit_quant_type", "modules_in_block_to_quantize",
)  # fmt: skip
_METHODS = ("gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors", "mxfp4", "torchao", "modelopt", "", 3, None)


@pytest.mark.parametrize("seed", range(400))
def test_nothing_that_is_declared_or_stored_makes_it_raise(seed: int) -> None:
    """Tensors of any shape under the words of every scheme, with a declaration made of anything."""
    random = Random(seed)
    said: dict[str, Any] = {"quant_method": random.choice(_METHODS)}
    said |= {field: random.choice(_VALUES) for field in random.sample(_FIELDS, 5)}
    weights = {k: random.choice(_VALUES) for k in ("num_bits", "group_size", "strategy", "block_structure", "type")}
    if random.random() < 0.5:
        said["config_groups"] = {"group_0": {"targets": ["Linear", 3], "weights": weights}}
    kinds: Kinds = {}
    for word in random.sample(_WORDS, random.randint(1, 9)):
        shape = tuple(random.choice((0, 1, 4, 16, 96)) for _ in range(random.randint(0, 4)))
        kinds[f"m.{random.choice('ab')}.{word}"] = (random.choice(_DTYPES), shape)
    found = logical_view(checkpoint(kinds, said))
    assert not found.tensors.keys() & {w.stored for w in found.quantised.weights.values() if w.stored != w.name}
