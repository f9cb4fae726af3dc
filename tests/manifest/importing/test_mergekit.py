"""mergekit's architecture files as manifests: keys and ties, a line for the rest, and no claim on the block."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from blockaudit.errors import RequestError
from blockaudit.manifest.bind import bind
from blockaudit.manifest.check import check_manifest
from blockaudit.manifest.draft import Draft, encode
from blockaudit.manifest.importing import from_mergekit
from blockaudit.manifest.load import load
from blockaudit.records.manifest import Bound

LAYER = "blocks.${layer_index}."
SMALL: dict[str, Any] = {
    "model_type": "small",
    "architectures": ["SmallForCausalLM", "SmallLM"],
    "pre_weights": [{"name": "embed.weight", "vocabulary_axis": 0}],
    "num_layers_config_key": "depth",
    "layer_templates": {
        "weights": [
            {"name": f"{LAYER}norm.weight"},
            {"name": f"{LAYER}attn.weight"},
            {"name": f"{LAYER}attn.bias"},
            {"name": f"{LAYER}mlp.weight"},
            {"name": f"{LAYER}mlp.bias", "optional": True},
            {"name": f"{LAYER}scale", "force_dtype": "float32"},
        ]
    },
    "post_weights": [
        {"name": "last.${num_layers}.weight", "aliases": ["final.weight"]},
        {"name": "head.weight", "optional": True, "tied_names": ["embed.weight"]},
    ],
}


def _imported(folder: Path, given: Any) -> Draft:
    path = folder / "small.json"
    path.write_text(json.dumps(given))
    return from_mergekit(str(path))


def test_keys_and_ties_are_declared(tmp_path: Path) -> None:
    manifest = _imported(tmp_path, SMALL).manifest
    assert manifest.match.model_types == ["small"]
    assert list(manifest.match.classes) == ["SmallForCausalLM", "SmallLM"]
    bound = bind(manifest, {"depth": 2})
    assert {t.template: (t.optional, t.tied_to, t.layers) for t in bound.expected} == {
        "blocks.{l}.norm.weight": (False, None, (0, 1)),
        "blocks.{l}.attn.weight": (False, None, (0, 1)),
        "blocks.{l}.attn.bias": (False, None, (0, 1)),
        "blocks.{l}.mlp.weight": (False, None, (0, 1)),
        "blocks.{l}.mlp.bias": (True, None, (0, 1)),
        "blocks.{l}.scale": (False, None, (0, 1)),
        "embed.weight": (False, None, ()),
        "last.2.weight": (False, None, ()),
        "head.weight": (True, "embed.weight", ()),
    }
    assert all(t.unsized for t in bound.expected)


def test_nothing_of_the_block_is_claimed(tmp_path: Path) -> None:
    manifest = _imported(tmp_path, SMALL).manifest
    assert (manifest.evidence_label, manifest.source) == ("derived", "mergekit architecture small.json")
    assert manifest.branch_order == []
    assert manifest.stacks[0].branches == []
    known = {n: v.value for n, v in bind(manifest, {"depth": 2}).fields.items() if v.known and v.value is not None}
    # How many layers, and which keys are tied: nothing else.
    assert known == {"decoder.layers": 2, "tie.head.weight": False}


def test_it_passes_the_check_and_is_read_again(tmp_path: Path) -> None:
    drafted = _imported(tmp_path, SMALL)
    assert check_manifest(drafted.manifest) == []
    path = tmp_path / "manifest.json"
    path.write_text(encode(drafted.manifest))
    assert load(str(path)).manifest == drafted.manifest


def test_what_is_open_or_left_out_is_told(tmp_path: Path) -> None:
    given = {**SMALL, "surprise": 1, "layer_templates": {**SMALL["layer_templates"], "procedural_spaces": []}}
    given["pre_weights"] = [{**SMALL["pre_weights"][0], "is_embed": True}]
    said = _imported(tmp_path, given).remarks
    assert said[0] == "open: shapes, and which axis is the output; norms, branches, their order, placement and epsilon"
    assert "open: when a tie holds; it is bound to tie_word_embeddings, which the file does not name" in said
    assert "left out of 1 tensor or module: other names that it may have (first: last.{n_layers}.weight)" in said
    assert "left out of 1 tensor or module: the dtype that it must have (first: blocks.{l}.scale)" in said
    assert "left out of 1 tensor or module: which axis counts tokens (first: embed.weight)" in said
    assert [line.split()[1] for line in said if line.startswith("field ")] == [
        "pre_weights.is_embed",
        "layer_templates.procedural_spaces",
        "surprise",
    ]


def test_a_model_of_several_modules_has_a_stack_for_each(tmp_path: Path) -> None:
    vision = {**SMALL, "architectures": [], "model_type": "", "override_num_layers": 3, "post_weights": []}
    given = {
        "kind": "modular", "model_type": "both", "architectures": ["Both"], "tagalong_files": ["a.json"],
        "modules": {
            "text_decoder": {"architecture": SMALL, "weight_prefix": "text."},
            "vision-tower": {"architecture": vision, "weight_prefix": "seen.", "subfolder": "v", "odd": 1},
        },
    }  # fmt: skip
    drafted = _imported(tmp_path, given)
    manifest = drafted.manifest
    assert [(s.name, s.layers) for s in manifest.stacks] == [
        ("text_decoder", Bound(expr="n_layers")),
        ("vision_tower", Bound(expr="vision_tower_layers")),
    ]
    assert manifest.dims == {"n_layers": Bound(config="depth"), "vision_tower_layers": 3}
    keys = {t.template: t.layers for t in bind(manifest, {"depth": 1}).expected}
    assert keys["seen.blocks.{l}.attn.bias"] == (0, 1, 2)
    assert keys["text.blocks.{l}.attn.bias"] == (0,)
    assert "field modules.odd is not known and is left out" in drafted.remarks
    assert any("a sub-folder of its own (first: vision-tower)" in line for line in drafted.remarks)
    assert check_manifest(manifest) == []


def test_a_tie_to_nothing_is_no_tie(tmp_path: Path) -> None:
    given = {**SMALL, "post_weights": [{"name": "head.weight", "tied_names": ["not.there"]}]}
    drafted = _imported(tmp_path, given)
    assert all(t.tied_to is None for t in bind(drafted.manifest, {"depth": 1}).expected)
    assert any("a tie to a tensor that the file does not have (first: not.there)" in line for line in drafted.remarks)


def test_a_name_that_is_no_template_is_left_out_and_told(tmp_path: Path) -> None:
    next_layer = "blocks.${layer_index+1}.weight"
    drafted = _imported(tmp_path, {**SMALL, "post_weights": [{"name": next_layer}, {"name": "a{b-c}.weight"}]})
    said = f"left out of 2 tensors or modules: a name that is no template of ours (first: {next_layer})"
    assert said in drafted.remarks


def test_a_layer_before_the_last_is_a_symbol(tmp_path: Path) -> None:
    given = {**SMALL, "post_weights": [{"name": "x.${num_layers-1}.weight"}]}
    bound = bind(_imported(tmp_path, given).manifest, {"depth": 4})
    assert "x.3.weight" in {t.template for t in bound.expected}


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([], "expected an architecture of mergekit"),
        ({"model_type": "x"}, "expected an architecture of mergekit"),
        ({**SMALL, "pre_weights": [{"name": 3}]}, r"pre_weights\[0\]\.name"),
        ({**SMALL, "layer_templates": {}}, "weights"),
        ({"kind": "modular", "modules": {"a": 1}, "model_type": "x", "architectures": []}, "modules"),
    ],
)
def test_what_is_no_architecture_is_one_line(tmp_path: Path, given: Any, says: str) -> None:
    with pytest.raises(RequestError, match=says) as caught:
        _imported(tmp_path, given)
    assert "\n" not in str(caught.value)


def test_an_audit_by_it_finds_a_key_that_is_gone(tmp_path: Path) -> None:
    """No shape is claimed, so that none is wrong; a key that is not there is."""
    from blockaudit.pipeline import inspect

    tiny = Path(__file__).parents[3] / "fixtures" / "tiny_llama"
    names = ["input_layernorm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"]
    names += [f"self_attn.{x}_proj" for x in "qkvo"]
    given = {
        "model_type": "llama", "architectures": ["LlamaForCausalLM"],
        "pre_weights": [{"name": "model.embed_tokens.weight"}],
        "layer_templates": {"weights": [{"name": f"model.layers.${{layer_index}}.{n}.weight"} for n in names]},
        "post_weights": [{"name": "model.norm.weight"}, {"name": "lm_head.weight"}],
    }  # fmt: skip
    path = tmp_path / "manifest.json"
    path.write_text(encode(_imported(tmp_path, given).manifest))
    assert inspect(tiny, manifest=str(path)).findings == ()
    given["post_weights"].append({"name": "model.more.weight"})
    path.write_text(encode(_imported(tmp_path, given).manifest))
    assert [f.name for f in inspect(tiny, manifest=str(path)).findings] == ["missing-key"]
