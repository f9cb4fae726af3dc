"""Folders that torch.distributed.checkpoint wrote, as the source of a conversion."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("safetensors")

from blockaudit.checkpoint.source import open_checkpoint  # noqa: E402
from blockaudit.errors import RequestError  # noqa: E402
from blockaudit.migrate.convert.transaction import convert  # noqa: E402
from blockaudit.records.operations import Operation, Scale, Transpose  # noqa: E402
from tests.migrate.convert import hand  # noqa: E402
from tests.migrate.library.layouts import megatron_llama  # noqa: E402
from tests.migrate.library.layouts.sizes import PLAIN  # noqa: E402
from tests.migrate.library.proving import Weights, same_bytes, saved, stored, there  # noqa: E402
from tests.support import two_ranks  # noqa: E402
from tests.support.distributed import FILE, LLAMA, change, cut, save, weights  # noqa: E402
from tests.support.maps import command  # noqa: E402

UP = "model.layers.1.mlp.up_proj.weight"  # BF16 [256, 96]
DOWN = "model.layers.1.mlp.down_proj.weight"


def types(folder: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {key: (t.dtype, t.shape) for key, t in open_checkpoint(str(folder)).tensors.items()}


def renamed(folder: Path, target: Path, **options: Any) -> Weights:
    """Every tensor under its own name, written anew."""
    hand.run(folder, target, hand.plan(hand.renamed(types(folder), "")), **options)
    return hand.loaded(target)


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small LLaMA, saved by two processes."""
    folder = tmp_path_factory.mktemp("two")
    command = [sys.executable, two_ranks.__file__, str(LLAMA / "model.safetensors"), str(folder / "ckpt")]
    ranks = [subprocess.Popen([*command, str(folder / "store"), str(rank)]) for rank in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    shutil.copy(LLAMA / "config.json", folder / "ckpt")
    return folder / "ckpt"


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return save(tmp_path / "one", weights())


# -- what comes out ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hashing", [True, False])
def test_what_one_process_saved(one: Path, tmp_path: Path, *, hashing: bool) -> None:
    same_bytes(renamed(one, tmp_path / "target", hashing=hashing), weights())


@pytest.mark.parametrize("hashing", [True, False])
def test_what_two_processes_saved(two: Path, tmp_path: Path, *, hashing: bool) -> None:
    same_bytes(renamed(two, tmp_path / "target", hashing=hashing), weights())


def test_the_model_in_a_training_state(tmp_path: Path) -> None:
    moments = {"state": {"x": {"exp_avg": torch.zeros(3)}}, "param_groups": [{"lr": 0.1}]}
    folder = save(tmp_path / "ckpt", {"app": {"model": weights(), "optimizer": moments}})
    same_bytes(renamed(folder, tmp_path / "target"), weights())


def test_tensors_without_elements_and_without_axes(tmp_path: Path) -> None:
    state = {"none": torch.zeros(0, 4), "one": torch.tensor(7.0), "flags": torch.tensor([True, False])}
    found = renamed(save(tmp_path / "ckpt", state), tmp_path / "target")
    same_bytes({k: t.reshape(-1) for k, t in found.items()}, {k: t.reshape(-1) for k, t in state.items()})
    assert {k: t.shape for k, t in found.items()} == {k: t.shape for k, t in state.items()}


def test_the_hashes_are_those_of_the_same_tensors_in_one_file(two: Path, tmp_path: Path) -> None:
    for source, target in ((two, "a"), (LLAMA, "b")):
        renamed(source, tmp_path / target)
    a, b = hand.report(tmp_path / "a"), hand.report(tmp_path / "b")
    assert (a.source.semantic, a.target.semantic) == (b.source.semantic, b.target.semantic)
    held = hand.hashes(two)
    assert {row.name: row.sha256 for row in a.source.files} == {
        name: held[name] for name in (".metadata", "__0_0.distcp", "__1_0.distcp")
    }


@pytest.mark.parametrize(
    ("operation", "wanted"),
    [(Transpose(dims=(0, 1)), lambda t: t.T), (Scale(2.0), lambda t: 2 * t)],
    ids=["as a whole", "by element"],
)
def test_operations_on_what_is_cut(
    operation: Operation, wanted: Callable[[torch.Tensor], torch.Tensor], two: Path, tmp_path: Path
) -> None:
    found = types(two)
    steps = [hand.step(found, [key], [operation], [key]) for key in (UP, DOWN)]
    hand.run(two, tmp_path / "target", hand.plan(steps))
    same_bytes(hand.loaded(tmp_path / "target"), {key: wanted(weights()[key]).contiguous() for key in (UP, DOWN)})


def test_the_same_command_again_finds_it_there(two: Path, tmp_path: Path) -> None:
    request = hand.request(two, tmp_path / "target", hand.plan(hand.renamed(types(two), "")))
    assert not convert(request).was_there
    assert convert(request).was_there


def test_a_run_that_was_ended_is_taken_up(two: Path, tmp_path: Path) -> None:
    class EndedError(Exception):
        pass

    def end(_: str, done: int, total: int) -> None:
        if done > total // 2:
            raise EndedError

    request = hand.request(two, tmp_path / "target", hand.plan(hand.renamed(types(two), "")))
    with pytest.raises(EndedError):
        convert(hand.request(two, tmp_path / "target", request.plan, progress=end))
    assert any("taken up" in line for line in convert(request).remarks)
    same_bytes(hand.loaded(tmp_path / "target"), weights())


# -- what is refused, with nothing written ----------------------------------------------------------------------------


def refused(folder: Path, target: Path) -> str:
    plan = hand.plan(hand.renamed(types(folder), ""))
    with pytest.raises(RequestError) as error:
        hand.run(folder, target, plan)
    assert not target.exists()
    assert not hand.partial(target).exists()
    assert "\n" not in str(error.value)
    return str(error.value)


@pytest.mark.parametrize(
    ("boxes", "says"),
    [
        ([([0, 0], [200, 96]), ([201, 0], [55, 96])], "96 are nowhere"),
        ([([0, 0], [200, 96]), ([199, 0], [57, 96])], "share elements"),
        ([([0, 0], [128, 96]), ([128, 0], [128, 96])], r"BF16 \[256, 96\] is stored where .* BF16 \[128, 96\]"),
    ],
)
def test_chunks_that_are_not_the_tensor(boxes: Any, says: str, one: Path, tmp_path: Path) -> None:
    assert re.search(f"{UP}.*{says}", refused(change(one, cut(UP, *boxes)), tmp_path / "target"))


def test_chunks_that_are_missing_reject_the_conversion(one: Path, tmp_path: Path) -> None:
    rules = [{"from": key, "to": key} for key in types(one)]
    map_ = {"schema": "blockaudit/map/1", "name": "same", "target": "llama", "rules": rules}
    (tmp_path / "map.json").write_text(json.dumps(map_))
    argv = ("convert", str(one), str(tmp_path / "target"), "--map", str(tmp_path / "map.json"), "--format", "json")
    change(one, cut(UP, ([0, 0], [200, 96])))
    outcome = command(*argv)
    assert outcome.status == 1, outcome.out + outcome.err
    assert "corrupt-header" in outcome.names
    assert not (tmp_path / "target").exists()
    assert not hand.partial(tmp_path / "target").exists()


def test_a_chunk_that_torch_has_turned(tmp_path: Path) -> None:
    folder = save(tmp_path / "ckpt", weights() | {UP: weights()[UP].T.contiguous().T})
    said = refused(folder, tmp_path / "target")
    assert "do not lie side by side" in said
    assert "dcp_to_torch" in said


def test_a_chunk_that_was_packed(one: Path, tmp_path: Path) -> None:
    def pack(metadata: Any) -> None:
        for index, info in metadata.storage_data.items():
            info.transform_descriptors = ["zstd"] if index.fqn == UP else None

    assert "packed by an extension" in refused(change(one, pack), tmp_path / "target")


class Bomb:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return Path.touch, (self.path,)


def test_nothing_of_a_chunk_is_executed(one: Path, tmp_path: Path) -> None:
    torch.save(Bomb(tmp_path / "ran"), tmp_path / "bomb")
    held, bomb = (one / FILE).read_bytes(), (tmp_path / "bomb").read_bytes()
    (one / FILE).write_bytes(held + bomb)

    def planted(metadata: Any) -> None:
        info = next(info for index, info in metadata.storage_data.items() if index.fqn == UP)
        info.offset, info.length = len(held), len(bomb)

    assert re.search(f"{UP}.*its pickle asks for .* nothing was run", refused(change(one, planted), tmp_path / "t"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", [".metadata", FILE])
def test_a_source_that_changes_is_noticed(name: str, one: Path, tmp_path: Path) -> None:
    def touch(_: str, done: int, total: int) -> None:
        if done == total:
            data = (one / name).read_bytes()
            (one / name).unlink()
            (one / name).write_bytes(data)

    plan = hand.plan(hand.renamed(types(one), ""))
    with pytest.raises(RequestError, match="changed while it was read"):
        hand.run(one, tmp_path / "target", plan, progress=touch)
    assert not (tmp_path / "target").exists()


def test_metadata_that_is_not_what_was_planned(one: Path, tmp_path: Path) -> None:
    request = hand.request(one, tmp_path / "target", hand.plan(hand.renamed(types(one), "")))
    state = weights()
    del state[UP]
    shutil.rmtree(one)
    save(one, state)
    with pytest.raises(RequestError, match="changed while it was read"):
        convert(request)


# -- Megatron-core ----------------------------------------------------------------------------------------------------


def stacked(found: Weights) -> Weights:
    """All layers of one name in one tensor, the layer first, as Megatron-core saves them."""
    layers: dict[str, list[torch.Tensor]] = {}
    for key, tensor in found.items():
        layers.setdefault(re.sub(r"^decoder\.layers\.\d+", "decoder.layers", key), []).append(tensor)
    return {k: torch.stack(v) if k.startswith("decoder.layers.") else v[0] for k, v in layers.items()}


@pytest.mark.parametrize("layout", ["stacked", "layers"])
def test_megatron_names_and_one_file_give_the_same_tensors(layout: str, tmp_path: Path) -> None:
    config, held = megatron_llama.config(PLAIN), megatron_llama.weights(PLAIN, 1)
    state: Weights = stacked(held) if layout == "stacked" else held
    moments = {f"optimizer.state.exp_avg.{key}": torch.zeros(3) for key in state}
    folder = save(tmp_path / "dist", {**state, **moments}, config=False)
    (folder / "metadata.json").write_text(json.dumps({"sharded_backend": "torch_dist", "sharded_backend_version": 1}))
    torch.save({"iteration": 7}, folder / "common.pt")
    (folder / "config.json").write_text(json.dumps(config))
    wanted = there("megatron_llama", saved(held, config, tmp_path / "file"), tmp_path / "a")
    target = there("megatron_llama", folder, tmp_path / "b")
    same_bytes(stored(target), stored(wanted))
    assert hand.report(target).source.semantic == hand.report(wanted).source.semantic
    rollback = json.loads((target / "rollback.json").read_text())
    assert {".metadata", FILE, "common.pt", "config.json", "metadata.json"} <= {f["name"] for f in rollback["files"]}
