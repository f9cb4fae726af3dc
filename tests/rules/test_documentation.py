"""Every rule documents itself, once, under the name that the outside contract gives it."""

from __future__ import annotations

from pathlib import Path

import pytest

import blockaudit.rules
from blockaudit.cli.rules import markdown
from blockaudit.rules.documentation import GROUPS, SECTIONS, documentation, full
from blockaudit.rules.registry import Entry, entries

ROOT = Path(__file__).parents[2]

# The names that a user may rely on, by group.
PROMISED = {
    "F": "unreadable-file truncated-file corrupt-header overlapping-tensors header-gap shard-missing shard-unlisted "
    "index-mismatch total-size-mismatch duplicate-key unsafe-pickle lfs-pointer non-finite-values",
    "K": "missing-key unexpected-key nothing-loaded prefix-mismatch wrapper-prefix legacy-name tied-weights-mismatch "
    "alias-missing unknown-architecture adapter-only sharded-training-state",
    "S": "shape-mismatch transposed-weight vocab-size-mismatch dtype-mismatch quantization-mismatch",
    "C": "config-missing config-invalid config-field-unconsumed layer-count-mismatch config-tensor-mismatch",
    "N": "norm-family-mismatch epsilon-mismatch norm-bias-missing norm-bias-unexpected norm-missing norm-unexpected "
    "final-norm-missing final-norm-unexpected scale-offset-mismatch norm-shared norm-axes-mismatch "
    "norm-work-dtype-mismatch norm-formula-mismatch qk-norm-mismatch padding-policy-missing calibration-stale",
    "T": "placement-mismatch call-order-mismatch branch-count-mismatch branch-input-mismatch branch-scale-mismatch "
    "branch-bias-missing branch-bias-unexpected residual-shape-mismatch residual-source-mismatch "
    "residual-scale-mismatch residual-dropped residual-duplicated residual-mutated shortcut-not-identity "
    "parallel-sequential-mismatch embedding-scale-mismatch logit-scale-mismatch causal-leak score-residual-mismatch "
    "transient-state-persisted dropout-placement-mismatch dropout-owner-mismatch dropout-unexpected "
    "dropout-active-in-eval initialization-mismatch recipe-incomplete fold-not-exact",
    "V": "trace-divergence trace-non-finite site-missing probe-insufficient gradient-divergence recompute-divergence "
    "resume-state-missing fused-abi-mismatch distributed-divergence",
    "M": "map-invalid map-not-total map-not-injective map-undeclared-transpose map-undeclared-layout "
    "map-shape-mismatch map-norm-swapped map-alias-lost map-config-lost map-round-trip map-invents-state "
    "topology-change-needs-retraining",
    "P": "policy-invalid gate-missing waiver-expired tolerance-missing claim-unsupported output-only-evidence "
    "threshold-not-local",
}
# Ours, and said so in the README.
ADDED = (
    "norm-untrained",
    "derived-buffer-mismatch",
    "graph-unclassified",
    "parameter-unconsumed",
    "inputs-changed",
    "layout-converted",
    "part-not-covered",
    "adapter-incomplete",
    "adapter-target-mismatch",
    "adapter-target-unmatched",
    "adapter-shape-mismatch",
    "map-role-swapped",
    "map-source-unknown",
)

each_rule = pytest.mark.parametrize("entry", entries(), ids=lambda e: f"{e.rule.code}-{e.rule.name}")


@each_rule
def test_a_rule_has_every_section(entry: Entry) -> None:
    said = documentation(entry)
    assert tuple(said.sections) == SECTIONS
    assert all(said.sections.values())
    assert said.summary.endswith(".")
    assert entry.doc.startswith(said.summary)


@each_rule
def test_a_rule_has_help_that_reads_after_what_to_do(entry: Entry) -> None:
    assert entry.rule.help[0].islower() or entry.rule.help.startswith("config.json")
    assert not entry.rule.help.endswith(".")
    assert entry.rule.severity in ("error", "warning", "note")


@each_rule
def test_the_name_is_promised_or_said_to_be_ours(entry: Entry) -> None:
    name, letter = entry.rule.name, entry.rule.code[0]
    if name in ADDED:
        assert f"`{name}`" in (ROOT / "README.md").read_text(encoding="utf-8")
    else:
        assert name in PROMISED[letter].split()


def test_codes_and_names_are_unique() -> None:
    rules = [e.rule for e in entries()]
    assert len({r.code for r in rules}) == len(rules)
    assert len({r.name for r in rules}) == len(rules)
    assert {r.code[0] for r in rules} <= GROUPS.keys()


def test_a_file_is_named_after_its_rule() -> None:
    wanted = {f"{e.rule.code.lower()}_{e.rule.name.replace('-', '_')}.py" for e in entries()}
    found = {p.name for p in Path(blockaudit.rules.__path__[0]).glob("*.py") if p.name[1:4].isdigit()}
    assert found == wanted


def test_sections_are_single_paragraphs() -> None:
    by_name = {e.rule.name: e for e in entries()}
    assert full(by_name["epsilon-mismatch"]) == {
        "code": "N201",
        "name": "epsilon-mismatch",
        "severity": "error",
        "summary": "Two witnesses give different epsilons.",
        "group": "norms",
        "leaves_unverified": False,
        "waivable": True,
        "lab": [12, 39],
        "help": "restore the epsilon that the weights were trained with, or pin the new one after retraining",
        "what_it_means": "The manifest's value is not the one that config.json gives, "
        "the code runs or the numbers show.",
        "why_it_matters": "Every shape stays right; rows whose mean square is near epsilon are scaled differently, "
        "and quality falls without an error.",
        "example": "A row of +-0.02: 0.99875 at 1e-6 and 0.98773 at 1e-5.",
        "what_to_do": "Restore the epsilon that the weights were trained with, or pin the new one after retraining.",
        "sources": [
            "specification 0x02: LayerNorm normalizes channels inside each row",
            "specification 0x03: RMSNorm keeps rescaling and removes re-centering",
            "specification 0x0D, failure 12: Using a mismatched epsilon.",
            "specification 0x0D, failure 39: Assuming epsilon matters only for zero-variance rows.",
        ],
    }


def test_the_committed_document_is_current() -> None:
    committed = (ROOT / "docs" / "rules.md").read_text(encoding="utf-8")
    assert committed == markdown(entries()), "run: python -m blockaudit rules --format markdown > docs/rules.md"
