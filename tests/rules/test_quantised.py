"""S105 quantization-mismatch: each scheme as it should be, and with one thing wrong. Shapes are checked unpacked."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.support.audit import Case, Fires, Near, check, ids, inspect
from tests.support.checkpoint import Draft, Edit, Tensor, config, draft, drop, family, trained
from tests.support.quantise import (
    awq,
    blocks,
    bnb4,
    bnb8,
    compressed,
    fp8,
    gptq,
    group,
    ints,
    llama,
    packs,
    part,
    text,
)  # fmt: skip

S105 = "quantization-mismatch"
UP0 = "model.layers.0.mlp.up_proj."
TENSOR, CHANNEL = (lambda out, width: ()), (lambda out, width: (out, 1))


def swap(**parts: object) -> Edit:
    """Parts of layer 0's up_proj in place of what is there."""

    def edit(d: Draft) -> None:
        for name, tensor in parts.items():
            assert f"{UP0}{name}" in d.tensors
            d.tensors[f"{UP0}{name}"] = tensor  # pyright: ignore[reportArgumentType]

    return edit


def extra(name: str, tensor: object) -> Edit:
    def edit(d: Draft) -> None:
        d.tensors[f"{UP0}{name}"] = tensor  # pyright: ignore[reportArgumentType]

    return edit


def undeclared(d: Draft) -> None:
    assert d.config is not None
    del d.config["quantization_config"]


def plain(key: str) -> Edit:
    """One layer's projection as it was before: its parts gone, its weight back."""

    def edit(d: Draft) -> None:
        for part_of in d.like(f"{key}*"):
            del d.tensors[part_of]
        d.tensors[f"{key}weight"] = trained(f"{key}weight", (96, 64), "BF16")

    return edit


def wrong(name: str, *edits: Edit, **more: object) -> Fires:
    return Fires(S105, name, llama(*edits), **more)  # pyright: ignore[reportArgumentType]


def near(name: str, *edits: Edit, **more: object) -> Near:
    return Near(S105, name, llama(*edits), **more)  # pyright: ignore[reportArgumentType]


