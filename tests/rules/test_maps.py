"""Rules of group M: the map that fires each, and the nearest that does not; all through `map check` on real files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.maps import QKV, Case, P, Q, apart, check, fused, rope, rule

Start = Callable[[], Case]


@dataclass(frozen=True)
class Fires:
    """A map on which `rule` fires and nothing else but `beside`; `says` are parts of its message."""

    rule: str
    name: str
    edit: Callable[[Case], Any]
    says: tuple[str, ...] = ()
    start: Start = apart
    beside: tuple[str, ...] = ()


@dataclass(frozen=True)
class Near:
    """The nearest map on which `rule` does not fire: it is accepted."""

    rule: str
    name: str
    edit: Callable[[Case], Any]
    start: Start = apart


def named(case: Case, source: str, *keys: str) -> None:
    """A source under a manifest of the library: the target's own names, and its config."""
    case.map["source"] = source
    case.map["config"] = {}
    case.map["rules"] = [rule(k, k) for k in keys]


def llama(**config: Any) -> Start:
    """A LLaMA as transformers stores it, moved to itself: both manifests speak of every key."""

    def start() -> Case:
        case = apart()
        moved = {r["from"]: r["to"] for r in case.map["rules"]}
        names = {old.replace("{l}", n): new.replace("{l}", n) for old, new in moved.items() for n in "01"}
        case.tensors = {names[key]: tensor for key, tensor in case.tensors.items()}
        keys = case.map["config"]
        case.config = {keys.get(k, k): v for k, v in (case.config or {}).items()} | {"model_type": "llama"} | config
        named(case, "llama", *moved.values())
        return case

    return start


def exchange(one: str, two: str) -> Callable[[Case], None]:
    def edit(case: Case) -> None:
        a, b = case.rule(one), case.rule(two)
        a["to"], b["to"] = b["to"], a["to"]

    return edit


def ops(to: str, *operations: dict[str, Any], **words: Any) -> Callable[[Case], None]:
    def edit(case: Case) -> None:
        found = case.rule(to)
        found.pop("ops", None)
        found |= ({"ops": list(operations)} if operations else {}) | words

    return edit


def tied(alias: bool) -> Callable[[Case], None]:
    def edit(case: Case) -> None:
        case.without("lm_head")
        del case.tensors["output.weight"]
        case.config = {**(case.config or {}), "tie_word_embeddings": True}
        if alias:
            case.map["alias"] = [["lm_head.weight", "model.embed_tokens.weight"]]

    return edit


def bfloat16_gain(case: Case) -> None:
    """A gain cast to half of its bits: it cannot come back."""
    ops("model.norm.weight", {"op": "cast", "dtype": "bfloat16"})(case)


def add(case: Case, **words: Any) -> None:
    for key, value in words.items():
        case.map.setdefault(key, []).append(value)


def move(to: str, *, from_: Any = None, into: Any = None) -> Callable[[Case], None]:
    """A rule that takes or feeds another key."""

    def edit(case: Case) -> None:
        found = case.rule(to)
        found |= {"from": from_} if from_ is not None else {}
        found |= {"to": into} if into is not None else {}

    return edit


def first_out(*names: str) -> Callable[[Case], None]:
    """The feed-forward stored input first, and a transpose declared on the rules of these projections."""

    def edit(case: Case) -> None:
        for key, shape in (("w1", (16, 24)), ("w3", (16, 24)), ("w2", (24, 16))):
            for n in range(2):
                case.tensors[f"layers.{n}.feed_forward.{key}.weight"] = np.zeros(shape, np.float32)
        for name in names:
            ops(f"{name}_proj", {"op": "transpose"})(case)

    return edit


def dropped(case: Case) -> None:
    case.tensors["freqs"] = np.ones(4, np.float32)
    add(case, drop={"key": "freqs", "why": "derived from the config"})


def alias_of_nothing(case: Case) -> None:
    case.without("lm_head")
    add(
        case,
        drop={"key": "output.weight", "why": "said to be tied"},
        alias=["lm_head.weight", "model.embed_tokens.weight"],
    )


