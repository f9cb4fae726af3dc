"""What a run was asked for: device, dtype and tokens, resolved."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from blockaudit.errors import RequestError
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.records.conformance import MODES, Mode
from blockaudit.records.tolerance import TolerancePolicy
from blockaudit.trace import tokens
from blockaudit.trace.judge import NAMES
from blockaudit.trace.models import Inputs
from blockaudit.trace.weights import DTYPES

# Tokens of the padded rows that are run beside the batch: a prime, as no dimension of a model is.
_SHORT = 7
_LENGTH = 128
_BEHIND = 2
_BY_NAME = {name: dtype for dtype, name in NAMES.items()}


@dataclass(frozen=True)
class Request:
    """What was asked for. `layers` is a range of layer numbers, `tokens` token ids [B, S] instead of random ones."""

    candidate: str = "hf"
    reference: str = "decoder"
    mode: str = "all"
    layers: range | None = None
    device: str = "auto"
    dtype: str = "checkpoint"
    batch: int = 2
    seq_len: int | None = None  # None: 128, or as many as the model has positions
    seed: int = 0
    tokens: dict[str, Tensor] | None = None
    policy: TolerancePolicy | None = None
    code: str | None = None
    manifest_sha256: str = ""
    trace_out: Path | None = None
    algebra: bool = False
    repro: Path | None = None

    @property
    def modes(self) -> frozenset[Mode]:
        if self.mode == "all":
            return frozenset(MODES)
        if self.mode not in MODES:
            raise RequestError(f"unknown --mode {self.mode!r}: expected {', '.join(MODES)} or all")
        return frozenset({self.mode})  # pyright: ignore[reportArgumentType] - it is one of them


def device_of(name: str) -> torch.device:
    """Raises RequestError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # a device without numbers (meta) is none
    except (RuntimeError, AssertionError) as error:
        raise RequestError(f"--device {name}: not available here: {str(error).splitlines()[0]}") from error
    return device


def dtype_of(name: str, checkpoint: Checkpoint) -> torch.dtype:
    """The release dtype: the one that most of the checkpoint's elements have. Raises RequestError."""
    if name in _BY_NAME and name != "float64":
        return _BY_NAME[name]
    if name != "checkpoint":
        raise RequestError(f"unknown --dtype {name!r}: expected checkpoint, float32, bfloat16 or float16")
    counts: dict[str, int] = {}
    for header in checkpoint.tensors.values():
        counts[header.dtype] = counts.get(header.dtype, 0) + header.elements
    floats = {k: v for k, v in counts.items() if k in ("F32", "BF16", "F16", "F64")}
    most = max(floats, key=lambda k: floats[k], default="F32")
    return torch.float32 if most == "F64" else DTYPES[most]


def batches_of(asked: Request, bound: BoundManifest, config: dict[str, Any]) -> list[Inputs]:
    """The tokens asked for, and beside them a short padded batch of another length."""
    if asked.tokens is not None:
        check_ids(asked.tokens, "--tokens", bound, config)
        return [asked.tokens]
    vocab = _vocabulary(bound, config)
    length = _length(asked.seq_len, config)
    if asked.batch < 1 or length < 1:
        raise RequestError(f"--batch {asked.batch} --seq-len {length}: both must be at least 1")
    decoder = tokens.tokens(vocab, asked.batch, length, asked.seed + 1)
    main = dataclasses.replace(
        tokens.whole(tokens.tokens(vocab, asked.batch, length, asked.seed)), decoder_input_ids=decoder
    )
    return [main.tensors(), _padded(vocab, asked.seed + 2, _pad(config))]


def _padded(vocab: int, seed: int, pad: int) -> Inputs:
    """Two short rows, one padded on the left and one on the right."""
    left = tokens.padded(vocab, 2, _SHORT, seed, side="left", pad=pad)
    right = tokens.padded(vocab, 2, _SHORT, seed, side="right", pad=pad)
    ids = torch.stack([left.input_ids[1], right.input_ids[1]])
    mask = torch.stack([left.attention_mask[1], right.attention_mask[1]])
    return {"input_ids": ids, "attention_mask": mask, "decoder_input_ids": tokens.tokens(vocab, 2, _SHORT, seed + 1)}


def _length(asked: int | None, config: dict[str, Any]) -> int:
    """Tokens in a sequence. Raises RequestError for more than the model has positions."""
    sizes = _positions(config)
    # Some tables begin behind the padding's position (RoBERTa, OPT).
    most = min(sizes) - _BEHIND if sizes else None
    if asked is None:
        return _LENGTH if most is None else max(1, min(_LENGTH, most))
    if sizes and asked > min(sizes):
        raise RequestError(f"--seq-len {asked}: the model has {min(sizes)} positions (config.json)")
    return asked


def _positions(config: dict[str, Any]) -> list[int]:
    """What config.json says of how many positions there are."""
    names = ("max_position_embeddings", "n_positions", "n_ctx", "max_target_positions")
    return [v for n in names if isinstance(v := config.get(n), int) and v > 0]


def _pad(config: dict[str, Any]) -> int:
    pad = config.get("pad_token_id")
    return pad if isinstance(pad, int) and pad >= 0 else 0


def check_ids(inputs: Inputs, label: str, bound: BoundManifest, config: dict[str, Any]) -> None:
    """Raises RequestError where a token id lies outside the vocabulary, or a model cannot be run on these tokens."""
    if sum(not s.ignored for s in bound.spans) > 1 and "decoder_input_ids" not in inputs:
        raise RequestError(f"{label}: no decoder_input_ids in it, and the model has a decoder beside its encoder")
    positions = _positions(config)
    if positions and inputs["input_ids"].shape[1] > min(positions):
        raise RequestError(
            f"{label}: {inputs['input_ids'].shape[1]} tokens, and the model has {min(positions)} positions"
        )
    size = _known_vocabulary(bound, config)
    for name in ("input_ids", "decoder_input_ids"):
        ids = inputs.get(name)
        wrong = None if ids is None or size is None else ids[(ids < 0) | (ids >= size)]
        if wrong is not None and len(wrong):
            raise RequestError(f"{label}: {name} holds {int(wrong[0])}, and there are {size} token ids")


def _known_vocabulary(bound: BoundManifest, config: dict[str, Any]) -> int | None:
    dim = bound.dims.get("vocab")
    size = dim.value if dim is not None and dim.known else config.get("vocab_size")
    return size if isinstance(size, int) and size >= 1 else None


def _vocabulary(bound: BoundManifest, config: dict[str, Any]) -> int:
    """How many token ids there are. Raises RequestError."""
    size = _known_vocabulary(bound, config)
    if size is None:
        raise RequestError(
            "config.json: vocab_size: expected a positive number, to draw tokens from; give --tokens FILE"
        )
    return size