FP8 = {"weight_block_size": [32, 32]}
CASES: list[Case] = [
    # -- GPTQ
    near("gptq, four bits", gptq()),
    near("gptq, eight bits", gptq(8)),
    near("gptq, three bits", gptq(3)),
    near("gptq, one group for all inputs", gptq(4, -1)),
    near("gptq without g_idx", gptq(), drop("*.g_idx")),
    near("gptq by auto-round", gptq(quant_method="auto-round")),
    wrong("gptq: bits", gptq(bits=4), config(quantization_config={"quant_method": "gptq", "bits": 8, "group_size": 32}),
          expected=8, observed=4, tensors=14),
    wrong("gptq: group size", gptq(), config(quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 16}),
          expected=16, observed=32, tensors=14),
    wrong("gptq: scales", gptq(), swap(scales=part("F16", 2, 95)), expected=[2, 96], observed=[2, 95],
          tensors=[f"{UP0}scales"]),
    wrong("gptq: zero points", gptq(), swap(qzeros=part("I32", 2, 11)), expected=[2, 12], observed=[2, 11],
          tensors=[f"{UP0}qzeros"]),
    wrong("gptq: order of inputs", gptq(), swap(g_idx=part("I32", 63)), expected=[64], tensors=[f"{UP0}g_idx"]),
    wrong("gptq: no scales", gptq(), drop(f"{UP0}scales"), tensors=[f"{UP0}qweight"], says=["without scales"]),
    wrong("gptq: sorted, and no order", gptq(desc_act=True), drop("*.g_idx"), says=["without g_idx"], tensors=14),
    wrong("gptq that no config declares", gptq(), undeclared, expected=None, observed="gptq"),
    wrong("gptq declared as awq", gptq(quant_method="awq"), expected="awq", observed="gptq"),
    wrong("declared, and the tensors are plain", config(quantization_config={"quant_method": "gptq", "bits": 4}),
          expected="gptq", observed="none"),
    Fires("shape-mismatch", "gptq: a layer of another width", llama(
        gptq(), swap(qweight=part("I32", 7, 96), g_idx=part("I32", 56)), drop(f"{UP0}scales", f"{UP0}qzeros")),
        expected=[96, 64], observed=[96, 56], beside=[S105, S105]),
    # -- AWQ
    near("awq", awq()),
    near("awq, groups of 16", awq(group=16)),
    near("awq of another version, whose shapes are not known", awq(version="gemv"), exit=3),
    wrong("awq: bits", awq(), config(quantization_config={"quant_method": "awq", "bits": 8, "group_size": 32}),
          expected=8, observed=4, tensors=14),
    wrong("awq: scales", awq(), swap(scales=part("F16", 1, 96)), expected=[2, 96], observed=[1, 96],
          tensors=[f"{UP0}scales"]),
    wrong("awq: zero points", awq(), swap(qzeros=part("I32", 2, 11)), expected=[2, 12], tensors=[f"{UP0}qzeros"]),
    wrong("awq: no zero points", awq(), drop(f"{UP0}qzeros"), says=["without qzeros"], tensors=[f"{UP0}qweight"]),
    wrong("awq that no config declares", awq(), undeclared, observed="awq"),
    # -- bitsandbytes
    near("bitsandbytes, four bits", bnb4()),
    near("bitsandbytes, four bits, nested", bnb4(nested=True)),
    near("bitsandbytes, eight bits", bnb8()),
    wrong("bitsandbytes: no quant_state", bnb4(), drop(f"{UP0}weight.quant_state*"), exit=1,
          tensors=[f"{UP0}weight"], says=["without quant_state"]),
    wrong("bitsandbytes: a quant_state that is not JSON", bnb4(),
          swap(**{"weight.quant_state.bitsandbytes__nf4": part("U8", 9)}), says=["not JSON"]),
    wrong("bitsandbytes: a quant_state of another size", bnb4(),
          swap(**{"weight.quant_state.bitsandbytes__nf4": text(
              {"quant_type": "nf4", "blocksize": 64, "shape": [96, 128]})}),
          expected=12288, observed=6144, tensors=[f"{UP0}weight"]),
    wrong("bitsandbytes: absmax", bnb4(), swap(**{"weight.absmax": part("F32", 95)}), expected=[96], observed=[95],
          tensors=[f"{UP0}weight.absmax"]),
    wrong("bitsandbytes: fp4 declared", bnb4(bnb_4bit_quant_type="fp4"), expected="fp4", observed="nf4", tensors=14),
    wrong("bitsandbytes: nested, and not declared", bnb4(nested=True, bnb_4bit_use_double_quant=False),
          expected=False, observed=True, tensors=14),
    wrong("bitsandbytes: no scales of rows", bnb8(), drop(f"{UP0}SCB"), tensors=[f"{UP0}weight"]),
    wrong("bitsandbytes: scales of columns", bnb8(), swap(SCB=part("F32", 64)), expected=[96], observed=[64]),
    wrong("bitsandbytes that no config declares", bnb4(), undeclared, observed="bitsandbytes-4bit"),
    wrong("bitsandbytes: a module that is left out", bnb8(llm_int8_skip_modules=["up_proj"]), tensors=2,
          says=["leaves out"]),
    wrong("bitsandbytes: a layer that was not quantised", bnb8(), plain(UP0), tensors=[f"{UP0}weight"],
          says=["plain weights"]),
    near("bitsandbytes: the same, left out", bnb8(llm_int8_skip_modules=["model.layers.0.mlp.up_proj"]), plain(UP0)),
    # -- FP8
    near("fp8 by block", fp8("weight_scale_inv", blocks(32, 32), **FP8)),
    near("fp8 by block, the other spelling", fp8("weight_scale", blocks(32, 32), **FP8)),
    near("fp8 by block, DeepSeek's own spelling", fp8("scale", blocks(32, 32), **FP8)),
    near("fp8 by blocks that do not divide the weight",
         fp8("weight_scale_inv", blocks(40, 24), weight_block_size=[40, 24])),
    near("fp8, one scale", fp8("weight_scale", TENSOR)),
    near("fp8 by row", fp8("weight_scale", CHANNEL, quant_method="fbgemm_fp8")),
    wrong("fp8: scales of the wrong grid", fp8("weight_scale_inv", blocks(32, 32), **FP8),
          swap(weight_scale_inv=part("F32", 2, 3)), expected=[3, 2], observed=[2, 3], says=["block scales"],
          tensors=[f"{UP0}weight_scale_inv"]),
    wrong("fp8: blocks of another size", fp8("weight_scale_inv", blocks(32, 32), weight_block_size=[16, 32]),
          expected=[4, 3], observed=[2, 3], tensors=14),
    wrong("fp8: one scale where there should be one a block", fp8("weight_scale", TENSOR, **FP8), tensors=14),
    wrong("fp8: no scale", fp8("weight_scale", TENSOR), drop(f"{UP0}weight_scale"), tensors=[f"{UP0}weight"],
          says=["without a scale"]),
    wrong("fp8: two scales", fp8("weight_scale", TENSOR), extra("weight_scale_inv", part("F32")), says=["second"]),
    wrong("fp8: a scale without its weight", fp8("weight_scale", TENSOR), drop(f"{UP0}weight"),
          beside=["missing-key"], says=["scales without"], tensors=[f"{UP0}weight_scale"]),
    wrong("fp8: scales left beside plain weights", extra("weight_scale_inv", part("F32")), says=["scales without"]),
    wrong("fp8 that no config declares", fp8("weight_scale", TENSOR), undeclared, observed="fp8-tensor"),
    Fires("transposed-weight", "fp8, transposed with its scale", llama(
        fp8("weight_scale_inv", blocks(32, 32), **FP8),
        swap(weight=part("F8_E4M3", 64, 96), weight_scale_inv=part("F32", 2, 3))), expected=[96, 64]),
    # -- compressed-tensors
    near("compressed-tensors, packed", compressed()),
    near("compressed-tensors, packed, with zero points", compressed(symmetric=False)),
    near("compressed-tensors, eight bits packed", compressed(8)),
    near("compressed-tensors, float by row", fp8("weight_scale", CHANNEL, **group(
        num_bits=8, type="float", symmetric=True, strategy="channel"))),
    wrong("compressed-tensors: bits", compressed(8), config(quantization_config=group(
        num_bits=4, type="int", symmetric=True, strategy="group", group_size=32)), expected=4, observed=8, tensors=14),
    wrong("compressed-tensors: group size", compressed(), config(quantization_config=group(
        num_bits=4, type="int", symmetric=True, strategy="group", group_size=16)), expected=[64, 6], observed=[64, 3],
        tensors=14),
    wrong("compressed-tensors: no zero points", compressed(symmetric=False), drop(f"{UP0}weight_zero_point"),
          says=["without weight_zero_point"]),
    wrong("compressed-tensors: zero points too many", compressed(), extra("weight_zero_point", part("I32", 12, 2)),
          says=["declared symmetric"]),
    wrong("compressed-tensors: a shape of another weight", compressed(), swap(weight_shape=ints(64, 96)),
          says=["weight_shape"]),
    Fires("shape-mismatch", "compressed-tensors: a narrower weight", llama(compressed(), swap(
        weight_packed=part("I32", 96, 4), weight_scale=part("BF16", 96, 1), weight_shape=ints(96, 32))),
        expected=[96, 64], observed=[96, 32]),
    wrong("compressed-tensors: ints declared as floats", fp8("weight_scale", CHANNEL, **group(
        num_bits=8, type="int", symmetric=True, strategy="channel")), expected="int", tensors=14),
    wrong("compressed-tensors: an ignored module", compressed(ignore=["re:.*up_proj"]), tensors=2),
    near("compressed-tensors: an ignored layer that is plain", compressed(ignore=["lm_head", UP0[:-1]]), plain(UP0)),
    wrong("compressed-tensors: a layer that was not packed", compressed(), plain(UP0), tensors=[f"{UP0}weight"]),
    near("compressed-tensors: a pattern that is not judged", compressed(ignore=["re:(.*up|none)_proj"]), plain(UP0)),
    # -- what is not known
    wrong("a method that is not known", gptq(quant_method="hqq"), observed="hqq", says=["hqq", "none that"]),
    wrong("no method named", config(quantization_config={"bits": 4}), says=["names no quant_method"]),
    wrong("whole numbers that nothing explains", swap(weight=part("U8", 96, 32)), observed="U8",
          tensors=[f"{UP0}weight"]),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_quantised(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)


