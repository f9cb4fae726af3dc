from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.suppressing import JUNE, Run, audited, broken, changed, waiver
from tests.support.checkpoint import config, drop, family, put


@pytest.fixture(autouse=True)
def june(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(JUNE))
    monkeypatch.chdir(tmp_path)


def _told(*waivers: str) -> None:
    Path("blockaudit.toml").write_text("\n".join(waivers), encoding="utf-8")


def test_a_waived_finding_is_shown_and_does_not_count(blockaudit: Run, tmp_path: Path) -> None:
    source = changed(tmp_path)
    assert blockaudit("inspect", source, "--manifest", "pinned.json").status == 1
    _told(waiver())
    found = audited(blockaudit, "inspect", source, "--manifest", "pinned.json")
    assert (found.status, found.names, found.err) == (0, [], "")
    assert found.report["verdict"] == "accepted"
    (one,) = found.report["suppressed"]
    assert (one["by"], one["reason"], one["owner"], one["expires"]) == ("waiver", "retrained", "norms", "2026-12-31")
    assert one["finding"]["name"] == "epsilon-mismatch"
    # What the witnesses say does not change.
    disagree = [row["field"] for row in found.report["contract"] if row["agrees"] is False]
    assert "decoder.final_norm.epsilon" in disagree


def test_the_terminal_names_who_answers_for_it(blockaudit: Run, tmp_path: Path) -> None:
    _told(waiver(reason="retrained\x1b[2J".replace("\x1b", "\\u001b")).replace("\\\\u", "\\u"))
    outcome = blockaudit("inspect", changed(tmp_path), "--manifest", "pinned.json")
    assert "Suppressed: 1 finding that does not count" in outcome.out
    assert "waived until 2026-12-31 by norms: retrained\\x1b[2J" in outcome.out
    assert "DISAGREES" in outcome.out
    assert outcome.out.rstrip().endswith("1 suppressed")


@pytest.mark.parametrize(
    ("expires", "status"), [("2026-06-01", 0), ("2026-05-31", 1)], ids=["on its last day", "a day later"]
)
def test_a_waiver_holds_until_the_end_of_its_day(blockaudit: Run, tmp_path: Path, expires: str, status: int) -> None:
    _told(waiver(expires=expires))
    found = audited(blockaudit, "inspect", changed(tmp_path), "--manifest", "pinned.json")
    assert found.status == status
    assert found.names == ([] if status == 0 else ["epsilon-mismatch", "waiver-expired"])


def test_an_expired_waiver_is_named_with_its_owner_and_its_line(blockaudit: Run, tmp_path: Path) -> None:
    _told("\n\n", waiver(expires="2026-01-31"))
    found = audited(blockaudit, "inspect", changed(tmp_path), "--manifest", "pinned.json")
    (expired,) = [f for f in found.report["findings"] if f["name"] == "waiver-expired"]
    assert (expired["code"], expired["severity"], expired["observed"]) == ("P103", "error", "2026-01-31")
    assert "epsilon-mismatch" in expired["message"]
    assert expired["evidence"] == "norms: retrained"
    assert expired["places"] == [{"path": "blockaudit.toml", "line": 4}]
    assert "2026-06" not in str(found.report)


def test_no_clock_is_in_the_report(blockaudit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _told(waiver(expires="2026-01-31"))
    source = changed(tmp_path)
    first = audited(blockaudit, "inspect", source, "--manifest", "pinned.json")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(JUNE + 86400))
    assert audited(blockaudit, "inspect", source, "--manifest", "pinned.json").report == first.report


def test_a_waiver_that_still_holds_stands_before_one_that_does_not(blockaudit: Run, tmp_path: Path) -> None:
    _told(waiver(expires="2026-01-31"), waiver(owner="heirs"))
    found = audited(blockaudit, "inspect", changed(tmp_path), "--manifest", "pinned.json")
    assert (found.status, found.report["suppressed"][0]["owner"]) == (0, "heirs")


def test_an_expired_waiver_of_what_is_mended_rejects_nothing(blockaudit: Run, tmp_path: Path) -> None:
    _told(waiver(expires="2026-01-31"))
    found = audited(blockaudit, "inspect", family("llama")(tmp_path / "sound"))
    assert (found.status, found.names) == (0, [])
    assert "blockaudit.toml:1: the waiver of epsilon-mismatch" in found.err
    assert "covers no finding" in found.err


