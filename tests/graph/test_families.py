"""The library's manifests against the operators that transformers' classes run, field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from blockaudit import pipeline
from blockaudit.graph import witness
from blockaudit.manifest.bind import bind
from blockaudit.manifest.load import library
from blockaudit.reconcile.contract import same
from blockaudit.resources import handmade_ids
from tests.families import models

# Fields that no operator of an eval graph shows, or that headers decide.
SILENT = (".bias.", ".sources.", ".dropout.", "tie.", ".layers", ".owner", ".residual.dtype")

# One config field flipped: the executed graph must say what the flipped manifest says.
FLIPS: list[tuple[str, dict[str, Any]]] = [
    ("gpt_neox", {"use_parallel_residual": False}),
    ("opt", {"do_layer_norm_before": False}),
    ("opt", {"_remove_final_layer_norm": True}),
    ("opt", {"word_embed_proj_dim": 16}),
    ("stablelm", {"use_parallel_residual": True}),
    ("stablelm", {"qk_layernorm": True}),
    ("phi", {"qk_layernorm": True}),
    ("cohere", {"use_qk_norm": True}),
    ("granite", {"residual_multiplier": 0.22, "embedding_multiplier": 12.0, "logits_scaling": 8.0}),
    ("bert", {"layer_norm_eps": 1e-5}),
    ("llama", {"rms_norm_eps": 1e-5}),
    ("bloom", {"apply_residual_connection_post_layernorm": True}),
    ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 2}),
    ("falcon", {"parallel_attn": False}),
    ("gpt2", {"add_cross_attention": True}),
    ("bert", {"is_decoder": True, "add_cross_attention": True}),
    ("albert", {"inner_group_num": 2}),
    ("bart", {"scale_embedding": True}),
    ("bart", {"architectures": ["BartForCausalLM"]}),
    ("llama", {"num_hidden_layers": 16}),
    ("albert", {"num_hidden_layers": 12}),
    # The layers with experts begin after those that a deep stack is cut to.
    ("deepseek_v3", {"num_hidden_layers": 14, "first_k_dense_replace": 11}),
    ("gemma2", {"final_logit_softcapping": None, "attn_logit_softcapping": 20.0}),
]


def _config(family: str, **changed: Any) -> dict[str, Any]:
    """The config.json of the tiny model, with fields changed."""
    from transformers import CONFIG_MAPPING

    special = {k: v for k, v in models.SPECIAL.items() if family in ("phi3", "glm4")}
    data = CONFIG_MAPPING[family](**{**models.CONFIGS[family], **special, **changed}).to_dict()
    return json.loads(json.dumps({**data, "model_type": family}, default=str))


def _disagreements(family: str, config: dict[str, Any]) -> tuple[list[tuple[str, Any, Any]], list[str]]:
    bound = bind(library(family).manifest, config)
    executed = witness.testify(bound, config)
    assert executed.failure == ""
    assert executed.unread == ()
    said = executed.testimony.statements
    wrong = [
        (f, v.value, said[f].value)
        for f, v in bound.fields.items()
        if f in said and v.known and not same(v.value, said[f].value)
    ]
    silent = [f for f, v in bound.fields.items() if v.known and f not in said and not any(s in f for s in SILENT)]
    return wrong, silent


@pytest.mark.parametrize("family", handmade_ids())
def test_the_library_agrees_with_execution(family: str) -> None:
    assert _disagreements(family, _config(family)) == ([], [])


@pytest.mark.parametrize(("family", "changed"), FLIPS, ids=[f"{f}-{'-'.join(c)}" for f, c in FLIPS])
def test_a_flipped_field_is_executed(family: str, changed: dict[str, Any]) -> None:
    assert _disagreements(family, _config(family, **changed)) == ([], [])


@pytest.mark.parametrize(
    ("family", "changed", "rules"),
    [
        ("gpt_neox", {"use_parallel_residual": False}, {"parallel-sequential-mismatch"}),
        ("llama", {"rms_norm_eps": 1e-5}, {"epsilon-mismatch"}),
        ("opt", {"do_layer_norm_before": False}, {"placement-mismatch", "final-norm-missing"}),
        ("granite", {"residual_multiplier": 0.5}, {"branch-scale-mismatch"}),
        ("gemma2", {"final_logit_softcapping": 20.0}, {"logit-scale-mismatch"}),
    ],
)
def test_a_pinned_manifest_is_held_against_the_graph(
    family: str, changed: dict[str, Any], rules: set[str], tmp_path: Path
) -> None:
    from blockaudit.manifest.draft import encode

    models.build(family).save_pretrained(tmp_path)
    drafted = pipeline.draft(tmp_path, pin=True, level="graph").manifest
    assert drafted.witness == "graph"
    pinned = tmp_path.with_suffix(".json")
    pinned.write_text(encode(drafted), encoding="utf-8")
    assert pipeline.inspect(tmp_path, manifest=str(pinned), level="graph").verdict == "accepted"
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}), encoding="utf-8")
    report = pipeline.inspect(tmp_path, manifest=str(pinned), level="graph")
    assert report.verdict == "rejected"
    assert rules <= {f.name for f in report.findings if f.severity == "error"}


def test_a_base_class_has_no_logits_to_scale(tmp_path: Path) -> None:
    models.build("llama").base_model.save_pretrained(tmp_path)
    report = pipeline.inspect(tmp_path, level="graph")
    assert report.verdict == "accepted"
    assert not [r.field for r in report.contract if r.field.startswith("logits.")]


def test_a_class_that_transformers_lacks_leaves_the_audit_unverified(tmp_path: Path) -> None:
    models.build("llama").save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "architectures": ["LlamaForCausalLM"], "model_type": "llama_from_nowhere"}))
    report = pipeline.inspect(tmp_path, manifest="llama", level="graph")
    assert (report.verdict, [f.name for f in report.findings]) == ("unverified", ["graph-unclassified"])
    assert "has no model type 'llama_from_nowhere' to build" in report.findings[0].message
