"""No field that no code reads: every attribute of every manifest is looked at by bind, check, show or diff.

Reads are recorded while that code runs, on the records themselves. Decoding and encoding (msgspec, in C) and the
pinning of drafts, which walk over fields without knowing them, do not count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from blockaudit import resources
from blockaudit.manifest.bind import bind
from blockaudit.manifest.check import check, check_manifest
from blockaudit.manifest.load import library
from blockaudit.manifest.show import describe
from blockaudit.manifest.validate import KINDS, any_manifest, block_manifest
from blockaudit.records.manifest import Manifest
from tests.manifest import samples
from tests.manifest.test_schemas import EXAMPLES, PARTS


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[tuple[str, str]]]:
    seen: set[tuple[str, str]] = set()
    plain = object.__getattribute__

    def record(self: Any, name: str) -> Any:
        seen.add((type(self).__name__, name))
        return plain(self, name)

    for _, _, struct in PARTS:
        monkeypatch.setattr(struct, "__getattribute__", record, raising=False)
    yield seen
    monkeypatch.undo()


def _everything() -> list[Manifest]:
    data = json.dumps(samples.EVERYTHING).encode()
    found = [block_manifest(data, "x.json"), block_manifest(samples.CORE.encode(), "core.yaml")]
    return found + [library(name).manifest for name in resources.manifest_ids()]


def _fields(kind: str) -> set[tuple[str, str]]:
    return {
        (struct.__name__, field.name)
        for schema, _, struct in PARTS
        if schema == kind
        for field in msgspec.structs.fields(struct)
    }


def test_every_field_of_the_block_manifest_is_read(reads: set[tuple[str, str]]) -> None:
    manifests = _everything()
    reads.clear()
    for manifest in manifests:
        bind(manifest, {})
        check_manifest(manifest)
        describe(manifest)
    assert _fields("block_manifest") - reads == set()


@pytest.mark.parametrize("kind", [k for k in KINDS if k != "block_manifest"])
def test_every_field_of_the_other_manifests_is_read(reads: set[tuple[str, str]], kind: str) -> None:
    documents = [json.loads((EXAMPLES / f"{kind}.json").read_bytes()), *_more(kind)]
    manifests = [any_manifest(json.dumps(d).encode(), "x.json")[1] for d in documents]
    reads.clear()
    for manifest in manifests:
        check(manifest)
    assert _fields(kind) - reads == set()


def _more(kind: str) -> list[dict[str, Any]]:
    """What a minimal example leaves out, because nothing there is quantised, deterministic or in float16."""
    document = json.loads((EXAMPLES / f"{kind}.json").read_bytes())
    changes: dict[str, Any] = {
        "checkpoint_manifest": {"quantisation": {"scheme": "awq", "bits": 4, "group_size": 128, "excluded": []}},
        "training_manifest": {
            "autocast": {"enabled": True, "dtype": "float16", "loss_scaling": True},
            "initialization": [{"group": "norm", "distribution": "ones"}],
            "optimizer": document.get("optimizer") and {**document["optimizer"], "state_dtype": "bfloat16"},
        },
        "runtime_manifest": {
            "deterministic": {"enabled": True, "rng": "logical_coordinates", "reduction_order": "fixed"},
            "parallel": {
                "residual": {"layout": "hidden", "degree": 2},
                "branch": {"layout": "hidden", "degree": 2},
                "reduced_before_add": True,
            },
        },
    }
    return [document | changes.get(kind, {})]
