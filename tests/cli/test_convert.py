from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

pytest.importorskip("torch")

from blockaudit import resources
from blockaudit.checkpoint.hashing import semantic_hash
from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.cli.convert import size
from blockaudit.errors import RequestError
from tests.cli.conftest import Outcome
from tests.migrate.convert import hand

TINY = Path(__file__).parents[2] / "fixtures" / "tiny_llama"
Run = Callable[..., Outcome]


def test_there_and_back_gives_the_same_tensors(blockaudit: Run, tmp_path: Path) -> None:
    before = hand.hashes(TINY)
    there = blockaudit("convert", TINY, tmp_path / "phi3", "--map", "phi3_llama", "--reverse")
    assert (there.status, there.err) == (0, "")
    assert "20 source tensors came back bit for bit" in there.out
    back = blockaudit(
        "convert", tmp_path / "phi3", tmp_path / "llama", "--map", "phi3_llama", "--max-shard-size", "300kB"
    )
    assert back.status == 0
    assert len(list((tmp_path / "llama").glob("*.safetensors"))) == 4
    assert semantic_hash(open_checkpoint(str(tmp_path / "llama"))) == semantic_hash(open_checkpoint(str(TINY)))
    assert hand.hashes(TINY) == before
    for folder in ("phi3", "llama"):
        assert blockaudit("inspect", tmp_path / folder).status == 0


def test_the_json_report_validates(blockaudit: Run, tmp_path: Path) -> None:
    done = blockaudit("convert", TINY, tmp_path / "t", "--map", "phi3_llama", "--reverse", "--format", "json")
    document = json.loads(done.out)
    assert (document["kind"], document["verdict"]) == ("conversion", "accepted")
    assert list(Draft202012Validator(resources.schema("report")).iter_errors(document)) == []
    schema = Draft202012Validator(resources.schema("conversion_report"))
    assert list(schema.iter_errors(document["conversion"])) == []
    assert document == json.loads((tmp_path / "t" / "conversion-report.json").read_bytes())


def test_every_format_shows_it(blockaudit: Run, tmp_path: Path) -> None:
    reports = [tmp_path / f"r.{suffix}" for suffix in ("txt", "json", "html", "xml", "sarif", "md")]
    options = [word for path in reports for word in ("--report", str(path))]
    assert blockaudit("convert", TINY, tmp_path / "t", "--map", "phi3_llama", "--reverse", *options).status == 0
    found = hand.report(tmp_path / "t")
    for name in ("r.txt", "r.md", "r.json"):
        assert found.target.semantic in (tmp_path / name).read_text().replace("\n              ", "")


def test_a_map_that_does_not_fit_writes_nothing(blockaudit: Run, tmp_path: Path) -> None:
    done = blockaudit("convert", TINY, tmp_path / "t", "--map", "neox_native", "--format", "json")
    assert done.status == 1
    document = json.loads(done.out)
    assert (document["kind"], document["verdict"]) == ("rejection", "rejected")
    assert "map-not-total" in {finding["name"] for finding in document["findings"]}
    assert "conversion" not in document
    assert os.listdir(tmp_path) == []


def spoilt(tmp_path: Path) -> tuple[Path, Path]:
    """A source of bfloat16 gains, and a map that adds to them in bfloat16."""
    map_: dict[str, Any] = json.loads(resources.map_path("gemma_gain").read_bytes())
    for rule in map_["rules"]:
        if "ops" in rule:
            rule["ops"] = [op for op in rule["ops"] if op["op"] != "cast"]
    path = tmp_path / "map.json"
    path.write_text(json.dumps(map_))
    import torch

    from tests.migrate.library.layouts import gemma
    from tests.migrate.library.layouts.sizes import PLAIN
    from tests.migrate.library.proving import saved

    weights = gemma.weights(PLAIN, 9, torch.bfloat16)
    # 0.1 is 0.10009765625 in bfloat16; 1 less is -230.375 / 256, and rounds to -230 / 256: 26 / 256 comes back.
    weights["model.norm.weight"] = torch.full([PLAIN.d_model], 0.1, dtype=torch.bfloat16)
    return saved(weights, gemma.config(PLAIN), tmp_path / "s"), path


