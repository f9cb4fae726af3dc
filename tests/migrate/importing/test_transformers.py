"""transformers' own conversion mapping as a map: the same bytes as ours, and a line for what no operation says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from blockaudit.errors import RequestError
from blockaudit.manifest.load import load as load_manifest
from blockaudit.migrate.load import load
from blockaudit.migrate.plan import plan
from blockaudit.migrate.sides import source_side
from blockaudit.migrate.source import open_source
from blockaudit.migrate.work import lay
from blockaudit.pipeline.map_importing import import_map
from blockaudit.records.migration import Plan
from blockaudit.records.operations import Concat, PermuteRope, Split, Stack, Transpose
from tests.migrate.draft.sources import PAIRS
from tests.migrate.library.proving import stored, there

conversion: Any = pytest.importorskip("transformers.core_model_loading")


def _planned(name: str, source: Path) -> Plan:
    map_ = load(name)
    side = source_side(load_manifest(map_.map.source or ""), open_source(str(source), map_.map))
    return plan(lay(map_, side, load_manifest(map_.map.target)))


def test_mixtral_is_the_map_of_the_library(tmp_path: Path) -> None:
    found = import_map("transformers:mixtral")
    assert found.decided, (found.undecided, found.refused)
    assert (found.map.source, found.map.target) == ("mixtral", "mixtral_stacked")
    path = tmp_path / "imported.json"
    path.write_bytes(msgspec.json.encode(found.map))
    source = PAIRS["experts"].make(tmp_path / "source")
    mine, theirs = (_planned(name, source) for name in (str(path), "mixtral_stacked"))
    fed = [{key: (s.inputs, s.out_types[key]) for s in p.steps for key in s.outputs} for p in (mine, theirs)]
    assert fed[0].keys() == fed[1].keys()
    # The library takes gate and up of an expert together, transformers all gates and then all ups.
    assert {k: (sorted(i), t) for k, (i, t) in fed[0].items()} == {k: (sorted(i), t) for k, (i, t) in fed[1].items()}
    assert (mine.aliases, mine.verify) == (theirs.aliases, theirs.verify)
    one, two = (stored(there(n, source, tmp_path / d)) for n, d in ((str(path), "one"), ("mixtral_stacked", "two")))
    assert one.keys() == two.keys()
    assert all(torch.equal(one[key], tensor) for key, tensor in two.items())


def test_a_mapping_whose_keys_no_manifest_has_needs_a_target() -> None:
    with pytest.raises(RequestError, match="no manifest of the library has the keys that the mapping writes"):
        import_map("transformers:qwen3_moe")


def test_a_model_without_a_manifest_needs_a_source() -> None:
    with pytest.raises(RequestError, match="give that of the keys it reads"):
        import_map("transformers:minimax")


def test_a_template_of_several_branches_is_asked_once() -> None:
    found = import_map("transformers:deepseek_v3", target="deepseek_v3")
    fed = [target for rule in found.map.rules for target in rule.targets]
    assert len(fed) == len(set(fed))


def _translated(operations: list[Any], sources: int = 1, targets: int = 1, axes: tuple[str, ...] = ()) -> Any:
    from blockaudit.migrate.importing.operations import translated

    return translated(operations, sources, targets, axes)


@pytest.mark.parametrize(
    ("operations", "counts", "axes", "wanted"),
    [
        (
            [("MergeModulelist", {"dim": 0}), ("Concatenate", {"dim": 1})],
            (2, 1),
            ("e",),
            (Stack(dim=0, axis="e"), Concat(dim=1)),
        ),
        ([("Chunk", {"dim": 0})], (1, 3), (), (Split(dim=0),)),
        ([("Transpose", {})], (1, 1), (), (Transpose(dims=(0, 1)),)),
        ([("PermuteForRope", {})], (1, 1), (), (PermuteRope(heads="n_heads", from_="interleaved", to="half"),)),
        (
            [("PermuteForRope", {"inverse": True})],
            (1, 1),
            (),
            (PermuteRope(heads="n_heads", from_="half", to="interleaved"),),
        ),
    ],
)
def test_operations_are_translated(
    operations: list[tuple[str, dict[str, Any]]], counts: tuple[int, int], axes: tuple[str, ...], wanted: Any
) -> None:
    made = [getattr(conversion, name)(**words) for name, words in operations]
    assert _translated(made, *counts, axes) == (wanted, "")


@pytest.mark.parametrize(
    ("operation", "counts", "axes", "says"),
    [
        (("Interleave", {"dim": 1}), (1, 1), (), "Interleave (dim=1, inverse=False) has no counterpart"),
        (("Transpose", {"check_dims": True}), (1, 1), (), "Transpose (check_dims=True"),
        (("Concatenate", {"num_shards_attribute": "n"}), (2, 1), (), "Concatenate (dim=0, num_shards_attribute='n')"),
        (("Split", {}), (1, 2), (), "Split (dim=0) has no counterpart"),
        (("PermuteForRope", {"subconfig_key": "vision_config"}), (1, 1), (), "subconfig_key='vision_config'"),
        (("Transpose", {}), (1, 1), ("e",), "e is lost from the name"),
    ],
)
def test_what_no_operation_says_is_a_line(
    operation: tuple[str, dict[str, Any]], counts: tuple[int, int], axes: tuple[str, ...], says: str
) -> None:
    name, words = operation
    found, why = _translated([getattr(conversion, name)(**words)], *counts, axes)
    assert found == ()
    assert says in why


def test_rows_are_permuted_as_transformers_permutes_them() -> None:
    """Numbered rows of 2 heads of 4, by its own code and by ours."""
    from types import SimpleNamespace

    from blockaudit.migrate import ops
    from blockaudit.records.migration import Row

    rows = torch.arange(8.0).reshape(8, 1)
    op = conversion.PermuteForRope()
    wanted = op.convert({"q": rows}, ["q"], ["q"], SimpleNamespace(num_attention_heads=2))["q"]
    ours = PermuteRope(heads=2, from_="interleaved", to="half")
    found = ops.apply((ours,), (Row((), (rows,)),))[0].values[0]
    assert wanted.flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]
    assert torch.equal(found, wanted)


def test_layers_that_are_counted_anew_are_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers.conversion_mapping as mapping

    found = {"llama": [conversion.LayerPairCollapse()], "legacy": []}
    monkeypatch.setattr(mapping, "get_checkpoint_conversion_mapping", found.get)
    monkeypatch.setattr(conversion.LayerPairCollapse, "pattern", re.compile(r"layers\.(\d+)\.(mixer|mlp)"))
    drafted = import_map("transformers:llama", target="llama")
    said = [line for line in drafted.undecided if "mlp.up_proj" in line]
    assert said == [
        "model.layers.{l}.mlp.up_proj.weight: the layer's number is not in its new name as it was: layers are counted "
        "anew"
    ]
