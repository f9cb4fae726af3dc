"""What a manifest implies where config.json is silent is what the config class of that model type implies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

from blockaudit import pipeline, resources  # noqa: E402
from blockaudit.manifest.bind import bind  # noqa: E402
from blockaudit.manifest.load import library  # noqa: E402
from blockaudit.records.bound import Resolved  # noqa: E402

TYPES = [(name, t) for name in resources.handmade_ids() for t in library(name).manifest.match.model_types]
# Lists of one entry a layer are worked out from the layer number instead, and of labels the number counts. A null rank,
# which is no low rank, would be taken for silence if silence meant 1536; and of MTP layers the class runs none.
APART = {
    "": {"dims.layer_types", "dims.labels"},
    "deepseek_v3": {
        "dims.q_rank", "dims.n_mtp", "fields.decoder.self_attention.inner.q_a.present",
        "fields.decoder.self_attention.bias.q",
    },
    # The head belongs to the larger model's class, whose config has another default than that of its text stack.
    "qwen2_5_omni_text": {"fields.tie.lm_head.weight"},
}  # fmt: skip


def _said(family: str, config: dict[str, Any]) -> dict[str, Any]:
    bound = bind(library(family).manifest, config)
    values: dict[str, dict[str, Resolved]] = {"fields": bound.fields, "dims": bound.dims, "functions": bound.functions}
    # A switch that is off and one that is not there are one thing.
    return {f"{what}.{key}": v.value or None for what, found in values.items() for key, v in found.items()}


@pytest.mark.parametrize(("family", "model_type"), TYPES)
def test_a_silent_config_means_what_its_class_means(family: str, model_type: str) -> None:
    silent = _said(family, {"model_type": model_type})
    spoken = _said(family, CONFIG_MAPPING[model_type]().to_dict())
    apart = APART[""] | APART.get(model_type, set())
    wrong = {key: (value, spoken.get(key)) for key, value in silent.items() if value != spoken.get(key)}
    assert {key: both for key, both in wrong.items() if key not in apart} == {}


@pytest.mark.parametrize(
    ("name", "model_type", "epsilon"), [("qwen2_vl", "qwen2_vl_text", 1e-5), ("llava", "llama", 1e-6)]
)
@pytest.mark.parametrize("level", ["headers", "graph"])
def test_a_text_stack_whose_epsilon_is_left_to_its_class(
    name: str, model_type: str, epsilon: float, level: str, tmp_path: Path
) -> None:
    from tests.families.test_multimodal import saved

    path = saved(name, tmp_path) / "config.json"
    config = json.loads(path.read_text())
    assert (config["text_config"].pop("rms_norm_eps"), config["text_config"]["model_type"]) == (epsilon, model_type)
    path.write_text(json.dumps(config))
    report = pipeline.inspect(tmp_path, level=level)
    assert (report.verdict, [f.name for f in report.findings if f.severity != "note"]) == ("accepted", [])
    (row,) = [r for r in report.contract if r.field == "decoder.final_norm.epsilon"]
    assert {s.value for s in row.statements.values()} == {epsilon}
    assert ("executed" in row.statements) == (level == "graph")
