from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from blockaudit import resources
from tests.cli.suppressing import JUNE, Run, audited, broken, changed, waiver
from tests.support.checkpoint import drop, family

VALIDATOR = Draft202012Validator(resources.schema("baseline"))
HELD = ("--manifest", "pinned.json")


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(JUNE))
    monkeypatch.chdir(tmp_path)


def _written(path: str = "known.json") -> dict[str, object]:
    document = json.loads(Path(path).read_text(encoding="utf-8"))
    VALIDATOR.validate(document)
    return document


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(resources.schema("baseline"))


def test_what_a_baseline_has_does_not_count(blockaudit: Run, tmp_path: Path) -> None:
    source = broken(tmp_path)
    assert blockaudit("inspect", source, *HELD).status == 1
    written = audited(blockaudit, "inspect", source, *HELD, "--write-baseline", "known.json")
    assert (written.status, written.names) == (0, [])
    document = _written()
    assert (document["kind"], document["level"]) == ("inspection", "headers")
    found = audited(blockaudit, "inspect", source, *HELD, "--baseline", "known.json")
    assert (found.status, found.names, found.err) == (0, [], "")
    assert sorted(found.suppressed) == [("baseline", "epsilon-mismatch"), ("baseline", "norm-missing")]


def test_the_file_is_the_same_bytes_and_sorted(blockaudit: Run, tmp_path: Path) -> None:
    source = broken(tmp_path)
    for name in ("a.json", "b.json"):
        blockaudit("inspect", source, *HELD, "--write-baseline", name)
    assert Path("a.json").read_bytes() == Path("b.json").read_bytes()
    findings = _written("a.json")["findings"]
    assert isinstance(findings, list)
    keys = [(f["code"], f["subject"], f["fingerprint"]) for f in findings]
    assert keys == sorted(keys)
    assert len(keys) == 2
    assert str(tmp_path) not in Path("a.json").read_text()


def test_a_new_finding_beside_the_old_ones_counts(blockaudit: Run, tmp_path: Path) -> None:
    blockaudit("inspect", changed(tmp_path), *HELD, "--write-baseline", "known.json")
    found = audited(blockaudit, "inspect", broken(tmp_path), *HELD, "--baseline", "known.json")
    assert (found.status, found.names) == (1, ["norm-missing"])
    assert found.suppressed == [("baseline", "epsilon-mismatch")]


def test_a_value_that_changed_again_counts(blockaudit: Run, tmp_path: Path) -> None:
    blockaudit("inspect", changed(tmp_path), *HELD, "--write-baseline", "known.json")
    later = changed(tmp_path, "later", 2e-5)
    found = audited(blockaudit, "inspect", later, *HELD, "--baseline", "known.json")
    assert (found.status, found.names, found.suppressed) == (1, ["epsilon-mismatch"], [])
    assert "baseline 'known.json': 1 entry is no longer found" in found.err


@pytest.mark.parametrize(("first", "then"), [("*.0.mlp.up_proj.weight", "*.mlp.up_proj.weight")])
def test_more_tensors_of_the_same_fault_count(blockaudit: Run, tmp_path: Path, first: str, then: str) -> None:
    blockaudit("inspect", family("llama", drop(first))(tmp_path / "a"), "--write-baseline", "known.json")
    found = audited(blockaudit, "inspect", family("llama", drop(then))(tmp_path / "b"), "--baseline", "known.json")
    assert (found.status, found.names) == (1, ["missing-key"])


