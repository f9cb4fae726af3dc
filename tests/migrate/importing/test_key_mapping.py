"""A key mapping of a file: a small kind of pattern, applied in order; everything else is refused with its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from blockaudit.errors import RequestError
from blockaudit.migrate.importing.key_mapping import of_file
from blockaudit.pipeline.map_importing import import_map


def _file(folder: Path, mapping: object) -> str:
    path = folder / "mapping.json"
    path.write_text(json.dumps(mapping))
    return str(path)


@pytest.mark.parametrize(
    ("pattern", "replacement", "key", "wanted"),
    [
        ("gamma", "weight", "a.LayerNorm.gamma", "a.LayerNorm.weight"),
        (r"^module\.", "", "module.model.norm", "model.norm"),
        (r"^(.+)\.beta$", r"\1.bias", "a.beta", "a.bias"),
        (r"h\.(\d+)\.ln", r"layers.\1.norm", "h.12.ln.weight", "layers.12.norm.weight"),
        (r"\.wo\.", r"\.o_proj\.", "l.wo.weight", "l.o_proj.weight"),
    ],
)
def test_a_pattern_is_applied(tmp_path: Path, pattern: str, replacement: str, key: str, wanted: str) -> None:
    assert of_file(_file(tmp_path, {pattern: replacement})).renamed(key, ()).names == (wanted,)


def test_patterns_are_applied_in_their_order(tmp_path: Path) -> None:
    mapping = of_file(_file(tmp_path, {"one": "two", "two": "three"}))
    assert mapping.renamed("one", ()).names == ("three",)


@pytest.mark.parametrize(
    ("mapping", "says"),
    [
        ([], "expected an object"),
        ({}, "expected an object"),
        ({"a": 1}, "expected text for every pattern"),
        ({"(a+)+b": "c"}, "expected text, '.', '^'"),
        ({"(.+)(.+)": "c"}, "expected text, '.', '^'"),
        ({"(?!x)a": "c"}, "expected text, '.', '^'"),
        ({"a": r"\1"}, "where the pattern has a group"),
        ({"a": "b|c"}, "replacement 'b|c'"),
    ],
)
def test_what_is_no_small_pattern_is_refused(tmp_path: Path, mapping: object, says: str) -> None:
    with pytest.raises(RequestError, match=r"mapping\.json") as caught:
        of_file(_file(tmp_path, mapping))
    assert says in str(caught.value)


def test_a_mapping_becomes_a_map(tmp_path: Path) -> None:
    path = _file(tmp_path, {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"})
    found = import_map(path, source="bert_gamma_beta", target="bert")
    assert found.decided, (found.undecided, found.refused)
    assert found.map.evidence == "the key mapping in mapping.json"
    named = {str(rule.from_): rule.to for rule in found.map.rules}
    assert named["bert.embeddings.LayerNorm.gamma"] == "bert.embeddings.LayerNorm.weight"
    assert named["bert.embeddings.LayerNorm.beta"] == "bert.embeddings.LayerNorm.bias"


def test_a_mapping_that_forgets_a_key_is_refused(tmp_path: Path) -> None:
    found = import_map(_file(tmp_path, {"gamma": "weight"}), source="bert_gamma_beta", target="bert")
    assert not found.decided
    assert any("LayerNorm.beta is fed, and the target's manifest has no such key" in line for line in found.refused)


def test_a_file_needs_its_source(tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="give that of the keys it reads"):
        import_map(_file(tmp_path, {"a": "b"}))
