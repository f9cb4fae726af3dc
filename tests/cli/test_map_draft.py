"""`map draft`, `map import` and `manifest import`, as command lines."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Outcome

Run = Callable[..., Outcome]
TINY = Path(__file__).parents[2] / "fixtures" / "tiny_llama"


def test_a_draft_that_passes_is_written_and_checked(blockaudit: Run, tmp_path: Path) -> None:
    path = tmp_path / "drafted.json"
    drafted = blockaudit("map", "draft", TINY, "litgpt_llama", "--output", path)
    assert (drafted.status, drafted.out) == (0, "")
    assert "note: the source is taken for llama, by config.json and its keys" in drafted.err
    assert "undecided" not in drafted.err
    assert blockaudit("map", "check", path, "--source", TINY).status == 0


def test_the_map_goes_to_stdout_and_the_rest_to_stderr(blockaudit: Run) -> None:
    drafted = blockaudit("map", "draft", TINY, "mistral", "--source-manifest", "llama")
    found = json.loads(drafted.out)
    assert (found["schema"], found["name"], found["source"], found["target"]) == (
        "blockaudit/map/1", "llama_to_mistral", "llama", "mistral"
    )  # fmt: skip


def test_what_is_undecided_is_status_3(blockaudit: Run) -> None:
    drafted = blockaudit("map", "draft", TINY, "qwen3")
    assert drafted.status == 3
    assert "undecided: model.layers.{l}.self_attn.q_norm.weight: no tensor of the source is" in drafted.err
    assert "map check would refuse: topology-change-needs-retraining:" in drafted.err
    assert json.loads(drafted.out)["rules"]


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (("map", "draft", "/no/such/place", "llama"), "no such file or folder"),
        (("map", "draft", TINY, "no_such_manifest"), "no_such_manifest"),
        (("map", "draft", TINY, "llama", "--source-manifest", "no_such"), "no_such"),
        (("map", "draft", TINY, "llama", "--source-config", "/no/config.json"), "/no/config.json"),
        (("map", "import", "/no/such/file"), "/no/such/file"),
        (("map", "import", "transformers:no_such_model"), "no conversion mapping for 'no_such_model'"),
        (("manifest", "import", "/no/such/file"), "/no/such/file"),
        (("manifest", "import", TINY / "config.json"), "expected an architecture of mergekit"),
    ],
)
def test_what_cannot_be_done_is_one_line(blockaudit: Run, argv: tuple[str, ...], says: str) -> None:
    if "transformers:" in str(argv[-1]):
        pytest.importorskip("transformers")
    outcome = blockaudit(*argv)
    assert (outcome.status, outcome.out) == (2, "")
    assert says in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_nothing_is_written_into_the_source(blockaudit: Run) -> None:
    outcome = blockaudit("map", "draft", TINY, "mistral", "--output", TINY / "drafted.json")
    assert outcome.status == 2
    assert "where nothing is ever written" in outcome.err
    assert not (TINY / "drafted.json").exists()


def test_without_transformers_its_mapping_is_one_line(blockaudit: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "transformers", None)
    outcome = blockaudit("map", "import", "transformers:mixtral")
    assert outcome.status == 2
    assert "needs transformers 5 and torch: pip install" in outcome.err
    assert len(outcome.err.splitlines()) == 1


def test_a_manifest_is_imported_and_checked(blockaudit: Run, tmp_path: Path) -> None:
    given = tmp_path / "tiny.json"
    given.write_text(json.dumps({
        "model_type": "tiny", "architectures": ["TinyForCausalLM"], "pre_weights": [{"name": "embed.weight"}],
        "layer_templates": {"weights": [{"name": "layers.${layer_index}.w.weight"}]}, "post_weights": [], "new": 1,
    }))  # fmt: skip
    path = tmp_path / "manifest.json"
    outcome = blockaudit("manifest", "import", given, "--output", path)
    assert outcome.status == 0
    assert "note: field new is not known and is left out" in outcome.err
    assert "note: open: shapes, and which axis is the output; norms, branches" in outcome.err
    assert blockaudit("manifest", "check", path).status == 0
