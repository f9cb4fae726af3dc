from __future__ import annotations

import struct
import sys
from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

from blockaudit.checkpoint.gguf.metadata import MODEL_TYPES
from blockaudit.checkpoint.source import open_checkpoint
from tests.support.audit import Outcome, inspect
from tests.support.gguf import Change, Draft, built, family, llama, numbers, write

NORM = "blk.1.ffn_norm.weight"


def audit(tmp_path: Path, *changes: Change, argv: tuple[str, ...] = ()) -> Outcome:
    return inspect(built(*changes)(tmp_path / "ckpt"), *argv)


def stored(outcome: Outcome, field: str) -> object:
    assert outcome.report is not None, outcome.err
    return next(row["stored"] for row in outcome.report["contract"] if row["field"] == field)


def evidence(outcome: Outcome, field: str) -> str:
    assert outcome.report is not None, outcome.err
    return next(row["evidence"]["stored"] for row in outcome.report["contract"] if row["field"] == field)


# -- what is read -----------------------------------------------------------------------------------------------------


def test_a_sound_file(tmp_path: Path) -> None:
    outcome = audit(tmp_path)
    assert (outcome.status, outcome.grave, outcome.names) == (0, [], ["layout-converted"])
    assert outcome.report is not None
    assert outcome.report["subject"]["format"] == "gguf"
    assert outcome.report["manifest"]["id"] == "llama"
    assert stored(outcome, "decoder.final_norm.epsilon") == 1e-5
    assert "llama.attention.layer_norm_rms_epsilon" in evidence(outcome, "decoder.final_norm.epsilon")
    assert stored(outcome, "tie.output.weight") is True


def test_the_same_by_its_file_and_under_any_name(tmp_path: Path) -> None:
    folder = built()(tmp_path)
    assert inspect(folder / "model.gguf").status == 0
    (folder / "model.gguf").rename(folder / "weights")
    assert inspect(folder / "weights").status == 0


@pytest.mark.parametrize("architecture", sorted({*MODEL_TYPES} - {"llama"}))
def test_every_architecture_is_accepted_and_a_lost_norm_is_named(architecture: str, tmp_path: Path) -> None:
    it = family(architecture, MODEL_TYPES[architecture])
    outcome = inspect(write(tmp_path / "whole.gguf", it))
    assert (outcome.status, outcome.grave) == (0, []), outcome.out
    norms = [key for key in it.tensors if key.startswith("blk.1.") and key.endswith("norm.weight")]
    if norms:  # OLMo's norms have no weights
        del it.tensors[norms[0]]
        outcome = inspect(write(tmp_path / "lost.gguf", it))
        assert outcome.status == 1
        assert any(norms[0] in f["tensors"] for f in outcome.findings), outcome.out


def test_experts_lie_in_one_tensor_and_choose_the_manifest(tmp_path: Path) -> None:
    it = family("llama", "mixtral")
    assert it.tensors["blk.0.ffn_gate_exps.weight"].shape == (4, 12, 8)
    outcome = inspect(write(tmp_path / "moe.gguf", it))
    assert outcome.status == 0, outcome.out
    assert outcome.report is not None
    assert outcome.report["manifest"]["id"] == "mixtral"
    it.tensors["blk.0.ffn_gate_exps.weight"] = numbers((3, 12, 8))
    assert inspect(write(tmp_path / "fewer.gguf", it)).names.count("shape-mismatch") == 1


def test_a_head_of_its_own_and_rotary_factors(tmp_path: Path) -> None:
    outcome = audit(
        tmp_path,
        lambda it: it.tensors.update({"output.weight": numbers((16, 8)), "rope_freqs.weight": numbers((2,), 1.0)}),
    )
    assert (outcome.status, outcome.grave) == (0, [])
    assert stored(outcome, "tie.output.weight") is False


def test_biases_of_a_family_that_has_a_flag_for_them(tmp_path: Path) -> None:
    def biased(it: Draft) -> None:
        for layer in range(2):
            for name, size in (("q", 8), ("k", 4), ("v", 4), ("output", 8)):
                it.tensors[f"blk.{layer}.attn_{name}.bias"] = numbers((size,))

    outcome = audit(tmp_path, biased)
    assert (outcome.status, outcome.grave) == (0, []), outcome.out


