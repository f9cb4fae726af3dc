"""What transformers writes, of every family of the library and every class of it, is accepted without a word."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from blockaudit import pipeline, resources  # noqa: E402
from blockaudit.records.report import Report  # noqa: E402
from tests.families import models  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

FAMILIES = sorted(models.CONFIGS)
VARIANTS = [(family, name) for family, named in models.VARIANTS.items() for name in named]
CLASSES = [(family, name) for family in FAMILIES for name in models.class_names(family)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def accepted(source: Path, level: str = "headers") -> Report:
    """The report, which has an accepted verdict and says nothing but notes."""
    report = pipeline.inspect(source, level=level)
    grave = [(f.name, f.severity, f.subject, f.message) for f in report.findings if f.severity != "note"]
    assert grave == []
    assert report.verdict == "accepted", [r.field for r in report.contract if r.required and not r.known]
    return report


def test_the_library_has_no_family_without_a_model() -> None:
    assert tuple(FAMILIES) == resources.handmade_ids()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_main_class(family: str, tmp_path: Path) -> None:
    models.build(family).save_pretrained(tmp_path)
    report = accepted(tmp_path, "values")
    assert [f.name for f in report.findings] == []
    assert report.manifest is not None
    assert (report.manifest.id, report.manifest.chosen_by, report.manifest.confidence) == (family, "config", 1.0)


@pytest.mark.parametrize(("family", "variant"), VARIANTS)
def test_a_variant(family: str, variant: str, tmp_path: Path) -> None:
    models.build(family, **models.VARIANTS[family][variant]).save_pretrained(tmp_path)
    assert [f.name for f in accepted(tmp_path).findings] == []


@pytest.mark.parametrize(("family", "name"), CLASSES)
def test_a_class(family: str, name: str, tmp_path: Path) -> None:
    models.build(family, name).save_pretrained(tmp_path)
    assert "unexpected-key" not in [f.name for f in accepted(tmp_path).findings]


def test_a_field_that_starcoder2_ignores_is_said_to_be_ignored(tmp_path: Path) -> None:
    """Its code always runs LayerNorm, whatever norm_type says."""
    models.build("starcoder2", norm_type="rms_norm").save_pretrained(tmp_path)
    report = pipeline.inspect(tmp_path)
    assert [(f.name, f.observed) for f in report.findings] == [("config-field-unconsumed", "rms_norm")]
    assert report.verdict == "accepted"


@pytest.mark.parametrize("family", FAMILIES)
def test_nothing_is_read_off_the_config_that_the_keys_show(family: str, tmp_path: Path) -> None:
    """Without config.json keys name the family, or one that has the same keys, and what config says is unknown."""
    models.build(family).save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    report = pipeline.inspect(tmp_path)
    assert report.verdict == "unverified"
    grave = {f.name for f in report.findings if f.severity != "note"}
    # Gemma has LLaMA's keys: only its gains about zero tell that it is another family.
    told = {"scale-offset-mismatch"} if family == "gemma" else set[str]()
    assert grave - told <= {"config-missing", "unknown-architecture"}


@pytest.mark.parametrize("family", ["llama", "bert", "t5"])
def test_shards(family: str, tmp_path: Path) -> None:
    models.build(family).save_pretrained(tmp_path, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 1
    accepted(tmp_path, "values")


@pytest.mark.parametrize("family", ["gpt2", "qwen2"])
@pytest.mark.parametrize("new_format", [True, False], ids=["zip", "legacy"])
def test_a_state_dict(family: str, new_format: bool, tmp_path: Path) -> None:
    model = models.build(family)
    model.config.architectures = [type(model).__name__]
    model.config.dtype = "float32"
    model.config.save_pretrained(tmp_path)
    torch.save(model.state_dict(), tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=new_format)
    assert accepted(tmp_path, "values").subject.format == "torch"


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_a_smaller_dtype(family: str, dtype: str, tmp_path: Path) -> None:
    models.build(family).to(getattr(torch, dtype)).save_pretrained(tmp_path)
    report = accepted(tmp_path, "values")
    assert report.subject.dtypes == {{"bfloat16": "BF16", "float16": "F16"}[dtype]: report.subject.tensors}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_manifest_of_the_library_keeps_its_schema(family: str) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    manifest = json.loads(resources.manifest_path(family).read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator(resources.schema("block_manifest")).validate(manifest)
