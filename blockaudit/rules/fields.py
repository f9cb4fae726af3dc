"""Every contract field: where its meaning is written, which witnesses can speak to it, which rules judge it.

The meaning itself is the description that the manifest's schema has of the field. Tests hold this table to the schema,
to the rules and to what the witnesses of the shipped checkpoint say.
"""

from __future__ import annotations

import re

import msgspec

from blockaudit.rules import citations
from blockaudit.rules.base import Rule

_NUMBERS = "rows that went into the norm and came out"
_EDIT = "an edit of the manifest that brings the numbers back"


class ContractField(msgspec.Struct, frozen=True):
    """One kind of field: `end` is the end of its name (`.norm_in.epsilon` and `.final_norm.epsilon` end in `epsilon`).

    `defined` is where the manifest's schema describes it: a definition and a property. `stored`, `executed` and
    `measured` say what each witness reads; empty where it cannot speak.
    """

    end: str
    defined: tuple[str, str] | None
    rules: tuple[str, ...] = ()
    sections: tuple[str, ...] = ()
    stored: str = ""
    executed: str = ""
    measured: str = ""
    meaning: str = ""  # of fields that no property of the schema is


def _norm(
    name: str, rules: str, sections: str, *, stored: str = "", measured: str = _NUMBERS, executed: str = "the operators"
) -> ContractField:
    cited = tuple(sections.split())
    return ContractField(name, ("norm", name), tuple(rules.split()), cited, stored, executed, measured)


def _graph(end: str, defined: str, rules: str, sections: str, measured: str = "") -> ContractField:
    part, _, name = defined.partition(".")
    return ContractField(
        end, (part, name), tuple(rules.split()), tuple(sections.split()), "", "the operators", measured
    )


def _dropout(name: str, rules: str, sections: str = "0x0A") -> ContractField:
    return ContractField(
        f"dropout.*.{name}", ("dropout", name), tuple(rules.split()), tuple(sections.split()),
        executed="the operators in train mode",
    )  # fmt: skip


