"""What stands in TARGET is what its schemas say, field by field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator

from blockaudit import resources
from blockaudit.records import conversion as records
from blockaudit.records.migration import Filled, TensorType
from tests.migrate.convert import hand

EXAMPLES = Path(__file__).parents[3] / "schemas" / "examples"
PARTS: list[tuple[str, str, type[Any]]] = [
    ("conversion_report", "", records.Conversion), ("conversion_report", "file", records.FileRow),
    ("conversion_report", "ends", records.Ends), ("conversion_report", "tensor", records.TensorRow),
    ("conversion_report", "round_trip", records.RoundTripRow), ("conversion_report", "config", records.ConfigRow),
    ("conversion_report", "map", records.MapUsed), ("rollback", "", records.Rollback),
    ("rollback", "file", records.FileRow), ("rollback", "part", records.PreviousPart),
]  # fmt: skip
DOCUMENTS = {"conversion_report": records.Conversion, "rollback": records.Rollback}


@pytest.mark.parametrize(("schema", "part", "struct"), PARTS, ids=lambda v: getattr(v, "__name__", v))
def test_properties_are_the_fields(schema: str, part: str, struct: type[Any]) -> None:
    whole = resources.schema(schema)
    node = whole["$defs"][part] if part else whole
    names = {f.encode_name for f in msgspec.structs.fields(struct)}
    assert set(node["properties"]) - ({"schema"} if not part else set()) == names
    assert set(node["required"]) == set(node["properties"])
    assert node["additionalProperties"] is False
    for name, field in node["properties"].items():
        assert "$ref" in field or "const" in field or field["description"].endswith("."), name


@pytest.mark.parametrize("schema", DOCUMENTS)
def test_a_schema_is_one(schema: str) -> None:
    document = resources.schema(schema)
    Draft202012Validator.check_schema(document)
    assert document["$id"] == f"https://blockaudit.dev/schemas/{schema}.schema.json"


@pytest.mark.parametrize("schema", DOCUMENTS)
def test_the_example_is_valid_and_what_the_record_writes(schema: str) -> None:
    text = (EXAMPLES / f"{schema}.json").read_bytes()
    assert list(Draft202012Validator(resources.schema(schema)).iter_errors(json.loads(text))) == []
    record = msgspec.json.decode(text, type=DOCUMENTS[schema])
    assert json.loads(msgspec.json.encode(record)) == json.loads(text)


@pytest.mark.parametrize("hashing", [True, False])
def test_what_stands_in_the_target_is_valid(tmp_path: Path, hashing: bool) -> None:
    types = {"a": ("F32", (4, 3)), "b": ("BF16", (5,))}
    source = hand.source(tmp_path / "s", types, tokenizer__json=b"{}", scheduler__pt=b"state", modeling_x__py=b"x = 1")
    filled = Filled("bias", TensorType("BF16", (5,)), "ones", "there is none in the source")
    plan = hand.plan(hand.renamed(types), filled=[filled], config={"model_type": "other", "new": None})
    hand.run(source, tmp_path / "t", plan, hashing=hashing)
    for name, schema in (("conversion-report.json", "conversion_report"), ("rollback.json", "rollback")):
        document = json.loads((tmp_path / "t" / name).read_bytes())
        document = document.get("conversion", document)
        assert list(Draft202012Validator(resources.schema(schema)).iter_errors(document)) == []
    made = next(row for row in hand.report(tmp_path / "t").tensors if row.key == "bias")
    assert (made.how, made.value, made.why, made.rule) == ("filled", "ones", "there is none in the source", None)
    assert hand.loaded(tmp_path / "t")["bias"].tolist() == [1.0] * 5
    rows = {row.key: row for row in hand.report(tmp_path / "t").config}
    assert (rows["hidden_size"].source, rows["hidden_size"].in_) == (8, ("source",))
    assert (rows["new"].target, rows["new"].in_) == (None, ("target",))
    assert (rows["model_type"].source, rows["model_type"].target) == ("any", "other")


def test_a_rollback_names_the_whole_previous_artifact(tmp_path: Path) -> None:
    types = {"a": ("F32", (4, 3)), "b": ("BF16", (5,))}
    source = hand.source(
        tmp_path / "s", types, 2, tokenizer__json=b"{}", scheduler__pt=b"state", modeling_x__py=b"x = 1", notes__txt=b""
    )
    hand.run(source, tmp_path / "t", hand.plan(hand.renamed(types)))
    found = msgspec.json.decode((tmp_path / "t" / "rollback.json").read_bytes(), type=records.Rollback)
    wanted = {name: sha256 for name, sha256 in hand.hashes(source).items() if name != "notes.txt"}
    assert {row.name: row.sha256 for row in found.files} == wanted
    parts = {part.part: part for part in found.parts}
    assert parts["graph"].files == ("config.json", "modeling_x.py")
    assert parts["checkpoint"].files == (
        "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors", "model.safetensors.index.json",
    )  # fmt: skip
    assert parts["tokenizer_and_configuration"].files == ("config.json", "tokenizer.json")
    assert parts["scheduler_state"].files == ("scheduler.pt",)
    absent = [name for name, part in parts.items() if not part.present]
    assert absent == ["runtime_backend", "calibration_buffers"]
    assert all(parts[name].why for name in absent)
    assert found.semantic == hand.report(tmp_path / "t").source.semantic


def test_another_previous_artifact_may_be_named(tmp_path: Path) -> None:
    from blockaudit.checkpoint.hashing import semantic_hash
    from blockaudit.checkpoint.source import open_checkpoint

    types = {"a": ("F32", (4, 3))}
    older = open_checkpoint(str(hand.source(tmp_path / "older", {"z": ("F32", (2,))})))
    hand.run(hand.source(tmp_path / "s", types), tmp_path / "t", hand.plan(hand.renamed(types)), previous=older)
    found = msgspec.json.decode((tmp_path / "t" / "rollback.json").read_bytes(), type=records.Rollback)
    assert found.name == "older"
    assert found.semantic == semantic_hash(older)
    assert {row.name: row.sha256 for row in found.files} == hand.hashes(tmp_path / "older")
