from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from blockaudit.checkpoint.hashing import semantic_hash
from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.errors import RequestError
from tests.support.checkpoint import Draft, Tensor, trained, write

TENSORS = {f"layers.{n}.w": trained(f"layers.{n}.w", (40 + n, 33), "BF16") for n in range(7)}


def semantic(folder: Path, tensors: dict[str, Tensor], shards: int = 1) -> str:
    return semantic_hash(open_checkpoint(str(write(Draft(tensors, {"model_type": "any"}, shards), folder))))


def test_the_same_tensors_in_other_files_and_another_order_have_one_hash(tmp_path: Path) -> None:
    whole = semantic(tmp_path / "a", TENSORS)
    assert semantic(tmp_path / "b", dict(reversed(TENSORS.items()))) == whole
    assert semantic(tmp_path / "c", TENSORS, shards=3) == whole
    assert semantic(tmp_path / "d", dict(reversed(TENSORS.items())), shards=4) == whole


def test_a_pickle_of_the_same_tensors_has_the_same_hash(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file

    whole = semantic(tmp_path / "a", TENSORS)
    torch.save(load_file(tmp_path / "a" / "model.safetensors"), tmp_path / "w.pth")
    assert semantic_hash(open_checkpoint(str(tmp_path / "w.pth"))) == whole


@pytest.mark.parametrize("at", [0, 1319, 2639])
def test_one_changed_bit_changes_it(tmp_path: Path, at: int) -> None:
    first = TENSORS["layers.0.w"]
    data = bytearray(first.data)
    data[at] ^= 1
    changed = {**TENSORS, "layers.0.w": Tensor(first.dtype, first.shape, bytes(data))}
    assert semantic(tmp_path / "b", changed) != semantic(tmp_path / "a", TENSORS)


def test_a_name_a_shape_and_a_dtype_change_it(tmp_path: Path) -> None:
    first = TENSORS["layers.0.w"]
    rest = {key: tensor for key, tensor in TENSORS.items() if key != "layers.0.w"}
    others = [
        {**rest, "layers.0.v": first},
        {**rest, "layers.0.w": Tensor("BF16", (33, 40), first.data)},
        {**rest, "layers.0.w": Tensor("F16", first.shape, first.data)},
        rest,
    ]
    found = {semantic(tmp_path / str(n), tensors) for n, tensors in enumerate([TENSORS, *others])}
    assert len(found) == 5


def test_it_is_what_its_documentation_says(tmp_path: Path) -> None:
    from blake3 import blake3

    tensors = {"b": trained("b", (2, 3)), "a": trained("a", ())}
    text = "blockaudit/semantic/1\n"
    text += f'["a","F32",[],"{blake3(tensors["a"].data).hexdigest()}"]\n'
    text += f'["b","F32",[2,3],"{blake3(tensors["b"].data).hexdigest()}"]\n'
    assert semantic(tmp_path / "s", tensors) == hashlib.sha256(text.encode()).hexdigest()


def test_strided_tensors_are_refused_in_one_line(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({"w": torch.arange(6.0).reshape(2, 3).T}, tmp_path / "w.pth")
    with pytest.raises(RequestError, match=r"w: its elements do not lie side by side in w.pth: .* contiguous"):
        semantic_hash(open_checkpoint(str(tmp_path / "w.pth")))


def test_a_file_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    checkpoint = open_checkpoint(str(write(Draft(TENSORS, {"model_type": "any"}), tmp_path / "s")))
    with (tmp_path / "s" / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(RequestError, match="cut off while it was read"):
        semantic_hash(checkpoint)