def supplied(case: Case) -> None:
    case.map["config"]["norm_epsilon"] = None
    case.map["supply"] = {"rms_norm_eps": 1e-5}


def wide_template(case: Case) -> None:
    """`model.{*}` makes one key there, and on the way back takes those of every other rule."""
    case.without("model.norm")
    case.tensors["extra.norm.weight"] = case.tensors.pop("norm.weight")
    add(case, rules=rule("extra.{*}", "model.{*}"))


def matrix_made_up(case: Case) -> None:
    case.without("o_proj")
    add(
        case,
        drop={"key": P + "attention.wo.weight", "why": "?"},
        init={"key": Q + "self_attn.o_proj.weight", "value": "zeros", "why": "?"},
    )


def window(size: int | None) -> Callable[[Case], None]:
    """A Mistral, which is a LLaMA with a window, moved to a LLaMA."""

    def edit(case: Case) -> None:
        case.map["source"] = "mistral"
        case.config = {**(case.config or {}), "model_type": "mistral", "sliding_window": size}

    return edit


def nothing(case: Case) -> None:
    """As it is."""


ZEROS = {"key": Q + "input_layernorm.bias", "value": "zeros", "why": "the target wants one"}
ALL = "gate", "up", "down"
INVALID, TOTAL, INJECTIVE = "map-invalid", "map-not-total", "map-not-injective"
TRANSPOSE, LAYOUT, SHAPE = "map-undeclared-transpose", "map-undeclared-layout", "map-shape-mismatch"
ALIAS, CONFIG_LOST, TRIP = "map-alias-lost", "map-config-lost", "map-round-trip"
TOPOLOGY = "topology-change-needs-retraining"
UNKNOWN = "map-source-unknown"
CASES: list[Fires | Near] = [
    Fires(UNKNOWN, "a layout of nobody's", nothing, ("rests on the map's word",)),
    Near(UNKNOWN, "a family's own keys", nothing, llama()),
    Fires(INVALID, "no to", lambda c: c.map["rules"][0].pop("to"), ("'to'",)),
    Fires(INVALID, "an axis that goes nowhere", move("model.norm", from_="{x}orm.weight"), ("{x}",)),
    Fires(INVALID, "one becomes two without a word", move("gate_proj", into=QKV[:2]), ("no operation",)),
    Fires(
        INVALID, "from two places", move("gate_proj", from_=[P + "feed_forward.w1.weight", "norm.weight"]), ("axes",)
    ),
    Fires(INVALID, "an unknown word in an operation", ops("o_proj", {"op": "transpose", "axis": 1}), ("axis",)),
    Near(INVALID, "every word is known", nothing),
    Fires(TOTAL, "a source key forgotten", lambda c: c.without("input_layernorm"), ("2 tensors",), beside=(TOTAL,)),
    Fires(TOTAL, "a key that the target lacks", move("gate_proj", into=Q + "mlp.gate.weight"), beside=(TOTAL,)),
    Near(TOTAL, "a source key dropped with a reason", dropped),
    Fires(INJECTIVE, "used twice", move("post_att", from_=P + "attention_norm.weight"), ("3 and 4",), beside=(TOTAL,)),
    Fires(INJECTIVE, "fed twice", move("post_att", into=Q + "input_layernorm.weight"), ("3 and 4",), beside=(TOTAL,)),
    Fires(INJECTIVE, "one config key from two", lambda c: c.config.update({"rms_norm_eps": 1e-6}), ("rms_norm_eps",)),
    Near(INJECTIVE, "each once", nothing, fused),
    Fires(TRANSPOSE, "left out of a fused matrix", lambda c: c.rule("q_proj")["ops"].pop(0), ("other way",), fused),
    Fires(TRANSPOSE, "left out of a matrix", first_out("up", "down"), ("other way",), beside=(TRANSPOSE,) * 2),
    Fires(TRANSPOSE, "left out of a square matrix", first_out(*ALL), ("square", "are transposed"), fused),
    Fires(TRANSPOSE, "declared where both are alike", ops("o_proj", {"op": "transpose"}), ("alike", "square"), llama()),
    Near(TRANSPOSE, "square, and every other matrix is laid out alike", nothing),
    Near(TRANSPOSE, "square, and declared", ops("o_proj", keeps=["axes"])),
    Fires(LAYOUT, "no permute_rope", ops("k_proj"), ("permute_rope", "k_proj")),
    Fires(LAYOUT, "the other projection's heads", ops("k_proj", rope("n_heads")), ("2 heads", "given 4")),
    Fires(LAYOUT, "a head count that no row has", ops("k_proj", {**rope("n_kv"), "heads": 3}), ("3 heads share",)),
    Fires(LAYOUT, "v permuted", ops("v_proj", rope("n_kv")), ("v is not turned",)),
    Fires(
        LAYOUT,
        "permuted where both pair alike",
        ops("q_proj", {**rope("n_heads"), "from": "interleaved", "to": "half"}),
        ("both sides pair",),
        llama(),
    ),
    Fires(LAYOUT, "no layout", lambda c: c.rule("q_proj")["ops"][1].pop("layout"), ("per_head",), fused),
    Fires(
        LAYOUT,
        "q, k and v in another order",
        move("q_proj", into=[QKV[0], QKV[2], QKV[1]]),
        ("`to` lists q, v, k",),
        fused,
    ),
    Fires(
        LAYOUT,
        "another head count",
        lambda c: c.rule("q_proj")["ops"][1].update({"heads": 2, "kv_heads": 1}),
        ("the target has 4 heads",),
        fused,
        beside=(LAYOUT,),
    ),
    Near(LAYOUT, "kept, and declared", lambda c: [ops(f"{name}_proj", keeps=["rope"])(c) for name in "qk"]),
    Fires(SHAPE, "part of a tensor", ops("gate_proj", {"op": "slice", "stop": 20, "why": "a test"}), ("[20, 16]",)),
    Fires(
        SHAPE,
        "an operation that cannot act",
        ops("gate_proj", {"op": "split", "sizes": [8, 8]}, {"op": "concat"}),
        ("[8, 8]",),
    ),
    Near(SHAPE, "cut and joined again", ops("gate_proj", {"op": "split", "sizes": [8, 16]}, {"op": "concat"})),
    Fires(
        "map-norm-swapped",
        "the two norms of a block exchanged",
        exchange("input_layernorm", "post_attention"),
        ("decoder.mlp.norm_in",),
        llama(),
        beside=("map-norm-swapped",),
    ),
    Near("map-norm-swapped", "each where it was", nothing, llama()),
    Fires(
        "map-role-swapped",
        "gate and up exchanged",
        exchange("gate_proj", "up_proj"),
        ("decoder.mlp up",),
        llama(),
        beside=("map-role-swapped",),
    ),
    Near("map-role-swapped", "each where it was", nothing, llama()),
    Fires(ALIAS, "a tie that no alias declares", tied(alias=False), ("lm_head.weight", "add")),
    Fires(ALIAS, "an alias that the target does not have", alias_of_nothing, ("does not tie",)),
    Near(ALIAS, "the tie declared", tied(alias=True)),
    Fires(CONFIG_LOST, "epsilon under its old name", lambda c: c.map["config"].pop("norm_epsilon"), ("rms_norm_eps",)),
    Fires(
        CONFIG_LOST,
        "dropped by the map",
        lambda c: c.map["config"].update({"rms_norm_eps": None}),
        ("1e-05 in the source", "would take 1e-06"),
        llama(),
    ),
    Near(CONFIG_LOST, "supplied", supplied),
    Fires(
        TRIP,
        "a slice without a reason",
        ops("gate_proj", {"op": "pad", "size": 32}, {"op": "slice", "stop": 24}),
        ("slice has no inverse",),
    ),
    Fires(TRIP, "a template that claims other rules' keys", wide_template, ("on the way back",), beside=(TRIP,) * 9),
    Near(TRIP, "an operation that has an inverse", ops("gate_proj", {"op": "scale", "value": 0.5})),
    Fires("map-invents-state", "a norm bias", lambda c: add(c, init=ZEROS), ("never invented",)),
    Fires("map-invents-state", "a matrix", matrix_made_up, ("no such state",)),
    Near("map-invents-state", "nothing made up", nothing),
    Fires(TOPOLOGY, "a window that the target lacks", window(4), ("window: 4 -> None", "retraining"), llama()),
    Fires(TOPOLOGY, "a matrix scaled", ops("o_proj", {"op": "scale", "value": 2}), ("multiplied by 2",), llama()),
    Fires(TOPOLOGY, "a matrix shifted", ops("o_proj", {"op": "add", "value": 1}), ("number added",), llama()),
    Fires(
        TOPOLOGY,
        "a gain shifted though both read it alike",
        ops("model.norm", {"op": "add", "value": 1}),
        ("1 added",),
        llama(),
        beside=("scale-offset-mismatch",),
    ),
    Near(TOPOLOGY, "the same function under another name", window(None), llama()),
]