@pytest.mark.parametrize(
    ("rule", "scope", "status"),
    [
        ("N201", "decoder.*", 0),
        ("n2", "decoder.*", 0),
        ("N", "*", 0),
        ("K", "decoder.*", 1),
        ("N201", "decoder.*.norm_in", 1),  # the same fault is at the final norm as well
        ("N201", "encoder.*", 1),
        ("N201", "decoder", 1),
    ],
)
def test_what_a_waiver_covers(blockaudit: Run, tmp_path: Path, rule: str, scope: str, status: int) -> None:
    _told(waiver(rule=rule, scope=scope))
    assert audited(blockaudit, "inspect", changed(tmp_path), "--manifest", "pinned.json").status == status


def test_a_waiver_of_one_place_does_not_hide_the_others_and_says_so(blockaudit: Run, tmp_path: Path) -> None:
    _told(waiver(scope="decoder.final_norm"))
    found = audited(blockaudit, "inspect", changed(tmp_path), "--manifest", "pinned.json")
    assert found.status == 1
    assert (
        "N201 is at decoder.self_attention.norm_in, decoder.mlp.norm_in, decoder.final_norm, all or none" in found.err
    )


SOURCES = [("ckpt", 0), ("*/ckpt", 0), ("c*", 0), ("other", 1), ("kpt", 1)]


@pytest.mark.parametrize(("pattern", "status"), SOURCES)
def test_a_waiver_of_one_source(blockaudit: Run, tmp_path: Path, pattern: str, status: int) -> None:
    _told(waiver(scope=None), f'scope = {{ subject = "decoder.*", source = "{pattern}" }}')
    changed(tmp_path)
    found = audited(blockaudit, "inspect", "ckpt", "--manifest", "pinned.json")
    assert found.status == status
    # One that is of another SOURCE is nobody's business here.
    assert found.err == ""


@pytest.mark.parametrize(("pattern", "status"), [("*.input_layernorm.weight", 0), ("*.0.*", 1), ("*.bias", 1)])
def test_a_waiver_of_tensors_covers_all_that_a_finding_names(
    blockaudit: Run, tmp_path: Path, pattern: str, status: int
) -> None:
    source = family("llama", drop("*.input_layernorm.weight"))(tmp_path / "ckpt")
    _told(waiver(rule="norm-missing", scope=None), f'scope = {{ tensors = "{pattern}" }}')
    assert audited(blockaudit, "inspect", source).status == status


def test_findings_beside_it_count(blockaudit: Run, tmp_path: Path) -> None:
    _told(waiver())
    found = audited(blockaudit, "inspect", broken(tmp_path), "--manifest", "pinned.json")
    assert (found.status, found.names) == (1, ["norm-missing"])
    assert found.suppressed == [("waiver", "epsilon-mismatch")]


def test_a_waived_warning_leaves_nothing_for_strict(blockaudit: Run, tmp_path: Path) -> None:
    source = family("llama", config(norm_scaling=2.0))(tmp_path / "ckpt")
    assert audited(blockaudit, "inspect", source, "--strict").names == ["config-field-unconsumed"]
    _told(waiver(rule="C103", scope="config.json: norm_*"))
    assert audited(blockaudit, "inspect", source, "--strict").status == 0


def test_a_field_that_nobody_speaks_to_still_leaves_it_unverified(blockaudit: Run, tmp_path: Path) -> None:
    source = family("llama")(tmp_path / "ckpt")
    (source / "config.json").unlink()
    _told(waiver(rule="config-missing", scope="*"))
    found = audited(blockaudit, "inspect", source)
    assert (found.status, found.names, found.suppressed) == (3, [], [("waiver", "config-missing")])


def test_what_was_not_read_is_never_waived(blockaudit: Run, tmp_path: Path) -> None:
    source = family("llama")(tmp_path / "ckpt")
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-40])
    _told(waiver(rule="F", scope="*"))
    assert audited(blockaudit, "inspect", source).names == ["truncated-file"]
    _told(waiver(rule="truncated-file", scope="*"))
    outcome = blockaudit("inspect", source)
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.strip().endswith(
        "blockaudit.toml:2: waiver 1: rule: F102 truncated-file cannot be waived: see `blockaudit explain`"
    )