def test_packed_types_have_their_logical_shapes(tmp_path: Path) -> None:
    it = llama()
    path = tmp_path / "packed.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    packed = gguf.quantize(numbers((4, 64)), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("token_embd.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("output_norm.weight", it.tensors["output_norm.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    tensor = open_checkpoint(str(path)).tensors["token_embd.weight"]
    assert (tensor.dtype, tensor.shape, tensor.nbytes) == ("Q8_0", (4, 64), 8 * 34)
    outcome = inspect(path, "--level", "values")
    assert outcome.status == 2
    assert "Q8_0" in outcome.err


def test_values(tmp_path: Path) -> None:
    assert audit(tmp_path, argv=("--level", "values")).status == 0

    def spoilt(it: Draft) -> None:
        it.tensors["blk.0.attn_q.weight"][1, 2] = np.nan

    outcome = audit(tmp_path, spoilt, argv=("--level", "values"))
    assert (outcome.status, outcome.grave) == (1, ["non-finite-values"])


# -- what is wrong with the model -------------------------------------------------------------------------------------


def test_a_lost_norm(tmp_path: Path) -> None:
    outcome = audit(tmp_path, lambda it: it.tensors.pop(NORM))
    assert (outcome.status, outcome.grave) == (1, ["norm-missing"])
    assert outcome.findings[0]["tensors"] == [NORM]


def test_a_wrong_shape(tmp_path: Path) -> None:
    outcome = audit(tmp_path, lambda it: it.tensors.update({"blk.0.ffn_up.weight": numbers((11, 8))}))
    assert (outcome.status, outcome.grave) == (1, ["shape-mismatch"])


def test_another_layer_count(tmp_path: Path) -> None:
    outcome = audit(tmp_path, lambda it: it.values.update(block_count=3))
    assert (outcome.status, outcome.grave) == (1, ["layer-count-mismatch"])
    assert "config.json" not in outcome.out


def test_an_epsilon_that_is_not_the_pinned_one(tmp_path: Path) -> None:
    manifest = Path(__file__).parents[2] / "manifests" / "llama.json"
    held = tmp_path / "held.json"
    held.write_text(
        manifest.read_text().replace('"config": "rms_norm_eps"', '"pinned": 1e-06, "config": "rms_norm_eps"')
    )
    outcome = audit(tmp_path, argv=("--manifest", str(held)))
    assert (outcome.status, outcome.grave) == (1, ["epsilon-mismatch"])
    assert "llama.attention.layer_norm_rms_epsilon" in outcome.findings[0]["evidence"]


def test_an_epsilon_that_is_not_there(tmp_path: Path) -> None:
    outcome = audit(tmp_path, lambda it: it.values.pop("attention.layer_norm_rms_epsilon"))
    assert outcome.status == 3


def test_a_norm_of_one_plus_weight_that_was_not_folded(tmp_path: Path) -> None:
    it = family("gemma2", "gemma2")
    for key in it.tensors:
        if key.endswith("norm.weight"):
            it.tensors[key] = it.tensors[key] - 1
    outcome = inspect(write(tmp_path / "gemma.gguf", it))
    assert outcome.grave == ["scale-offset-mismatch"]
    assert outcome.findings[0]["severity"] == "warning"


def test_an_architecture_that_is_not_held_against_anything(tmp_path: Path) -> None:
    it = llama()
    it.architecture = "rwkv6"
    outcome = inspect(write(tmp_path / "model.gguf", it))
    assert (outcome.status, outcome.grave) == (3, ["unknown-architecture"])


# -- parts ------------------------------------------------------------------------------------------------------------


def test_a_split_file(tmp_path: Path) -> None:
    folder = write(tmp_path / "model.gguf", llama(), parts=8)
    names = sorted(p.name for p in folder.iterdir())
    assert len(names) > 1
    for source in (folder, folder / names[-1]):
        outcome = inspect(source)
        assert (outcome.status, outcome.grave) == (0, []), outcome.out
    assert outcome.report is not None
    assert outcome.report["subject"]["files"] == names
    (folder / names[1]).unlink()
    assert inspect(folder).grave == ["shard-missing"]


# -- what is wrong with the file --------------------------------------------------------------------------------------


def spoil(tmp_path: Path, change: Callable[[bytes], bytes]) -> Outcome:
    path = write(tmp_path / "model.gguf", llama())
    path.write_bytes(change(path.read_bytes()))
    return inspect(path)


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("truncated-file", lambda raw: raw[:-40]),
        ("truncated-file", lambda raw: raw[:100]),
        ("truncated-file", lambda raw: raw[:6]),
        ("header-gap", lambda raw: raw + bytes(64)),
        ("corrupt-header", lambda raw: raw[:8] + struct.pack("<Q", 2**60) + raw[16:]),
        ("corrupt-header", lambda raw: raw[:16] + struct.pack("<Q", 2**60) + raw[24:]),
        ("unreadable-file", lambda raw: raw[:4] + struct.pack("<I", 1) + raw[8:]),
        ("unreadable-file", lambda raw: raw[:4] + struct.pack(">I", 3) + raw[8:]),
        ("duplicate-key", lambda raw: raw.replace(b"blk.1.ffn_norm.weight", b"blk.0.ffn_norm.weight")),
        ("corrupt-header", lambda raw: raw.replace(b"blk.1.ffn_norm.weight", b"blk.1.\xff\xfe\xfd_norm.weight")),
    ],
    ids=range(10),
)
def test_damaged_files(rule: str, change: Callable[[bytes], bytes], tmp_path: Path) -> None:
    outcome = spoil(tmp_path, change)
    assert outcome.status == 1
    assert rule in outcome.grave, outcome.out


# -- what is not done -------------------------------------------------------------------------------------------------


def test_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from blockaudit.checkpoint.gguf import tables

    path = write(tmp_path / "model.gguf", llama())
    tables._package.cache_clear()
    tables.block_sizes.cache_clear()
    monkeypatch.setitem(sys.modules, "gguf", None)
    try:
        outcome = inspect(path)
    finally:
        monkeypatch.undo()
        tables._package.cache_clear()
    assert outcome.status == 2
    assert "blockaudit[gguf]" in outcome.err


def test_graph_is_refused_in_one_line(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    outcome = audit(tmp_path, argv=("--level", "graph"))
    assert outcome.status == 2
    assert len(outcome.err.splitlines()) == 1
    assert "GGUF" in outcome.err