@pytest.mark.parametrize("case", [c for c in CASES if isinstance(c, Fires)], ids=lambda c: f"{c.rule}: {c.name}")
def test_fires(case: Fires, tmp_path: Path) -> None:
    made = case.start()
    case.edit(made)
    done = check(made, tmp_path)
    assert done.status == (0 if case.rule == UNKNOWN else 1), done.err
    errors = sorted(f["name"] for f in done.findings if f["severity"] == "error")
    assert errors == sorted([case.rule, *case.beside] if case.rule != UNKNOWN else [])
    said = [f["message"] for f in done.findings if f["name"] == case.rule]
    assert any(all(part in message for part in case.says) for message in said), said


@pytest.mark.parametrize("case", [c for c in CASES if isinstance(c, Near)], ids=lambda c: f"{c.rule}: {c.name}")
def test_nearly_fires(case: Near, tmp_path: Path) -> None:
    made = case.start()
    case.edit(made)
    done = check(made, tmp_path)
    # That no manifest speaks of a source in nobody's layout is no fault of the map.
    assert [f["name"] for f in done.findings if f["name"] != UNKNOWN or case.rule == UNKNOWN] == []
    assert done.status == 0
    assert done.report is not None
    assert done.report["kind"] == "map"


def test_a_source_manifest_of_other_keys_is_refused(tmp_path: Path) -> None:
    case = apart()
    case.map["source"] = "llama"
    done = check(case, tmp_path)
    assert done.status == 1
    (said,) = (f["message"] for f in done.findings if f["name"] == "unexpected-key")
    assert "20 of the 21 keys of the source are none of its manifest, llama" in said


