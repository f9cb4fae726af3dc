"""What a set of keys is, other than a model checkpoint: an adapter, or a training state that is not a model yet."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from blockaudit.checkpoint.files import short
from blockaudit.records.checkpoint import Fault, TensorHeader

_LORA = re.compile(
    r"\.(?:lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|modules_to_save|ia3_l|hada_w[12]_[ab]|lokr_w[12])(?:\.|$)"
)
_FLAT = re.compile(r"(?:^|\.)_?flat_param(?:_\d+)?$")
_FSDP = (
    "gather it with FullStateDictConfig (FSDP.state_dict_type(model, StateDictType.FULL_STATE_DICT)), or run "
    "`accelerate merge-weights DIR OUT`"
)
_ZERO = (
    "run `python zero_to_fp32.py DIR OUT` (it lies in the DeepSpeed checkpoint folder), or set "
    "stage3_gather_16bit_weights_on_model_save"
)
_DCP = "audit the folder that holds all parts and their .metadata"


def is_adapter(key: str) -> bool:
    """Whether a key is that of an adapter's tensor (LoRA and its kin)."""
    return _LORA.search(key) is not None


def _training(file: str, what: str, remedy: str, keys: Sequence[str] = ()) -> Fault:
    return Fault("sharded-training-state", file, f"{what}, not a model checkpoint yet: {remedy}", tuple(keys))


def sharded_state_fault(names: Sequence[str]) -> Fault:
    """The fault of a folder, or a file, that holds nothing but parts of a training state, by their names."""
    if names[0].endswith(".distcp"):
        return _training(names[0], "this is one part of a torch.distributed checkpoint", _DCP)
    return _training(names[0], "this is a DeepSpeed training state", _ZERO)


def _flat(tensors: Mapping[str, TensorHeader], file: str) -> Fault | None:
    keys = [key for key in tensors if "flat_param" in key and _FLAT.search(key)]
    if not keys:
        return None
    return _training(file, f"{len(keys):,} tensors are FSDP flat parameters ({short(keys[0])})", _FSDP, keys)


def _zero3(tensors: Mapping[str, TensorHeader], file: str) -> Fault | None:
    empty = [key for key, tensor in tensors.items() if tensor.shape == (0,)]
    if not empty or 2 * len(empty) < len(tensors):
        return None
    return _training(
        file, f"{len(empty):,} of {len(tensors):,} tensors have shape [0], which ZeRO-3 leaves behind", _ZERO, empty
    )


def training_state(tensors: Mapping[str, TensorHeader], file: str) -> Fault | None:
    """`sharded-training-state` where the keys or shapes are those of FSDP or ZeRO-3, with what to run."""
    return _flat(tensors, file) or _zero3(tensors, file)


def adapter_only(tensors: Mapping[str, TensorHeader], file: str, *, declared: bool) -> bool:
    """Whether every key is an adapter's, or adapter_config.json lies beside (`declared`) and some are."""
    if not tensors:
        return False
    if declared:
        return file.startswith("adapter_model") or any(map(is_adapter, tensors))
    return all("_" in key and is_adapter(key) for key in tensors)
