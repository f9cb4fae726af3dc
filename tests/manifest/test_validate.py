from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockaudit.errors import RequestError
from blockaudit.manifest import document
from blockaudit.manifest.bind import bind
from blockaudit.manifest.check import check_manifest
from blockaudit.manifest.load import load
from blockaudit.manifest.validate import any_manifest, block_manifest
from blockaudit.records.manifest import Norm
from tests.manifest import samples


def _refused(text: str, path: str = "m.yaml") -> str:
    with pytest.raises(RequestError) as caught:
        block_manifest(text.encode(), path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def _core(**changes: str) -> str:
    """The core with lines replaced: `epsilon="  epsilon: no"`."""
    lines = samples.CORE.splitlines()
    return "\n".join(changes.get(line.strip().partition(":")[0], line) for line in lines) + "\n"


def test_the_specification_s_core_is_a_manifest() -> None:
    manifest = block_manifest(samples.CORE.encode(), "core.yaml")
    (stack,) = manifest.stacks
    assert [(b.name, b.kind, list(b.norms)) for b in stack.branches] == [
        ("self_attention", "causal_self_attention", ["norm_in"]),
        ("mlp", "gated_mlp", ["norm_in"]),
    ]
    assert isinstance(stack.final_norm, Norm)
    assert stack.final_norm.family == "rmsnorm"
    assert manifest.dropout["attention_output"].p == 0.0
    fields = bind(manifest, {"num_hidden_layers": 3}).fields
    assert fields["decoder.self_attention.norm_in.epsilon"].value == 1e-6
    assert fields["decoder.mlp.norm_in.placement"].value == "pre_branch"
    assert fields["decoder.final_norm.family"].value == "rmsnorm"
    assert fields["decoder.final_norm.placement"].value == "none"
    assert fields["decoder.branch_order"].value == ["causal_self_attention", "gated_mlp"]
    assert check_manifest(manifest) == []


@pytest.mark.parametrize(
    ("placement", "sites"),
    [
        ("pre_branch", ["norm_in"]), ("post_branch", ["norm_out"]), ("post_add", ["norm_post"]),
        ("both", ["norm_in", "norm_out"]), ("none", []),
    ],
)  # fmt: skip
def test_placement_names_the_sites(placement: str, sites: list[str]) -> None:
    manifest = block_manifest(_core(placement=f"  placement: {placement}").encode(), "m.yaml")
    assert [list(b.norms) for b in manifest.stacks[0].branches] == [sites, sites]
    assert check_manifest(manifest) == []


def test_a_core_of_two_stacks() -> None:
    order = "branch_order: {encoder: [self_attention, mlp], decoder: [causal_self_attention, cross_attention, mlp]}"
    manifest = block_manifest(_core(branch_order=order, final_norm="final_norm: none").encode(), "m.yaml")
    assert [[b.name for b in s.branches] for s in manifest.stacks] == [
        ["self_attention", "mlp"],
        ["self_attention", "cross_attention", "mlp"],
    ]
    assert [s.final_norm for s in manifest.stacks] == [None, None]


def test_branches_of_one_kind_are_numbered() -> None:
    manifest = block_manifest(_core(branch_order="branch_order: [mlp, causal_self_attention, mlp]").encode(), "m.yaml")
    assert [b.name for b in manifest.stacks[0].branches] == ["mlp_1", "self_attention", "mlp_2"]


def test_yaml_and_json_are_one() -> None:
    as_yaml = block_manifest(samples.CORE.encode(), "m.yaml")
    data = json.dumps(document.parse(samples.CORE.encode(), "m.yaml")).encode()
    assert block_manifest(data, "m.json") == as_yaml
    # The suffix is a hint; the content decides where there is none.
    assert block_manifest(data, "m") == as_yaml
    assert block_manifest(samples.CORE.encode(), "m.json") == as_yaml
    assert block_manifest(data, "m.yaml") == as_yaml
    assert block_manifest(b"\xef\xbb\xbf" + data, "m.json") == as_yaml


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("1e-6", 1e-6), ("1E-6", 1e-6), ("1.0e-06", 1e-6), ("+1.5", 1.5), (".5", 0.5), ("-3", -3), ("007", 7),
        ("no", "no"), ("on", "on"), ("12:30", "12:30"), ("1_000", "1_000"), ("0x10", "0x10"),
        ("2024-01-01", "2024-01-01"),
        ("~", None), ("null", None), ("true", True), ("False", False), ("1e-6x", "1e-6x"), ("'1e-6'", "1e-6"),
        ("=", "="), ("<<", "<<"), ("1-2", "1-2"),
    ],
)  # fmt: skip
def test_words_are_what_json_would_make_of_them(word: str, value: Any) -> None:
    found = document.parse(f"a: {word}\n".encode(), "m.yaml")
    assert found["a"] == value
    assert type(found["a"]) is type(value)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"epsilon": "  epsilon: 'tiny'"},
            "m.yaml:8: norm.epsilon: expected a number or {\"config\": KEY} or {\"expr\": ...} or null, found 'tiny'; "
            "The number that keeps the root away from zero",
        ),
        ({"epsilon": "  epsilom: 1.0e-6"}, "m.yaml:8: norm.epsilom: expected one of "),
        ({"epsilon": "  epsilom: 1.0e-6"}, "found 'epsilom'; did you mean 'epsilon'?"),
        ({"placement": "  placement: pre_brunch"}, "found 'pre_brunch'; did you mean 'pre_branch'?"),
        ({"family": "  family: [rmsnorm]"}, "m.yaml:5: norm.family: expected "),
        ({"attention_output": "  attention_output: 2"}, "m.yaml:17: dropout.attention_output: expected maximum 1"),
        ({"attention_output": "  attention: 0.1"}, "m.yaml:17: dropout.attention: "),
        ({"epsilon": "  epsilon: {config: eps, expr: 1}"}, "m.yaml:8: norm.epsilon"),
        ({"epsilon": "  epsilon: {expr: d, default: 1}"}, "field 'default' expects 'config' beside it"),
        ({"epsilon": "  epsilon: {}"}, "m.yaml:8: norm.epsilon: expected exactly one of config | expr | if"),
        ({"architecture_id": "x: 1"}, "expected field 'architecture_id', found none; add it (The name of "),
        ({"branch_order": ""}, "expected field 'branch_order', found none; add it"),
        ({"scale": "  scale: per_channel\n  scale: none"}, "m.yaml:11: key 'scale' is given twice; keep one of them"),
        ({"scale": "  scale: &a per_channel"}, "m.yaml:10: anchors and aliases are not read; write the value out"),
        ({"scale": "  scale: !!python/name:os.system x"}, "m.yaml:10: tag "),
        ({"scale": "  scale: .inf"}, "m.yaml:10: .inf is not a number that a manifest can hold"),
        ({"scale": "  scale: 1e999"}, "m.yaml:10: 1e999 is out of range"),
        ({"scale": "  scale: [unclosed"}, "m.yaml:11: not YAML: "),
        ({"scale": "  ? [a]\n  : b"}, "m.yaml:10: a key is a word"),
    ],
)  # fmt: skip
def test_a_fault_is_one_line_with_its_place(changes: dict[str, str], said: str) -> None:
    message = _refused(_core(**changes))
    assert said in message


