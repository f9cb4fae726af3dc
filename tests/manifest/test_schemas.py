"""Schemas and records say the same: field by field, word by word."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
from jsonschema import Draft202012Validator

from blockaudit import resources
from blockaudit.manifest.check import check, check_manifest
from blockaudit.manifest.load import library
from blockaudit.manifest.validate import KINDS, any_manifest
from blockaudit.records import checkpoint_manifest as c
from blockaudit.records import functions as f
from blockaudit.records import manifest as m
from blockaudit.records import runtime_manifest as r
from blockaudit.records import tensor_manifest as t
from blockaudit.records import training_manifest as g
from tests.manifest import samples

EXAMPLES = Path(__file__).parents[2] / "schemas" / "examples"
# Every struct of the records, and the part of which schema it is.
PARTS: list[tuple[str, str, type[Any]]] = [
    ("block_manifest", "", m.Manifest), ("block_manifest", "bound", m.Bound), ("block_manifest", "subset", m.Subset),
    ("block_manifest", "norm", m.Norm), ("block_manifest", "tensor", m.TensorSpec),
    ("block_manifest", "branch", m.Branch), ("block_manifest", "scale", m.Scale),
    ("block_manifest", "residual", m.Residual), ("block_manifest", "dropout", m.Dropout),
    ("block_manifest", "stack", m.Stack), ("block_manifest", "class", m.ClassSpec),
    ("block_manifest", "match", m.Match), ("block_manifest", "attention", f.Attention),
    ("block_manifest", "rotary", f.Rotary), ("block_manifest", "alibi", f.Alibi),
    ("block_manifest", "relative", f.Relative), ("block_manifest", "latent", f.Latent),
    ("block_manifest", "feed_forward", f.FeedForward), ("block_manifest", "routing", f.Routing),
    ("block_manifest", "inputs", f.Inputs), ("block_manifest", "head", f.Head),
    ("tensor_manifest", "", t.TensorManifest), ("tensor_manifest", "tensor", t.TensorEntry),
    ("tensor_manifest", "valid_rows", t.ValidRows),
    ("checkpoint_manifest", "", c.CheckpointManifest), ("checkpoint_manifest", "tensor", c.StoredTensor),
    ("checkpoint_manifest", "shared", c.SharedState), ("checkpoint_manifest", "norm", c.StoredNorm),
    ("checkpoint_manifest", "buffer", c.StoredBuffer), ("checkpoint_manifest", "quantisation", c.Quantisation),
    ("training_manifest", "", g.TrainingManifest), ("training_manifest", "dropout", g.TrainingDropout),
    ("training_manifest", "rng", g.RngIdentity), ("training_manifest", "gain", g.InitialGain),
    ("training_manifest", "optimizer", g.Optimizer), ("training_manifest", "autocast", g.Autocast),
    ("runtime_manifest", "", r.RuntimeManifest), ("runtime_manifest", "ownership", r.Ownership),
    ("runtime_manifest", "parallel", r.Parallel), ("runtime_manifest", "deterministic", r.Deterministic),
]  # fmt: skip
IDS = [f"{schema}.{part}".rstrip(".") for schema, part, _ in PARTS]


def _part(schema: str, name: str) -> dict[str, Any]:
    whole = resources.schema(schema)
    return whole["$defs"][name] if name else whole


def _nodes(node: Any) -> Iterator[dict[str, Any]]:
    if isinstance(node, dict):
        yield node
        for child in node.values():
            yield from _nodes(child)
    elif isinstance(node, list):
        for child in node:
            yield from _nodes(child)


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_one(kind: str) -> None:
    schema = resources.schema(kind)
    Draft202012Validator.check_schema(schema)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert schema["$id"] == f"https://blockaudit.dev/schemas/{kind}.schema.json"
    assert {n["$ref"].removeprefix("#/$defs/") for n in _nodes(schema) if "$ref" in n} == set(schema["$defs"])


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_is_closed_and_explains_every_field(kind: str) -> None:
    for node in _nodes(resources.schema(kind)):
        if not isinstance(node.get("properties"), dict) or "type" not in node:
            continue
        assert node["additionalProperties"] is False
        for name, field in node["properties"].items():
            assert field["description"].endswith("."), name
            assert field["x-changes"] in ("function", "training", "numerics", "nothing"), name


@pytest.mark.parametrize(("schema", "name", "struct"), PARTS, ids=IDS)
def test_properties_are_the_fields(schema: str, name: str, struct: type[Any]) -> None:
    part, fields = _part(schema, name), msgspec.structs.fields(struct)
    assert set(part["properties"]) == {f.encode_name for f in fields}
    required = {f.encode_name for f in fields if f.required}
    # A core manifest leaves `schema` out; the record has it.
    assert set(part.get("required", ())) == required - ({"schema"} if struct is m.Manifest else set())


def test_every_struct_has_its_part() -> None:
    modules = (c, f, g, m, r, t)
    structs = {
        v for module in modules for v in vars(module).values() if isinstance(v, type) and issubclass(v, m.Struct)
    } - {m.Struct}
    assert structs == {struct for _, _, struct in PARTS}
    parts = {(kind, "") for kind in KINDS}
    parts |= {(k, n) for k in KINDS for n, part in resources.schema(k)["$defs"].items() if part.get("type") == "object"}
    assert parts == {(schema, name) for schema, name, _ in PARTS}


def _words(annotation: Any) -> set[Any]:
    """The words of a Literal, wherever it stands in an annotation."""
    if typing.get_origin(annotation) is Literal:
        return set(typing.get_args(annotation))
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, list, tuple, dict):
        return {word for inner in typing.get_args(annotation) for word in _words(inner)}
    return set()


def _enum(schema: dict[str, Any], node: Any, depth: int = 0) -> set[Any]:
    """The words that a schema allows at a field, references followed."""
    found: set[Any] = set()
    for inner in _nodes(node):
        found |= {w for w in inner.get("enum", ()) if w is not None}
        if "$ref" in inner and depth < 2 and schema["$defs"][inner["$ref"].split("/")[-1]].get("type") != "object":
            found |= _enum(schema, schema["$defs"][inner["$ref"].split("/")[-1]], depth + 1)
    return found


@pytest.mark.parametrize(("schema", "name", "struct"), PARTS, ids=IDS)
def test_enums_are_the_literals(schema: str, name: str, struct: type[Any]) -> None:
    hints = typing.get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        words = _words(hints[field.name]) - {None}
        if words:
            node = _part(schema, name)["properties"][field.encode_name]
            assert _enum(resources.schema(schema), node) == words, field.name


def test_norm_families_are_the_literals() -> None:
    assert resources.schema("block_manifest")["$defs"]["norm_family"]["enum"] == list(typing.get_args(m.NormFamily))


@pytest.mark.parametrize("kind", KINDS)
def test_the_example_is_valid_and_clean(kind: str) -> None:
    data = (EXAMPLES / f"{kind}.json").read_bytes()
    found, manifest = any_manifest(data, f"{kind}.json")
    assert found == kind
    assert check(manifest) == []


def test_no_example_is_left_over() -> None:
    assert {p.stem for p in EXAMPLES.iterdir()} >= set(KINDS)


@pytest.mark.parametrize("name", resources.manifest_ids())
def test_the_library_is_valid(name: str) -> None:
    document = json.loads(resources.manifest_path(name).read_bytes())
    errors = [e.message for e in Draft202012Validator(resources.schema("block_manifest")).iter_errors(document)]
    assert errors == []


@pytest.mark.parametrize("name", resources.manifest_ids())
def test_the_library_contradicts_itself_nowhere(name: str) -> None:
    assert check_manifest(library(name).manifest) == []


def test_the_sample_gives_every_field() -> None:
    data = json.dumps(samples.EVERYTHING).encode()
    _, manifest = any_manifest(data, "everything.json")
    assert check(manifest) == []
