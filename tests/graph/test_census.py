"""The census: one entry at a time in a process that may die, and a page that says why what is not confirmed is not."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from blockaudit.graph import tiny
from blockaudit.graph.census import Worker
from blockaudit.graph.census_table import table

CONFIRMED = {
    "task": "causal", "type": "llama", "class": "LlamaForCausalLM", "verdict": "confirmed", "reason": "",
    "equations": ["decoder: h = embed", "decoder: h = h + attn(rms(h)) (x3)"], "oddities": [],
    "norms": ["decoder: rmsnorm, weight, eps 1e-06 (rms_norm_eps)"], "seconds": 3.2,
}  # fmt: skip
CONTRADICTED = {
    "task": "causal", "type": "odd", "class": "OddForCausalLM", "verdict": "contradicted", "seconds": 1.0,
    "equations": ["decoder: h = h + mlp(h)"], "oddities": [], "reason": "decoder at add 2: the sum differs by 9.6e-02",
}  # fmt: skip
# Answers one entry after a line of noise, and dies at a type named `bad`.
PROGRAM = """
import json, sys
for line in sys.stdin:
    task, kind, name = json.loads(line)
    if kind == "bad":
        sys.exit(3)
    print("noise")
    print(json.dumps({"task": task, "type": kind, "class": name, "verdict": "confirmed", "reason": ""}), flush=True)
"""


def test_a_process_that_dies_is_a_row_and_the_next_entry_gets_a_new_one() -> None:
    worker = Worker((sys.executable, "-c", PROGRAM))
    try:
        rows = [worker.row(("causal", kind, "X")) for kind in ("good", "bad", "fine")]
    finally:
        worker.close()
    assert [r["verdict"] for r in rows] == ["confirmed", "not run", "confirmed"]
    assert rows[1]["reason"] == "the process that ran it died, or took too long"


def test_only_what_is_confirmed_has_its_equation_shown() -> None:
    page = table([CONFIRMED, CONTRADICTED], "5.0")
    assert "2 entries are listed, 2 ran, 1 are confirmed." in page
    assert "`h = h + attn(rms(h)) (x3)`" in page
    assert "mlp(h)" not in page
    assert "| contradicted | the sum differs | 1: odd (causal) |" in page


def test_seconds_do_not_reach_the_page() -> None:
    assert table([CONFIRMED], "5.0") == table([CONFIRMED | {"seconds": 99.9}], "5.0")


def test_every_epsilon_of_a_config_gets_a_value_that_is_no_default_and_its_own() -> None:
    for model_type, name in (("t5gemma", "T5GemmaForConditionalGeneration"), ("llama", "LlamaForCausalLM")):
        config = tiny.configs(model_type, name, moved=True)[0]()
        values = list(tiny.epsilons(config).values())
        assert len(set(values)) == len(values)
        assert not set(values) & {1e-12, 1e-8, 1e-6, 1e-5, 1e-3}


def test_the_committed_page_has_nearly_every_type_confirmed_and_none_contradicted() -> None:
    page = Path(__file__, "../../../docs/census.md").resolve().read_text()
    listed, ran, confirmed = map(int, re.findall(r"(\d+) (?:entries are listed|ran|are confirmed)", page))
    assert listed >= 280
    assert ran >= 270
    assert confirmed >= 0.95 * ran
    assert "| contradicted | 0 |" in page