def test_a_fault_in_json_has_its_line() -> None:
    text = json.dumps(samples.everything(witness="guess"), indent="\t")
    line = next(n for n, row in enumerate(text.splitlines(), 1) if '"witness"' in row)
    assert _refused(text, "m.json").startswith(f"m.json:{line}: witness: expected one of declared, headers, graph")


def test_a_fault_deep_in_a_stack_names_its_path() -> None:
    wrong = samples.everything()
    wrong["stacks"][0]["branches"][0]["norms"]["norm_in"]["epsilon"] = "1e-6"
    assert "stacks[0].branches[0].norms.norm_in.epsilon: expected a number" in _refused(json.dumps(wrong, indent=1))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "m.json:1: not JSON: "),
        ('{\n"a": 1,\n"a": 2}', "m.json:3: key 'a' is given twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1e999}', "1e999 is larger than any float"),
        ('{"a": ' + "[" * 100 + "]" * 100 + "}", "nested deeper than"),
        ('{"a": ' + "[" * 100_000, "m.json: nested deeper than"),
        ("[]", "m.json:1: expected a manifest (an object), found an empty list"),
        ("", "m.json:1: expected a manifest (an object), found null"),
        ("a: " + "[" * 10_000, " nest"),
        ("a: &x [*x, *x]", "anchors and aliases are not read"),
        ('{"schema": "blockaudit/tensor-manifest/1"}', "m.json:1: expected a block manifest, found a tensor manifest"),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, said: str) -> None:
    assert said in _refused(text, "m.json")


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(RequestError, match=r"m\.yaml:2: expected UTF-8 text, found byte 0xff"):
        block_manifest(b"a: 1\nb: \xff", "m.yaml")


def test_an_unknown_schema_is_named() -> None:
    with pytest.raises(RequestError, match="schema: expected one of blockaudit/block-manifest/1"):
        any_manifest(b'{"schema": "blockaudit/other/1"}', "m.json")


def test_long_yaml_is_refused_and_json_is_not_yaml(tmp_path: Any) -> None:
    with pytest.raises(RequestError, match="characters of YAML; at most"):
        block_manifest(b"a: " + b"x" * (document.MAX_YAML + 1), "m.yaml")
    path = tmp_path / "m.yaml"
    path.write_text(samples.CORE)
    assert load(str(path)).manifest.architecture_id == "llama_style_pre_rmsnorm_decoder"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@settings(deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["m.json", "m.yaml", "m"]))
def test_any_bytes_are_a_manifest_or_a_request_error(data: bytes, path: str) -> None:
    with pytest.raises(RequestError):
        block_manifest(data, path)


@settings(deadline=None)
@given(st.sampled_from(sorted(samples.EVERYTHING)), JSON)
def test_any_value_of_a_field_is_read_or_refused(field: str, value: Any) -> None:
    data = json.dumps(samples.everything(**{field: value})).encode()
    try:
        manifest = block_manifest(data, "m.json")
    except RequestError as error:
        line = str(error)
    else:
        line = ""
        check_manifest(manifest)
        bind(manifest, {})
    assert "\n" not in line


@settings(deadline=None)
@given(JSON)
def test_json_is_yaml(value: Any) -> None:
    text = json.dumps({"a": value}).encode()
    assert document.parse(text, "m.json") == json.loads(text)
