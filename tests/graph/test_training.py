"""Where dropout stands, read off the training graph: modules by hand, the library's families, and the rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch import nn

from blockaudit.graph import dropout_fields, masks
from blockaudit.graph.record import record_module
from blockaudit.graph.training import record_module_training, record_training
from blockaudit.manifest.bind import bind
from blockaudit.manifest.load import library
from blockaudit.reconcile.contract import same
from blockaudit.resources import handmade_ids
from tests.families import models
from tests.graph import droppers as d
from tests.graph.test_families import _config as config_of  # pyright: ignore[reportPrivateUsage]
from tests.support.audit import Outcome, inspect

OUTPUTS = ("attention_output", "mlp_output")
PLAIN = {"p": d.P, "granularity": "element", "scaling": "inverted", "schedule": "constant"}


def at(position: str, *owners: str, **changed: Any) -> dict[str, Any]:
    """The fields of these owners at one position."""
    said = {**PLAIN, "position": position, **changed}
    return {f"{owner}.{name}": value for owner in owners or OUTPUTS for name, value in said.items()}


def nobody(*places: str) -> dict[str, Any]:
    return {"unclassified": [f"{place}: p {d.P}" for place in places]}


IN_ATTENTION = "inside causal_self_attention, not on the probabilities"
IN_MLP = "inside mlp, not on what its last projection reads"

CASES: dict[str, tuple[Callable[[], nn.Module], dict[str, Any]]] = {
    "before the add": (lambda: d.Net(d.pre), at("before_add")),
    "before the add of a post-LN block": (lambda: d.Net(d.post), at("before_add")),
    "after the add": (lambda: d.Net(d.after), at("after_add")),
    "between the add and its norm": (lambda: d.Net(d.after_post), at("after_add")),
    "on the shortcut": (lambda: d.Net(d.shortcut), at("shortcut")),
    "beside a factor": (lambda: d.Net(d.scaled), at("before_add")),
    "on the sum of two branches": (lambda: d.Net(d.parallel), at("before_add")),
    "on what a branch reads": (lambda: d.Net(d.entering), nobody(IN_ATTENTION, IN_MLP)),
    "twice": (
        lambda: d.Net(d.pre, lambda: nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))), at("before_add", p=0.75),
    ),
    "a path": (lambda: d.Net(d.pre, lambda: d.DropPath(d.P)), at("before_add", "drop_path", granularity="example")),
    "a path by a floor": (
        lambda: d.Net(d.pre, lambda: d.FloorPath(d.P)), at("before_add", "drop_path", granularity="example"),
    ),
    "a path that grows": (
        lambda: d.deepening(5, 0.4),
        at("before_add", "drop_path", p=0.4, granularity="example", schedule="linear_in_depth"),
    ),
    "not scaled": (lambda: d.Net(d.pre, d.Masked), at("before_add", scaling="none")),
    "channels": (lambda: d.Net(d.pre, d.Channels), at("before_add", granularity="channel")),
    "rows": (lambda: d.Net(d.pre, d.Rows), at("before_add", granularity="row")),
    "probabilities": (
        lambda: d.Net(d.bare, attend=lambda: d.Attend(probabilities=nn.Dropout(d.P))),
        at("inside_branch", "attention_probability"),
    ),
    "probabilities, fused": (lambda: d.Net(d.bare, attend=d.Fused), at("inside_branch", "attention_probability")),
    "scores": (lambda: d.Net(d.bare, attend=lambda: d.Attend(scores=nn.Dropout(d.P))), nobody(IN_ATTENTION)),
    "mixed rows": (lambda: d.Net(d.bare, attend=lambda: d.Attend(rows=nn.Dropout(d.P))), nobody(IN_ATTENTION)),
    "the hidden layer": (lambda: d.Net(d.bare, mlp=lambda: d.Two(nn.Dropout(d.P))), at("inside_branch", "mlp_hidden")),
    "before the activation": (lambda: d.Net(d.bare, mlp=lambda: d.Two(before=nn.Dropout(d.P))), nobody(IN_MLP)),
    "the embedding": (lambda: d.Net(d.bare, embedding=nn.Dropout(d.P)), at("input", "embedding")),
    "what leaves the stack": (lambda: d.Net(d.bare, last=nn.Dropout(d.P)), {"stack_output.p": d.P}),
    "nothing": (lambda: d.Net(d.bare), {}),
    "nothing at zero": (lambda: d.Net(d.pre, lambda: nn.Dropout(0.0)), {}),
}  # fmt: skip


def said_of(module: nn.Module, declared: tuple[str, ...] = ()) -> dict[str, Any]:
    statements = dropout_fields.speak(["decoder"], record_module_training(module), declared)
    return {field.removeprefix("decoder.dropout."): s.value for field, s in statements.items()}


@pytest.mark.parametrize("name", CASES)
def test_a_dropout_is_read_right_or_called_nobodys(name: str) -> None:
    build, expected = CASES[name]
    assert said_of(build()) == expected


@pytest.mark.parametrize("drop", [lambda: nn.AlphaDropout(d.P), d.Noise])
def test_what_is_no_dropout_is_named_by_its_operator(drop: Callable[[], nn.Module]) -> None:
    (field, value), *others = said_of(d.Net(d.pre, drop)).items()
    assert (field, others, len(value)) == ("unclassified", [], 4)


def test_a_dropout_at_zero_has_its_place_where_it_is_declared() -> None:
    declared = tuple(f"decoder.dropout.{owner}.p" for owner in (*OUTPUTS, "mlp_hidden"))
    found = said_of(d.Net(d.pre, lambda: nn.Dropout(0.0)), declared)
    assert found["attention_output.position"] == found["mlp_output.position"] == "before_add"
    assert found["attention_output.p"] == found["mlp_output.p"] == found["mlp_hidden.p"] == 0.0
    assert "mlp_hidden.position" not in found


def test_a_layer_that_has_none_is_seen() -> None:
    module = d.Net(d.pre)
    module.k[1].d = nn.Identity()
    assert said_of(module)["mlp_output.p"] == [0.0, d.P]


@pytest.mark.parametrize("name", [n for n in CASES if n != "nothing"])
def test_in_eval_mode_nothing_is_dropped(name: str) -> None:
    assert masks.find(record_module(CASES[name][0]())) == ([], [])


# -- the library ------------------------------------------------------------------------------------------------------

FLIPS: list[tuple[str, dict[str, Any]]] = [
    ("falcon", {"alibi": True}),
    ("falcon", {"parallel_attn": False}),
    ("gpt2", {"add_cross_attention": True}),
    ("bert", {"is_decoder": True, "add_cross_attention": True}),
    ("opt", {"do_layer_norm_before": False}),
    ("stablelm", {"use_parallel_residual": True}),
]
# A dropout of its own probability for every key, so that a place shows which key it reads.
STEP = 0.03


def _distinct(config: dict[str, Any]) -> dict[str, Any]:
    keys = [k for k, v in config.items() if "drop" in k and "layerdrop" not in k and type(v) in (int, float)]
    return {k: round(0.05 + STEP * i, 2) for i, k in enumerate(sorted(keys))}


@pytest.mark.parametrize(("family", "changed"), [*((f, {}) for f in handmade_ids()), *FLIPS])
def test_the_library_declares_the_dropouts_that_run(family: str, changed: dict[str, Any]) -> None:
    config = config_of(family, **changed)
    config |= _distinct(config)
    bound = bind(library(family).manifest, config)
    named = {**config, "architectures": [bound.class_name or models.main_class(family)]}
    stacks = [s.name for s in bound.spans if not s.ignored]
    statements = dropout_fields.speak(stacks, record_training(named), bound.fields)
    said = {f: s.value for f, s in statements.items() if ".dropout." in f and ".stack_output." not in f}
    declared = {f: v.value for f, v in bound.fields.items() if ".dropout." in f}
    # Of what never drops there is no more to say than that.
    still = {f.removesuffix(".p") for f, p in declared.items() if f.endswith(".p") and p == 0 == said.get(f)}
    assert still <= {"decoder.dropout.attention_probability"}
    shown = {f: v for f, v in declared.items() if f.rpartition(".")[0] not in still or f.endswith(".p")}
    assert said.keys() == shown.keys()
    assert [(f, v, said[f]) for f, v in shown.items() if not same(v, said[f])] == []


# -- the rules --------------------------------------------------------------------------------------------------------

USER = """
from torch import nn
from transformers import AutoModelForCausalLM