def test_parameters_are_counted_unpacked(tmp_path: Path) -> None:
    plain_count = inspect(llama()(tmp_path / "plain")).report["subject"]["parameters"]  # pyright: ignore
    for name, edit in (("gptq", gptq()), ("awq", awq()), ("nf4", bnb4()), ("packed", compressed())):
        report = inspect(llama(edit)(tmp_path / name)).report
        assert report is not None
        assert report["subject"]["parameters"] == plain_count, name


def test_dimensions_are_read_off_the_unpacked_shapes(tmp_path: Path) -> None:
    outcome = inspect(llama(gptq(), config(intermediate_size=80))(tmp_path))
    assert outcome.grave == ["config-tensor-mismatch"]
    assert (outcome.findings[0]["expected"], outcome.findings[0]["observed"]) == (80, 96)


def test_conv1d_is_packed_as_a_linear_layer(tmp_path: Path) -> None:
    """GPT-2 stores [in, out]; every quantiser writes it as [out, in]."""

    def narrow(d: Draft) -> None:
        for key in d.like("*.c_fc.weight"):
            width, out = d.tensors.pop(key).shape
            stem = key.removesuffix("weight")
            d.tensors[f"{stem}qweight"] = part("I32", width // 4, out)
            d.tensors[f"{stem}qzeros"] = part("I32", 1, out // 4)
            d.tensors[f"{stem}scales"] = part("F16", 1, out)
        config(quantization_config={"quant_method": "gptq", "bits": 8, "group_size": -1,
                                    "modules_in_block_to_quantize": [["mlp.c_fc"]]})(d)  # fmt: skip

    outcome = inspect(family("gpt2", narrow)(tmp_path))
    assert (outcome.grave, outcome.status) == ([], 0)


def test_no_weight_is_taken_for_another_tensor(tmp_path: Path) -> None:
    """Keys in a wrapper are renamed as ever, packed or not."""

    def wrapped(d: Draft) -> None:
        d.tensors = {f"module.{key}": tensor for key, tensor in d.tensors.items()}

    outcome = inspect(llama(gptq(), wrapped)(tmp_path))
    assert outcome.grave == ["wrapper-prefix"]


@pytest.mark.parametrize(("name", "key"), [("scale", f"{UP0}weight_scale_inv"), ("weight", f"{UP0}weight")])
def test_values_in_scales_and_in_eight_bits(tmp_path: Path, name: str, key: str) -> None:
    del name

    def spoil(d: Draft) -> None:
        tensor = d.tensors[key]
        width = len(tensor.data) // tensor.shape[0] // tensor.shape[1]
        bad = b"\x7f" if width == 1 else b"\x00\x00\xc0\x7f"
        d.tensors[key] = type(tensor)(tensor.dtype, tensor.shape, bad + tensor.data[width:])

    outcome = inspect(llama(fp8("weight_scale_inv", blocks(32, 32), **FP8), spoil)(tmp_path), "--level", "values")
    assert [(f["name"], f["tensors"]) for f in outcome.findings if f["severity"] == "error"] == [
        ("non-finite-values", [key])
    ]


def test_an_unquantised_norm_stays_in_its_rules(tmp_path: Path) -> None:
    """What a scheme packs hides no fault of what it leaves alone."""
    outcome = inspect(llama(gptq(), drop("model.norm.weight"))(tmp_path))
    assert outcome.grave == ["final-norm-missing"]


def test_a_family_that_is_not_known_keeps_its_scheme(tmp_path: Path) -> None:
    """Without a manifest there are no shapes to check, but scales and declarations are checked all the same."""
    outcome = inspect(llama(gptq(), drop(f"{UP0}scales"), config(model_type="nobodys"))(tmp_path))
    assert sorted(outcome.grave) == [S105, "unknown-architecture"]


def test_nan_in_scales_that_are_exponents(tmp_path: Path) -> None:
    """MXFP4's scales are bytes by their dtype: 255 is NaN all the same."""

    def pack(stem: str, out: int, width: int) -> dict[str, Tensor]:
        scale = Tensor("U8", (out, width // 32), b"\xff" + bytes(out * width // 32 - 1))
        return {f"{stem}weight_packed": part("U8", out, width // 2), f"{stem}weight_scale": scale}

    said = group(num_bits=4, type="float", symmetric=True, strategy="group", group_size=32)
    outcome = inspect(llama(packs(said, pack))(tmp_path), "--level", "values")
    assert outcome.grave == ["non-finite-values"] * 14


@pytest.mark.parametrize("name", ["qwen3_moe", "deepseek_v3"])
def test_a_router_is_left_plain_without_a_word(tmp_path: Path, name: str) -> None:
    """Experts and projections are quantised, the router beside them never is, and no list says so."""
    linear = [k for k in draft(name).tensors if re.search(r"_proj(_\w+)?\.weight$", k)]
    outcome = inspect(family(name, fp8("weight_scale", TENSOR, patterns=linear))(tmp_path))
    assert (outcome.grave, outcome.status) == ([], 0)
    lost = inspect(family(name, fp8("weight_scale", TENSOR, patterns=linear[:-1]))(tmp_path / "lost"))
    assert lost.grave == [S105]
    assert lost.findings[0]["tensors"] == [linear[-1]]