def test_a_key_that_the_source_manifest_lacks_is_refused(tmp_path: Path) -> None:
    case = llama()()
    case.tensors["model.gain.weight"] = case.tensors.pop("model.norm.weight")
    case.rule("model.norm")["from"] = "model.gain.weight"
    done = check(case, tmp_path)
    assert done.status == 1
    (said,) = (f["message"] for f in done.findings if f["name"] == "unexpected-key")
    assert "model.gain.weight of the source is taken by a rule, and is no key of its manifest, llama" in said


def test_a_family_under_a_wrapper_is_known(tmp_path: Path) -> None:
    """Its norms are told apart, though no map names its manifest."""
    case = llama()()
    del case.map["source"]
    case.tensors = {f"module.{key}": tensor for key, tensor in case.tensors.items()}
    for one in case.map["rules"]:
        one["from"] = f"module.{one['from']}"
    (tmp_path / "clean").mkdir()
    assert check(case, tmp_path / "clean").findings == []
    exchange("input_layernorm", "post_attention")(case)
    (tmp_path / "swapped").mkdir()
    assert "map-norm-swapped" in check(case, tmp_path / "swapped").names


def test_keys_of_nobody_are_not_taken_for_those_of_the_family_that_the_config_names(tmp_path: Path) -> None:
    """A config that says llama does not say how rows lie in tensors that are called otherwise."""
    case, named_llama = apart(), llama()()
    case.config, case.map["config"] = named_llama.config, {}
    (tmp_path / "declared").mkdir()
    assert check(case, tmp_path / "declared").grave == []
    case.rule("k_proj").pop("ops")
    (tmp_path / "missing").mkdir()
    assert check(case, tmp_path / "missing").grave == ["map-undeclared-layout"]