def test_more_places_of_the_same_fault_count(blockaudit: Run, tmp_path: Path) -> None:
    """The baseline knows one norm; the fault, in the same words and values, spread to the others."""
    source = changed(tmp_path)
    blockaudit("inspect", source, *HELD, "--write-baseline", "known.json")
    pinned = json.loads(Path("pinned.json").read_text())
    for branch in pinned["stacks"][0]["branches"]:
        # One site fewer is held: the fault of the baseline is at more places than the one that is found.
        if branch["name"] == "mlp":
            branch["norms"]["norm_in"]["epsilon"] = 1e-5
    Path("fewer.json").write_text(json.dumps(pinned))
    assert audited(blockaudit, "inspect", source, *HELD, "--baseline", "known.json").status == 0
    blockaudit("inspect", source, "--manifest", "fewer.json", "--write-baseline", "few.json")
    found = audited(blockaudit, "inspect", source, *HELD, "--baseline", "few.json")
    assert (found.status, found.names) == (1, ["epsilon-mismatch"])


def test_stale_entries_are_told_and_reject_nothing(blockaudit: Run, tmp_path: Path) -> None:
    blockaudit("inspect", broken(tmp_path), *HELD, "--write-baseline", "known.json")
    outcome = blockaudit("inspect", family("llama")(tmp_path / "sound"), "--baseline", "known.json")
    assert outcome.status == 0
    assert "2 entries are no longer found; --write-baseline writes it again" in outcome.err
    assert "Suppressed" not in outcome.out


def test_an_audit_that_looks_at_less_calls_nothing_stale(blockaudit: Run, tmp_path: Path) -> None:
    source = broken(tmp_path)
    blockaudit("inspect", source, *HELD, "--level", "values", "--write-baseline", "known.json")
    Path("sound").mkdir()
    sound = family("llama")(tmp_path / "sound")
    assert blockaudit("inspect", sound, "--baseline", "known.json").err == ""
    assert "no longer found" in blockaudit("inspect", sound, "--baseline", "known.json", "--level", "values").err


def test_a_baseline_written_again_forgets_what_is_mended(blockaudit: Run, tmp_path: Path) -> None:
    blockaudit("inspect", broken(tmp_path), *HELD, "--write-baseline", "known.json")
    blockaudit("inspect", changed(tmp_path), *HELD, "--write-baseline", "known.json")
    findings = _written()["findings"]
    assert isinstance(findings, list)
    assert [f["name"] for f in findings] == ["epsilon-mismatch"]


def test_what_was_not_read_is_in_no_baseline(blockaudit: Run, tmp_path: Path) -> None:
    source = family("llama")(tmp_path / "ckpt")
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    found = audited(blockaudit, "inspect", source, "--write-baseline", "known.json")
    assert (found.status, found.names) == (1, ["truncated-file"])
    assert _written()["findings"] == []
    entry = {"code": "F102", "subject": found.report["findings"][0]["subject"], "fingerprint": "0" * 16}
    Path("known.json").write_text(json.dumps({**_written(), "findings": [entry]}))
    assert audited(blockaudit, "inspect", source, "--baseline", "known.json").status == 1


def test_waivers_come_first(blockaudit: Run, tmp_path: Path) -> None:
    Path("blockaudit.toml").write_text(waiver())
    found = audited(blockaudit, "inspect", broken(tmp_path), *HELD, "--write-baseline", "known.json")
    assert sorted(found.suppressed) == [("baseline", "norm-missing"), ("waiver", "epsilon-mismatch")]
    findings = _written()["findings"]
    assert isinstance(findings, list)
    assert [f["name"] for f in findings] == ["norm-missing"]


def test_an_expired_waiver_counts_also_where_a_baseline_has_its_finding(blockaudit: Run, tmp_path: Path) -> None:
    source = changed(tmp_path)
    blockaudit("inspect", source, *HELD, "--write-baseline", "known.json")
    Path("blockaudit.toml").write_text(waiver(expires="2026-01-31"))
    found = audited(blockaudit, "inspect", source, *HELD, "--baseline", "known.json")
    assert (found.status, found.names) == (1, ["waiver-expired"])


