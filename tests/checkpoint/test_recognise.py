from __future__ import annotations

from pathlib import Path

import pytest

from blockaudit.checkpoint.recognise import adapter_only, training_state
from blockaudit.records.checkpoint import TensorHeader
from tests.checkpoint.build import only, opened, rules, safetensors


def tensors(**kinds: tuple[str, tuple[int, ...]]) -> dict[str, TensorHeader]:
    return {key.replace("__", "."): TensorHeader(dtype, shape, (0, 0)) for key, (dtype, shape) in kinds.items()}


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
    assert adapter_only(lora, "m", declared=False)
    base = tensors(q__weight=("F32", (4, 4)))
    assert not adapter_only({**lora, **base}, "m", declared=False)
    assert not adapter_only(base, "model.safetensors", declared=True)
    assert adapter_only(base, "adapter_model.safetensors", declared=True)
    assert not adapter_only({}, "m", declared=True)