def test_a_proof_that_fails_is_a_rejection(blockaudit: Run, tmp_path: Path) -> None:
    source, map_ = spoilt(tmp_path)
    done = blockaudit("convert", source, tmp_path / "t", "--map", map_, "--format", "json")
    assert done.status == 1, done.err
    document = json.loads(done.out)
    assert document["kind"] == "rejection"
    (found,) = [f for f in document["findings"] if f["name"] == "map-round-trip"]
    assert "cast to a wider dtype before the arithmetic" in found["message"]
    assert found["tensors"] == ["model.norm.weight"]
    assert (found["expected"], found["observed"]) == (0.10009765625, 0.1015625)
    assert not (tmp_path / "t").exists()
    ignored = blockaudit("convert", source, tmp_path / "t", "--map", map_, "--ignore", "map-round-trip")
    assert ignored.status == 1
    assert not (tmp_path / "t").exists()


def test_it_was_there_already(blockaudit: Run, tmp_path: Path) -> None:
    argv = ["convert", TINY, tmp_path / "t", "--map", "phi3_llama", "--reverse", "--format", "json"]
    first = blockaudit(*argv)
    again = blockaudit(*argv)
    assert (again.status, again.out) == (0, first.out)
    assert "it was there already, this very conversion" in again.err
    other = blockaudit("convert", TINY, tmp_path / "t", "--map", "torchtitan_llama", "--reverse")
    assert (other.status, other.out) == (2, "")
    assert other.err.count("\n") == 1


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["convert", "nowhere", "T", "--map", "phi3_llama"], "no such file or folder"),
        (["convert", "TINY", "T", "--map", "no_such_map"], "neither a map file nor one of the library"),
        (["convert", "TINY", "T"], "Missing option '--map'"),
        (["convert", "TINY", "no/such/T", "--map", "phi3_llama", "--reverse"], "is not there: make it first"),
        (["convert", "TINY", "TINY/t", "--map", "phi3_llama", "--reverse"], "TARGET lies in SOURCE"),
        (["convert", "TINY", "T", "--map", "phi3_llama", "--max-shard-size", "much"], "expected a number of bytes"),
        (["convert", "TINY", "T", "--map", "phi3_llama", "--reverse", "--report", "T/r.json"], "lies in TARGET"),
        (["convert", "TINY", "T", "--map", "phi3_llama", "--reverse", "--previous", "nowhere"], "no such file"),
        (["convert", "hf://a/b", "T", "--map", "phi3_llama", "--reverse"], "download it first"),
    ],
)  # fmt: skip
def test_what_cannot_be_served_is_one_line(blockaudit: Run, tmp_path: Path, argv: list[str], said: str) -> None:
    tiny = tmp_path / "tiny"
    shutil.copytree(TINY, tiny)
    places = {w: str(tmp_path / w) for w in ("T", "no/such/T", "T/r.json")}
    words = [places.get(w, w.replace("TINY", str(tiny))) for w in argv]
    done = blockaudit(*words)
    assert (done.status, done.out) == (2, "")
    assert said in done.err
    assert done.err.count("\n") == 1
    assert os.listdir(tmp_path) == ["tiny"]
    assert hand.hashes(tiny) == hand.hashes(TINY)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("5GB", 5 * 10**9), ("500MB", 5 * 10**8), ("1.5 GiB", 3 * 2**29), ("300kb", 300_000), ("12", 12)],
)
def test_sizes(text: str, wanted: int) -> None:
    assert size(text) == wanted


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "0", "5PB", "1e9", "5 G B", "٣GB"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(RequestError, match="--max-shard-size"):
        size(text)