@pytest.mark.parametrize(
    ("changes", "line", "says"),
    [
        ({"reason": None, "resaon": "x"}, 6, "no key 'resaon': did you mean 'reason'?"),
        ({"reason": None}, 1, "no reason: a waiver has rule, scope, reason, owner and expires"),
        ({"reason": "  "}, 4, "reason: expected a text that says something, found '  '"),
        ({"owner": 3}, 5, "owner: expected a text"),
        ({"expires": None}, 1, "no expires"),
        ({"expires": "soon"}, 6, "expires: expected a date (2026-12-31), found 'soon'"),
        ({"expires": "2026-02-30"}, 6, "expires: expected a date"),
        ({"expires": 20261231}, 6, "expires: expected a date"),
        ({"rule": "Z9"}, 2, "rule: 'Z9' names no rule"),
        ({"rule": "waiver-expired"}, 2, "P103 waiver-expired cannot be waived"),
        ({"scope": ""}, 3, "scope: expected a pattern"),
        ({"scope": {}}, 3, "scope: expected a pattern of subjects, or a table of subject, tensors and source"),
        ({"scope": "{ subjct = '*' }"}, 3, "scope: no key 'subjct': did you mean 'subject'?"),
        ({"scope": "{ source = 1 }"}, 3, "scope: source: expected a pattern, found 1"),
    ],
)
def test_a_waiver_that_is_none(blockaudit: Run, tmp_path: Path, changes: dict[str, Any], line: int, says: str) -> None:
    _told(waiver(**changes))
    outcome = blockaudit("inspect", family("llama")(tmp_path / "ckpt"))
    assert (outcome.status, outcome.out) == (2, "")
    assert outcome.err.startswith(f"blockaudit: error: blockaudit.toml:{line}: waiver 1: ")
    assert says in outcome.err
    assert outcome.err.count("\n") == 1


def test_dates_of_toml_are_dates_and_times_are_none(blockaudit: Run, tmp_path: Path) -> None:
    source = changed(tmp_path)
    for date, status in (("2026-12-31", 0), ("2026-12-31T00:00:00", 2)):
        _told(waiver(expires=None), f"expires = {date}")
        assert blockaudit("inspect", source, "--manifest", "pinned.json").status == status


def test_a_clock_that_is_none(blockaudit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _told(waiver())
    for epoch in ("yesterday", "9" * 40):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
        outcome = blockaudit("inspect", changed(tmp_path, f"at-{epoch[0]}"), "--manifest", "pinned.json")
        assert outcome.status == 2
        assert "SOURCE_DATE_EPOCH" in outcome.err


def test_the_clock_of_the_machine_stands_in(blockaudit: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    source = changed(tmp_path)
    for expires, status in (("2999-12-31", 0), ("2020-01-01", 1)):
        _told(waiver(expires=expires))
        assert blockaudit("inspect", source, "--manifest", "pinned.json").status == status


def test_what_covers_nothing_is_told_once_for_several_sources(blockaudit: Run, tmp_path: Path) -> None:
    sound, other = family("llama")(tmp_path / "a"), changed(tmp_path)
    _told(waiver(), waiver(rule="missing-key"), waiver(rule="trace-divergence"))
    outcome = blockaudit("inspect", sound, other, "--manifest", "pinned.json")
    assert outcome.status == 0
    (line,) = outcome.err.splitlines()
    assert line.startswith("blockaudit: note: blockaudit.toml:")
    assert "the waiver of missing-key" in line
    assert blockaudit("inspect", sound, other, "--manifest", "pinned.json", "--quiet").err == ""


def test_in_python(tmp_path: Path) -> None:
    import blockaudit
    from blockaudit.records.suppression import Scope, Waiver

    source = changed(tmp_path)
    held = Waiver("N201", Scope(subject="decoder.*"), "retrained", "norms", "2026-12-31")
    report = blockaudit.inspect(source, manifest="pinned.json", waivers=[held])
    assert (report.verdict, [s.owner for s in report.suppressed]) == ("accepted", ["norms"])
    late = Waiver("N201", Scope(subject="decoder.*"), "retrained", "norms", "2026-01-31")
    report = blockaudit.inspect(source, manifest="pinned.json", waivers=[late])
    assert [f.name for f in report.findings] == ["epsilon-mismatch", "waiver-expired"]


def test_non_finite_numbers_can_be_waived_by_name(blockaudit: Run, tmp_path: Path) -> None:
    source = family("llama", put("model.norm.weight", [float("nan")] * 8))(tmp_path / "ckpt")
    rejected = audited(blockaudit, "inspect", source, "--level", "values")
    assert "non-finite-values" in rejected.names
    _told(waiver(rule="non-finite-values", scope="*"))
    assert "non-finite-values" not in audited(blockaudit, "inspect", source, "--level", "values").names