def model(source, *, device, dtype):
    return AutoModelForCausalLM.from_pretrained(source, dtype=dtype, attn_implementation="eager")

def edited(edit):
    def make(source, **options):
        made = model(source, **options)
        for block in made.transformer.h if hasattr(made, "transformer") else made.model.layers:
            edit(block)
        return made
    return make

class Always(nn.Module):
    def forward(self, x):
        return nn.functional.dropout(x, 0.1)

def _after(block):
    block.mlp.dropout = nn.Identity()
    block.register_forward_hook(lambda m, a, out: nn.functional.dropout(out, 0.1, m.training))

def _more(block):
    block.attn.resid_dropout.p = 0.3

def _gone(block):
    block.attn.attn_dropout.p = 0.0

def _added(block):
    block.self_attn.o_proj = nn.Sequential(block.self_attn.o_proj, nn.Dropout(0.1))

def _silent(block):
    block.self_attn.o_proj = nn.Sequential(block.self_attn.o_proj, nn.Dropout(0.0))

def _odd(block):
    block.input_layernorm = nn.Sequential(block.input_layernorm, nn.Dropout(0.1))

def _always(block):
    block.self_attn.o_proj = nn.Sequential(block.self_attn.o_proj, Always())

after, more, gone, added, silent, odd, always = map(edited, (_after, _more, _gone, _added, _silent, _odd, _always))
"""
PLACED, OWNED, UNEXPECTED = "dropout-placement-mismatch", "dropout-owner-mismatch", "dropout-unexpected"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model of each family that is used, and the user's file."""
    folder = tmp_path_factory.mktemp("dropout")
    for family in ("gpt2", "llama"):
        models.build(family).save_pretrained(folder / family)
    (folder / "user.py").write_text(USER, encoding="utf-8")
    return folder


