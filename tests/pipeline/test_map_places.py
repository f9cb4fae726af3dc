"""A flaw of a map stands on a line of its file."""

from __future__ import annotations

from pathlib import Path

from tests.support.maps import Q, apart, command, write


def test_a_finding_names_the_line_of_its_rule(tmp_path: Path) -> None:
    case = apart()
    case.rule("k_proj").pop("ops")
    file, source = write(case, tmp_path)
    said = command("map", "check", str(file), "--source", str(source), "--format", "sarif").report
    assert said is not None
    (result,) = (r for r in said["runs"][0]["results"] if r["level"] == "error")
    line = result["locations"][0]["physicalLocation"]["region"]["startLine"]
    text = file.read_text().splitlines()
    assert '"from": "layers.{l}.attention.wk.weight"' in text[line - 1] or text[line - 1].strip() == "{"
    assert '"from": "layers.{l}.attention.wk.weight"' in "\n".join(text[line - 1 : line + 2])


def test_a_schema_error_names_the_line(tmp_path: Path) -> None:
    case = apart()
    case.rule("o_proj")["ops"] = [{"op": "transpose", "axis": 1}]
    file, source = write(case, tmp_path)
    done = command("map", "check", str(file), "--source", str(source), "--format", "json")
    (finding,) = done.findings
    line = int(finding["message"].removeprefix(f"{file}:").partition(":")[0])
    assert Q + "self_attn.o_proj.weight" in "\n".join(file.read_text().splitlines()[line - 5 : line + 3])