FIELDS: tuple[ContractField, ...] = (
    ContractField(
        "present", None, ("norm-missing", "norm-unexpected", "final-norm-missing", "final-norm-unexpected",
        "qk-norm-mismatch", "placement-mismatch"), ("0x04", "0x09"), "keys", "the operators", _EDIT,
        "Whether there is a norm at this site.",
    ),
    _norm("family", "norm-family-mismatch", "0x02 0x03"),
    _norm("placement", "placement-mismatch", "0x04", measured=_EDIT),
    _norm("reduction_axes", "norm-axes-mismatch", "0x02", measured=""),
    _norm("epsilon", "epsilon-mismatch", "0x02 0x03"),
    _norm("epsilon_location", "norm-formula-mismatch", "0x02"),
    _norm("variance_correction", "norm-formula-mismatch", "0x02"),
    _norm("center", "norm-formula-mismatch", "0x02 0x03"),
    _norm("scale", "norm-axes-mismatch", "0x02 0x03", stored="shapes of scalar weights"),
    _norm("scale_offset", "scale-offset-mismatch", "", stored="statistics of the norm vectors"),
    _norm("bias", "norm-bias-missing norm-bias-unexpected", "0x02 0x03", stored="keys"),
    _norm("work_dtype", "norm-work-dtype-mismatch", "0x03"),
    _norm("cast_order", "norm-work-dtype-mismatch", "0x03"),
    _norm("algorithm", "norm-formula-mismatch", "", executed="", measured=""),
    _norm("groups", "norm-formula-mismatch", "", executed="", measured=""),
    _norm("couples", "padding-policy-missing", "", executed="", measured=""),
    _norm("padding_policy", "padding-policy-missing", "", executed="", measured=""),
    _norm("persistent_state", "", "0x0CA", executed="", measured=""),
    _norm("subset", "norm-formula-mismatch", "0x03", executed="", measured=""),
    _norm("instance", "norm-shared", "", executed="", measured=""),
    _norm("owner", "", "", executed="", measured=""),
    ContractField(
        "layers", ("stack", "layers"), ("layer-count-mismatch",), (), "layer numbers in keys", "the operators",
    ),
    ContractField(
        "branch_order", ("", "branch_order"), ("branch-count-mismatch", "call-order-mismatch"),
        ("0x06", "0x07", "0x08"),
        executed="the operators",
    ),
    _graph("parallel", "stack.parallel", "parallel-sequential-mismatch", "0x04", _EDIT),
    _graph("embedding.scale", "stack.embedding_scale", "embedding-scale-mismatch", "", _EDIT),
    _graph("logits.scale", "stack.logit_scale", "logit-scale-mismatch", "", _EDIT),
    _graph("logits.softcap", "stack.logit_softcap", "logit-scale-mismatch", "", _EDIT),
    _graph("residual.shortcut", "residual.shortcut", "shortcut-not-identity", "0x01 0x09A"),
    _graph("residual.shortcut_source", "residual.shortcut_source", "residual-source-mismatch", "0x01 0x04", _EDIT),
    _graph("residual.update", "residual.update", "shortcut-not-identity", "0x01 0x09A"),
    _graph(
        "shortcut_scale", "residual.shortcut_scale",
        "residual-scale-mismatch residual-dropped residual-duplicated", "0x01 0x09A", _EDIT,
    ),
    _graph("attention_branch_scale", "residual.attention_branch_scale", "branch-scale-mismatch", "0x01 0x09A", _EDIT),
    _graph(
        "cross_attention_branch_scale", "residual.cross_attention_branch_scale", "branch-scale-mismatch",
        "0x01 0x09A", _EDIT,
    ),
    _graph("mlp_branch_scale", "residual.mlp_branch_scale", "branch-scale-mismatch", "0x01 0x09A", _EDIT),
    ContractField("_scale.granularity", ("scale", "granularity"), (), ("0x09A",)),
    ContractField("_scale.learned", ("scale", "learned"), (), ("0x09A",)),
    ContractField("_scale.init", ("scale", "init"), (), ("0x09A",)),
    ContractField("residual.dtype", ("residual", "dtype"), (), ("0x0AA", "0x0CA")),
    _dropout("p", "dropout-owner-mismatch dropout-unexpected"),
    _dropout("position", "dropout-placement-mismatch"),
    _dropout("granularity", "dropout-placement-mismatch"),
    _dropout("scaling", "dropout-placement-mismatch"),
    _dropout("schedule", "dropout-placement-mismatch"),
    _graph("kind", "branch.kind", "causal-leak", "0x01 0x07", _EDIT),
    _graph("reads", "branch.reads", "branch-input-mismatch", "0x04 0x07"),
    ContractField("sources.*", ("branch", "sources"), ("branch-input-mismatch",), ("0x07",)),
    _graph("softcap", "branch.softcap", "logit-scale-mismatch", ""),
    _graph("score_route", "branch.score_route", "score-residual-mismatch", "0x09A"),
    ContractField(
        "bias.*", ("tensor", "bias"), ("branch-bias-missing", "branch-bias-unexpected"), ("0x0AA",), "keys",
    ),
    ContractField(
        "tie.*", ("tensor", "tie"), ("tied-weights-mismatch", "alias-missing"), ("0x01",),
        "keys, and samples of both tensors", meaning="Whether this key shares the storage of another.",
    ),
    ContractField(
        "dims.*", ("", "dims"), ("config-tensor-mismatch", "shape-mismatch", "vocab-size-mismatch"), ("0x0C",),
        "shapes",
        meaning="A size that shapes are made of.",
    ),
    ContractField(
        "quantization.logical_shapes", None, ("quantization-mismatch",), (),
        meaning="The shapes of weights before they were packed; named where a packing does not say them.",
    ),
)  # fmt: skip


def field(name: str) -> ContractField | None:
    """The kind of field that a name is of, the longest end first; parts of a name may be left out in front."""
    plain = re.sub(r"\[[^\]]*\]", "", name)
    fits = [f for f in FIELDS if _pattern(f.end).search(f".{plain}")]
    return max(fits, key=lambda f: len(f.end), default=None)


def _pattern(end: str) -> re.Pattern[str]:
    """`_scale.init` ends a part, `epsilon` is one; `dropout.*.p` has any owner between."""
    front = "" if end.startswith("_") else r"\."
    return re.compile(front + re.escape(end).replace(r"\*", ".+") + "$")


def rule_sources(rule: Rule) -> tuple[str, ...]:
    """Where a rule comes from: failures of the lab that it names, and the sections on the fields that it judges."""
    sections = {code for f in FIELDS if rule.name in f.rules for code in f.sections}
    return (*map(citations.section, sorted(sections)), *map(citations.lab, rule.lab))
