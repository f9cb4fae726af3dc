from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from blockaudit.errors import RequestError
from blockaudit.trace.tokens import Batch, batches, digest, padded, read_tokens, tokens, whole


def test_a_seed_is_its_tokens() -> None:
    assert torch.equal(tokens(100, 2, 8, 5), tokens(100, 2, 8, 5))
    assert not torch.equal(tokens(100, 2, 8, 5), tokens(100, 2, 8, 6))
    assert tokens(7, 4, 64, 0).max() == 6


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_is_on_its_side_and_masked(side: str) -> None:
    batch = padded(100, 3, 9, 0, side=side, pad=99)
    assert batch.attention_mask.sum(-1).tolist() == [9, 6, 3]
    assert batch.padded
    shorter = batch.attention_mask[2].tolist()
    assert shorter == ([0] * 6 + [1] * 3 if side == "left" else [1] * 3 + [0] * 6)
    assert (batch.input_ids[~batch.valid] == 99).all()


@pytest.mark.parametrize(("size", "length"), [(1, 1), (1, 2), (2, 16), (5, 7)])
def test_batches_of_any_size(size: int, length: int) -> None:
    made = batches(50, size, length, 0)
    assert set(made) == {"tokens", "short", "right-padded", "left-padded"}
    assert made["tokens"].input_ids.shape == (size, length)
    assert made["short"].input_ids.shape[1] <= length
    for batch in made.values():
        assert batch.attention_mask.shape == batch.input_ids.shape
        assert batch.valid.any(-1).all()
    assert made["left-padded"].padded == (length > 1)


def test_a_digest_is_the_sha256_of_the_int64_bytes() -> None:
    batch = whole(torch.tensor([[1, 2], [3, 4]]))
    expected = hashlib.sha256(np.array([1, 2, 3, 4, 1, 1, 1, 1], "<i8").tobytes()).hexdigest()
    assert digest(batch.tensors()) == expected
    assert digest({"attention_mask": batch.attention_mask.int(), "input_ids": batch.input_ids}) == expected
    assert digest({"input_ids": batch.input_ids}) != expected


def _saved(tmp_path: Path, name: str, content: Any) -> Path:
    path = tmp_path / name
    if name.endswith(".json"):
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    elif name.endswith(".npy"):
        np.save(path, content, allow_pickle=True)
    elif name.endswith(".safetensors"):
        save_file(content, path)
    else:
        path.write_bytes(content)
    return path


def _read(path: Path, **options: Any) -> tuple[list[list[int]], list[list[int]]]:
    batch = read_tokens(path, **options)
    assert batch.input_ids.dtype == batch.attention_mask.dtype == torch.int64
    return batch.input_ids.tolist(), batch.attention_mask.tolist()


@pytest.mark.parametrize(
    ("name", "content", "ids", "mask"),
    [
        ("a.json", [5, 6, 7], [[5, 6, 7]], [[1, 1, 1]]),
        ("a.json", [[5, 6, 7], [8]], [[5, 6, 7], [8, 9, 9]], [[1, 1, 1], [1, 0, 0]]),
        (
            "a.json",
            {"input_ids": [[9, 5], [6, 7]], "attention_mask": [[0, 1], [1, 1]]},
            [[9, 5], [6, 7]],
            [[0, 1], [1, 1]],
        ),
        ("a.npy", np.array([5, 6], "<u2"), [[5, 6]], [[1, 1]]),
        ("a.npy", np.array([[5, 6], [7, 8]]), [[5, 6], [7, 8]], [[1, 1], [1, 1]]),
        (
            "a.safetensors",
            {"input_ids": torch.tensor([[5, 6]], dtype=torch.int32), "attention_mask": torch.tensor([[False, True]])},
            [[5, 6]],
            [[0, 1]],
        ),
        ("a.safetensors", {"input_ids": torch.tensor([5]), "embed": torch.ones(1, 1, 2)}, [[5]], [[1]]),
    ],
    ids=str,
)
def test_files_that_are_read(tmp_path: Path, name: str, content: Any, ids: Any, mask: Any) -> None:
    assert _read(_saved(tmp_path, name, content), pad=9) == (ids, mask)


def test_a_decoder_has_tokens_of_its_own(tmp_path: Path) -> None:
    content = {"input_ids": [[1, 2, 3], [4, 5, 6]], "decoder_input_ids": [[0, 1], [0, 7]]}
    batch = read_tokens(_saved(tmp_path, "a.json", content))
    assert batch.decoder_input_ids is not None
    assert batch.decoder_input_ids.tolist() == [[0, 1], [0, 7]]
    assert set(batch.tensors()) == {"input_ids", "attention_mask", "decoder_input_ids", "decoder_attention_mask"}
    assert isinstance(batch, Batch)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.json", "{", "Expecting property name"),
        ("a.json", "", "Expecting value"),
        ("a.json", [], "none of them empty"),
        ("a.json", [[1], []], "none of them empty"),
        ("a.json", [1, 2.5], "expected a list of token ids"),
        ("a.json", [True], "expected a list of token ids"),
        ("a.json", [[[1]]], "expected a list of token ids"),
        ("a.json", [[1, -1]], "row 0 holds -1, no token id"),
        ("a.json", [[1], [10]], "row 1 holds 10, 10 or more are not in the vocabulary"),
        ("a.json", [10**30], "not in the vocabulary"),
        ("a.json", {"ids": [1]}, "found 'ids'"),
        ("a.json", {"attention_mask": [1]}, "no input_ids"),
        ("a.json", {"input_ids": [1, 2], "attention_mask": [1]}, "attention_mask: its shape is not that of input_ids"),
        ("a.json", {"input_ids": [1, 2], "attention_mask": [1, 2]}, "expected 0 and 1"),
        ("a.json", {"input_ids": [1, 2], "attention_mask": [0, 0]}, "a 1 in every row"),
        ("a.json", {"input_ids": [1], "decoder_input_ids": [[1], [2]]}, "2 rows, input_ids has 1"),
        ("a.json", {"input_ids": [1], "decoder_attention_mask": [1]}, "without decoder_input_ids"),
        ("a.npy", np.array([1.0]), "expected whole numbers, found float64"),
        ("a.npy", np.array([[[1]]]), "expected a list of token ids"),
        ("a.npy", np.array([None]), "found object"),
        ("a.npy", np.array(3), "expected a list of token ids"),
        ("a.safetensors", {"input_ids": torch.ones(2)}, "expected whole numbers, found F32"),
        ("a.safetensors", {"ids": torch.ones(2)}, "no input_ids"),
        ("a.txt", b"1 2", "expected a .json, .npy or .safetensors file"),
    ],
    ids=str,
)
def test_files_that_are_refused(tmp_path: Path, name: str, content: Any, said: str) -> None:
    path = _saved(tmp_path, name, content)
    with pytest.raises(RequestError) as caught:
        read_tokens(path, vocab=10)
    message = str(caught.value)
    assert message.startswith(f"--tokens {path}: ")
    assert said in message or name == "a.npy"
    assert "\n" not in message


@pytest.mark.parametrize("suffix", [".json", ".npy", ".safetensors"])
def test_no_file_and_no_bytes_are_one_line(tmp_path: Path, suffix: str) -> None:
    (tmp_path / f"empty{suffix}").write_bytes(b"")
    (tmp_path / f"noise{suffix}").write_bytes(b"\x93NUMPY\x01\x00\xff\xff" + bytes(range(256)))
    for stem in ("none", "empty", "noise"):
        with pytest.raises(RequestError) as caught:
            read_tokens(tmp_path / f"{stem}{suffix}")
        assert "\n" not in str(caught.value)