def _audited(folder: Path, family: str, name: str) -> Outcome:
    return inspect(folder / family, "--level", "graph", "--candidate", f"{folder / 'user.py'}:{name}")


RULES: list[tuple[str, str, int, list[tuple[str, str, Any, Any]]]] = [
    ("gpt2", "model", 0, []),
    ("gpt2", "after", 1, [(PLACED, "decoder.dropout.mlp_output", "before_add", "after_add")]),
    ("gpt2", "more", 1, [(OWNED, "decoder.dropout.attention_output", 0.1, 0.3)]),
    ("gpt2", "gone", 1, [(OWNED, "decoder.dropout.attention_probability", 0.1, 0.0)]),
    ("llama", "model", 0, []),
    ("llama", "silent", 0, []),
    ("llama", "added", 1, [(UNEXPECTED, "decoder.dropout.attention_output", None, 0.1)]),
]


@pytest.mark.parametrize(("family", "name", "status", "expected"), RULES, ids=[f"{r[0]}-{r[1]}" for r in RULES])
def test_a_candidate_is_held_to_the_dropouts_of_its_manifest(
    family: str, name: str, status: int, expected: list[Any], saved: Path
) -> None:
    outcome = _audited(saved, family, name)
    found = [(f["name"], f["subject"], f["expected"], f["observed"]) for f in outcome.findings]
    assert (outcome.status, found) == (status, expected)


def test_what_no_owner_covers_is_a_warning(saved: Path) -> None:
    outcome = _audited(saved, "llama", "odd")
    found = [(f["name"], f["severity"]) for f in outcome.findings]
    assert (outcome.status, found) == (0, [(UNEXPECTED, "warning")])


def test_a_dropout_that_acts_in_eval_is_named_and_read_through(saved: Path) -> None:
    outcome = _audited(saved, "llama", "always")
    assert (outcome.status, outcome.names) == (1, [UNEXPECTED, "dropout-active-in-eval"])
    assert outcome.report is not None
    rows = {r["field"]: r["executed"] for r in outcome.report["contract"]}
    assert rows["decoder.self_attention.norm_in.placement"] == "pre_branch"


def test_a_module_alone_that_drops_in_eval_is_rejected(tmp_path: Path) -> None:
    user = tmp_path / "user.py"
    user.write_text(
        "from tests.graph import droppers as d\n"
        "def good(source, *, device, dtype):\n    return d.Net(d.pre).to(device, dtype)\n"
        "def bad(source, *, device, dtype):\n    return d.Net(d.pre, d.Always).to(device, dtype)\n",
        encoding="utf-8",
    )
    from blockaudit import pipeline

    good = pipeline.inspect(None, level="graph", candidate=f"{user}:good")
    bad = pipeline.inspect(None, level="graph", candidate=f"{user}:bad")
    assert (good.verdict, bad.verdict) == ("accepted", "rejected")
    assert [f.name for f in bad.findings] == ["dropout-active-in-eval"]
    assert {r.field: r.value("executed") for r in good.contract}["decoder.dropout.mlp_output.position"] == "before_add"
