"""A draft is accepted, and moves what the library's own map moves, for every pair that the library has a map for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from blockaudit.manifest.load import load as load_manifest
from blockaudit.migrate.load import LoadedMap, load
from blockaudit.migrate.plan import plan
from blockaudit.migrate.sides import source_side
from blockaudit.migrate.source import open_source
from blockaudit.migrate.work import lay
from blockaudit.pipeline.map_drafting import MapDraft, draft_map
from blockaudit.pipeline.mapping import check_map
from blockaudit.records.migration import Plan
from blockaudit.records.operations import Slice
from tests.migrate.draft.sources import PAIRS, Pair, model
from tests.migrate.library.layouts import litgpt, megatron_llama, meta, nanogpt, neox, t5x, torchtitan
from tests.migrate.library.layouts.sizes import PLAIN, Sizes, tokens
from tests.migrate.library.proving import accepted, agree, computed, stored, there

pytest.importorskip("gguf")


def written(drafted: MapDraft, folder: Path) -> str:
    path = folder / "drafted.json"
    path.write_bytes(msgspec.json.encode(drafted.map))
    return str(path)


def _planned(map_: LoadedMap, source: Path) -> Plan:
    side = source_side(load_manifest(map_.map.source or ""), open_source(str(source), map_.map))
    return plan(lay(map_, side, load_manifest(map_.map.target)))


def _moved(found: Plan) -> set[tuple[Any, ...]]:
    """What goes where, by which operations; one that cuts nothing off does nothing."""
    moved: set[tuple[Any, ...]] = set()
    for step in found.steps:
        ops = [op for op in step.ops if not (isinstance(op, Slice) and op.stop == op.size)]
        said = tuple(
            (type(op).__name__, *((n, v) for n, v in _said(op).items() if n not in ("why", "size"))) for op in ops
        )
        moved.add((step.inputs, step.outputs, tuple(sorted(step.out_types.items())), said))
    return moved


def _said(op: Any) -> dict[str, Any]:
    said = {n: getattr(op, n) for n in op.__struct_fields__}
    # Without kv_heads there are as many as heads.
    return {**said, "kv_heads": said["kv_heads"] or said["heads"]} if said.get("heads") and "kv_heads" in said else said


@pytest.mark.parametrize("name", PAIRS)
def test_the_library_is_drafted_again(tmp_path: Path, name: str) -> None:
    pair: Pair = PAIRS[name]
    source = pair.make(tmp_path / "source")
    drafted = draft_map(source, pair.target, source_manifest=pair.named)
    assert (drafted.undecided, drafted.refused, drafted.hints) == ((), (), ())
    path = written(drafted, tmp_path)
    accepted(check_map(path, source))
    mine, theirs = (_planned(load(which), source) for which in (path, pair.map))
    ranked = any(step.ops and type(step.ops[0]).__name__ in ("Replicated", "Concat") for step in theirs.steps)
    if ranked and name.endswith("one rank"):
        # Of one rank no axis is cut: that it holds the whole is all that is shown.
        assert {s.outputs for s in mine.steps} == {s.outputs for s in theirs.steps}
    else:
        assert _moved(mine) == _moved(theirs)
    assert (mine.aliases, mine.verify, set(mine.dropped)) == (theirs.aliases, theirs.verify, set(theirs.dropped))


NUMBERS: dict[str, Any] = {
    "megatron_llama": lambda: megatron_llama.logits(
        megatron_llama.weights(PLAIN, 1), megatron_llama.config(PLAIN), tokens(PLAIN)
    ),
    "meta_llama of two ranks": lambda: meta.logits(meta.weights(PLAIN, 1), meta.config(PLAIN), tokens(PLAIN)),
    "meta_llama, frequencies stretched": lambda: meta.logits(
        meta.weights(PLAIN, 2), {**meta.config(PLAIN), "use_scaled_rope": True}, tokens(PLAIN)
    ),
    "litgpt": lambda: litgpt.logits(litgpt.weights(PLAIN, 4), litgpt.config(PLAIN), tokens(PLAIN)),
    "neox": lambda: neox.logits(
        neox.weights(Sizes(n_layers=3), 1), neox.config(Sizes(n_layers=3), parallel=True), tokens(PLAIN)
    ),
    "nanogpt": lambda: nanogpt.logits(nanogpt.weights(PLAIN, 6, masks=True), nanogpt.config(PLAIN), tokens(PLAIN)),
    "torchtitan": lambda: torchtitan.logits(torchtitan.weights(PLAIN, 5), torchtitan.config(PLAIN), tokens(PLAIN)),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_the_config_that_is_drafted_computes_the_same(tmp_path: Path, name: str) -> None:
    """The renamed and supplied config values, by what transformers makes of them."""
    pair = PAIRS[name]
    source = pair.make(tmp_path / "source")
    map_ = written(draft_map(source, pair.target, source_manifest=pair.named), tmp_path)
    agree(computed(there(map_, source, tmp_path / "target"), tokens(PLAIN)), NUMBERS[name]())


def test_the_config_of_a_gated_t5_is_found(tmp_path: Path) -> None:
    """Two fields of the block follow from one word: the word under which both agree is supplied."""
    pair = PAIRS["t5x, gated"]
    source = pair.make(tmp_path / "source")
    drafted = draft_map(source, "t5")
    assert drafted.map.supply["feed_forward_proj"] == "gated-gelu"
    target = there(written(drafted, tmp_path), source, tmp_path / "target")
    config = t5x.config(PLAIN, gated=True, tied=False)
    ids, decoded = tokens(PLAIN, 0).clamp(min=1), tokens(PLAIN, 1)[:, :7].clamp(min=1)
    agree(computed(target, ids, decoded), t5x.logits(t5x.weights(config, 1), config, ids, decoded))


@pytest.mark.parametrize("target", ["megatron_llama", "litgpt_llama", "torchtitan_llama", "phi3", "mistral"])
def test_llama_is_drafted_into_other_layouts_and_comes_back(tmp_path: Path, target: str) -> None:
    source = model("Llama", tmp_path / "source")
    out = draft_map(source, target)
    assert out.decided, (out.undecided, out.refused)
    moved = there(written(out, tmp_path), source, tmp_path / "moved")
    (tmp_path / "back").mkdir()
    back = draft_map(moved, "llama", source_manifest=target)
    assert back.decided, (back.undecided, back.refused)
    again = there(written(back, tmp_path / "back"), moved, tmp_path / "again")
    wanted, found = stored(source), stored(again)
    assert found.keys() == wanted.keys()
    assert all(torch.equal(found[key], tensor) for key, tensor in wanted.items())