def test_the_baseline_of_a_config_file_is_written_again(blockaudit: Run, tmp_path: Path) -> None:
    source = changed(tmp_path)
    Path("blockaudit.toml").write_text('baseline = "known.json"\n')
    missing = blockaudit("inspect", source, *HELD)
    assert (missing.status, missing.out) == (2, "")
    assert "known.json" in missing.err
    assert blockaudit("inspect", source, *HELD, "--write-baseline", "known.json").status == 0
    assert blockaudit("inspect", source, *HELD).status == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "truncated"),
        ("[]", "Expected `object`"),
        ('{"schema": "blockaudit/report/1", "kind": "x", "level": "x", "findings": []}', "expected schema"),
        ('{"schema": "blockaudit/baseline/1", "kind": "x", "level": "x", "findings": [], "more": 1}', "more"),
        ("\udcff", ""),
    ],
)
def test_what_is_no_baseline(blockaudit: Run, tmp_path: Path, text: str, says: str) -> None:
    Path("known.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    outcome = blockaudit("inspect", family("llama")(tmp_path / "ckpt"), "--baseline", "known.json")
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith("blockaudit: error: baseline 'known.json': ")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1


def test_a_baseline_that_is_no_file(blockaudit: Run, tmp_path: Path) -> None:
    source = family("llama")(tmp_path / "ckpt")
    for name in ("nowhere.json", "."):
        outcome = blockaudit("inspect", source, "--baseline", name)
        assert (outcome.status, outcome.out) == (2, "")
        assert outcome.err.count("\n") == 1


def test_nothing_is_written_into_source(blockaudit: Run, tmp_path: Path) -> None:
    source = changed(tmp_path)
    before = sorted(os.listdir(source))
    outcome = blockaudit("inspect", source, *HELD, "--write-baseline", source / "known.json")
    assert (outcome.status, outcome.out) == (2, "")
    assert "--write-baseline" in outcome.err
    assert sorted(os.listdir(source)) == before


def test_one_baseline_is_of_one_source(blockaudit: Run, tmp_path: Path) -> None:
    source = changed(tmp_path)
    for option in ("--baseline", "--write-baseline"):
        outcome = blockaudit("inspect", source, source, option, "known.json")
        assert (outcome.status, outcome.out) == (2, "")
        assert "a baseline is of one SOURCE" in outcome.err
    assert "exclude" in blockaudit("inspect", source, "--baseline", "a", "--write-baseline", "b").err


def test_a_report_that_was_made_is_shown_where_the_baseline_cannot_be_written(blockaudit: Run, tmp_path: Path) -> None:
    outcome = blockaudit("inspect", changed(tmp_path), *HELD, "--write-baseline", "no/such/folder/known.json")
    assert outcome.status == 2
    assert "epsilon-mismatch" in outcome.out
    assert "cannot be written" in outcome.err or "cannot write" in outcome.err


INPUTS = ["pinned.json", "known.json", "blockaudit.toml"]


@pytest.mark.parametrize("target", INPUTS)
def test_a_report_is_not_written_over_what_is_read(blockaudit: Run, tmp_path: Path, target: str) -> None:
    source = changed(tmp_path)
    blockaudit("inspect", source, *HELD, "--write-baseline", "known.json")
    Path("blockaudit.toml").write_text(waiver())
    os.symlink(target, "link.json")
    before = Path(target).read_bytes()
    for path in ("link.json", *([target] if target.endswith(".json") else [])):
        outcome = blockaudit("inspect", source, *HELD, "--baseline", "known.json", "--report", path)
        assert (outcome.status, outcome.out) == (2, "")
        assert f"--report {path!r} is the file of --" in outcome.err
    assert Path(target).read_bytes() == before


def test_two_things_are_not_written_into_one_file(blockaudit: Run, tmp_path: Path) -> None:
    source = changed(tmp_path)
    outcome = blockaudit("inspect", source, *HELD, "--report", "a.json", "--write-baseline", "a.json")
    assert (outcome.status, outcome.out, Path("a.json").exists()) == (2, "", False)
