from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from blockaudit.checkpoint.quantization import Scheme, quantization_scheme
from blockaudit.checkpoint.recognise import adapter_only, training_state
from blockaudit.records.checkpoint import TensorHeader
from tests.checkpoint.build import only, opened, rules, safetensors


def tensors(**kinds: tuple[str, tuple[int, ...]]) -> dict[str, TensorHeader]:
    return {key.replace("__", "."): TensorHeader(dtype, shape, (0, 0)) for key, (dtype, shape) in kinds.items()}


def scheme(config: dict[str, Any] | None = None, **kinds: tuple[str, tuple[int, ...]]) -> Scheme:
    return quantization_scheme(tensors(**kinds), config)


def test_zero_3_leaves_empty_tensors(tmp_path: Path) -> None:
    empty = {f"layers.{i}.weight": ("F32", (0,)) for i in range(4)}
    path = safetensors(tmp_path / "model.safetensors", {**empty, "norm.weight": ("F32", (2,))})
    fault = only(opened(path))
    assert (fault.rule, len(fault.tensors)) == ("sharded-training-state", 4)
    assert "zero_to_fp32.py" in fault.message


def test_one_empty_tensor_is_nothing() -> None:
    assert training_state(tensors(a=("F32", (0,)), b=("F32", (2,)), c=("F32", (2,))), "m") is None
    assert training_state({}, "m") is None


@pytest.mark.parametrize("key", ["_flat_param", "_fsdp_wrapped_module.layers.0._flat_param", "layers.0.flat_param_0"])
def test_fsdp_flat_parameters(key: str) -> None:
    fault = training_state({key: TensorHeader("F32", (100,), (0, 400))}, "m")
    assert fault is not None
    assert (fault.rule, fault.tensors) == ("sharded-training-state", (key,))
    assert "merge-weights" in fault.message


@pytest.mark.parametrize(
    "name", ["__0_0.distcp", "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_optim_states.pt"]
)
def test_parts_of_a_training_state_by_name(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"not opened")
    for source in (tmp_path, tmp_path / name):
        ckpt = opened(source)
        assert rules(ckpt) == ["sharded-training-state"]
        assert not ckpt.readable


def test_adapters() -> None:
    lora = tensors(
        base_model__model__q__lora_A__weight=("F32", (2, 4)), base_model__model__q__lora_B__weight=("F32", (4, 2))
    )
    assert adapter_only(lora, "m", declared=False) is not None
    base = tensors(q__weight=("F32", (4, 4)))
    assert adapter_only({**lora, **base}, "m", declared=False) is None
    assert adapter_only(base, "model.safetensors", declared=True) is None
    assert adapter_only(base, "adapter_model.safetensors", declared=True) is not None
    assert adapter_only({}, "m", declared=True) is None


def test_no_scheme() -> None:
    assert scheme(a__weight=("BF16", (4, 4))) == Scheme("none", False, "", "")
    declared = scheme({"quantization_config": {"quant_method": "fp8"}}, a__weight=("BF16", (4, 4)))
    assert (declared.name, declared.declared, declared.declared_method) == ("none", True, "fp8")


def test_fp8() -> None:
    block = scheme(a__weight=("F8_E4M3", (256, 256)), a__weight_scale_inv=("F32", (2, 2)), b__weight=("BF16", (4,)))
    assert (block.name, block.weights, block.unpaired, block.orphans) == ("fp8-block", ("a.weight",), (), ())
    assert scheme(a__weight=("F8_E4M3", (4, 4)), a__weight_scale=("F32", ())).name == "fp8-tensor"
    assert scheme(a__weight=("F8_E4M3", (4, 4)), a__weight_scale=("F32", (4, 1))).name == "fp8-channel"
    assert scheme(a__weight=("F8_E4M3", (4, 4))).unpaired == ("a.weight",)


def test_fp8_without_its_scale_and_a_scale_without_its_weight() -> None:
    found = scheme(
        a__weight=("F8_E4M3", (4, 4)),
        a__weight_scale_inv=("F32", (1, 1)),
        b__weight=("F8_E4M3", (4, 4)),
        c__weight_scale_inv=("F32", (1, 1)),
    )
    assert (found.unpaired, found.orphans) == (("b.weight",), ("c.weight_scale_inv",))


def test_gptq_and_awq() -> None:
    parts = {"a__qzeros": ("I32", (1, 8)), "a__scales": ("F16", (1, 64))}
    assert scheme(a__qweight=("I32", (16, 64)), a__g_idx=("I32", (128,)), **parts).name == "gptq"
    assert scheme(a__qweight=("I32", (16, 64)), **parts).name == "gptq"
    assert scheme(a__qweight=("I32", (128, 8)), **parts).name == "awq"
    declared = {"quantization_config": {"quant_method": "awq"}}
    assert scheme(declared, a__qweight=("I32", (16, 64)), **parts).declared_method == "awq"
    assert scheme(a__qweight=("I32", (16, 64)), a__qzeros=("I32", (1, 8)), b__scales=("F16", (1,))).unpaired == (
        "a.qweight",
    )


def test_bitsandbytes() -> None:
    eight = scheme(a__weight=("I8", (4, 4)), a__SCB=("F32", (4,)), n__weight=("F16", (4,)))
    assert (eight.name, eight.weights, eight.unpaired) == ("bitsandbytes-8bit", ("a.weight",), ())
    four = scheme(
        a__weight=("U8", (8, 1)),
        a__weight__absmax=("F32", (1,)),
        a__weight__quant_map=("F32", (16,)),
        b__weight=("U8", (8, 1)),
    )
    assert (four.name, four.weights, four.unpaired) == ("bitsandbytes-4bit", ("a.weight", "b.weight"), ("b.weight",))


def test_int8_packed_and_mxfp4() -> None:
    int8 = scheme(a__weight__qweight=("I8", (4, 4)), a__weight__scale=("F32", (4, 1)))
    assert (int8.name, int8.unpaired, int8.orphans) == ("int8-channel", (), ())
    assert scheme(a__weight=("I8", (4, 4)), a__weight_scale=("BF16", (4, 1))).name == "int8-channel"
    assert scheme(a__weight_packed=("I32", (4, 1)), a__weight_scale=("BF16", (4, 1))).name == "packed"
    assert scheme(a__up_proj_blocks=("U8", (4, 1)), a__up_proj_scales=("U8", (4, 1))).name == "mxfp4"
    assert scheme(a__weight=("F32", (4, 4)), a__weight_scale=("F32", (4,))).name == "none"


def test_ninety_thousand_keys_are_quick() -> None:
    many = {
        f"model.layers.{i // 512}.experts.{i % 512}.up.weight": TensorHeader("BF16", (4, 4), (0, 32))
        for i in range(90_000)
    }
    best = 9.0
    for _ in range(5):
        start = time.perf_counter()
        assert quantization_scheme(many, None).name == "none"
        best = min(best, time.perf_counter() - start)
    assert best < 0.2  # 0.03 s on two quiet cores
