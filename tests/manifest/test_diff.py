from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from msgspec.structs import replace

from blockaudit import resources
from blockaudit.manifest.diff import Changes, changes, compare
from blockaudit.manifest.load import library
from blockaudit.records.manifest import Bound, Branch, Dropout, Manifest, Norm, Scale, Stack
from tests.manifest import samples


@pytest.mark.parametrize("name", resources.manifest_ids())
def test_a_manifest_is_itself(name: str) -> None:
    manifest = library(name).manifest
    found = compare(manifest, manifest)
    assert (found.contract, found.dims, found.keys) == ((), (), ())
    assert found.same_function


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("decoder.mlp.norm_in.epsilon", "function"), ("decoder.mlp.norm_in.placement", "function"),
        ("decoder.mlp.norm_in.work_dtype", "numerics"), ("decoder.mlp.norm_in.cast_order", "numerics"),
        ("decoder.residual.dtype", "numerics"), ("decoder.branch_order", "function"),
        ("decoder.self_attention.norm_in.present", "function"), ("decoder.dropout.mlp_output.p", "training"),
    ],
)  # fmt: skip
def test_what_a_field_changes(field: str, said: Changes) -> None:
    assert changes(field) == said


def test_sizes_are_no_other_function() -> None:
    found = compare(library("llama").manifest, library("mistral").manifest)
    assert found.same_function
    assert {"n_kv", "d_ff"} <= {d.field for d in found.dims if d.changes == "size"}


def test_what_follows_from_a_size_is_compared_at_one_size() -> None:
    found = compare(library("gemma").manifest, library("gemma2").manifest)
    assert "decoder.embedding.scale" not in {d.field for d in found.contract}
    assert "decoder.self_attention.norm_out.present" in {d.field for d in found.contract}
    # What only follows from a norm's presence is not repeated.
    assert "decoder.self_attention.norm_out.epsilon" not in {d.field for d in found.contract}


def test_one_key_with_two_meanings_is_shown() -> None:
    found = compare(library("llama").manifest, library("gemma2").manifest)
    key = next(d for d in found.keys if d.field == "model.layers.{l}.post_attention_layernorm.weight")
    assert (key.a, key.b) == ("[d_model] decoder.mlp.norm_in", "[d_model] decoder.self_attention.norm_out")


def test_numerics_alone_are_the_same_function() -> None:
    one = library("llama").manifest
    two = msgspec.structs.replace(one, norm=msgspec.structs.replace(one.norm, cast_order="cast_after_scale"))
    found = compare(one, two)
    assert found.same_function
    assert {d.changes for d in found.contract} == {"numerics"}


def test_a_pin_is_another_value() -> None:
    one = library("llama").manifest
    epsilon = Bound(config="rms_norm_eps", default=1e-6, pinned=1e-5)
    two = msgspec.structs.replace(one, norm=msgspec.structs.replace(one.norm, epsilon=epsilon))
    assert not compare(one, two).same_function
    dims = dict(one.dims) | {"d_model": Bound(config="hidden_size", pinned=64)}
    pinned = msgspec.structs.replace(one, dims=dims)
    assert compare(one, pinned).same_function
    other = msgspec.structs.replace(one, dims=dims | {"d_model": Bound(config="hidden_size", pinned=96)})
    assert not compare(pinned, other).same_function


def test_the_core_and_the_library() -> None:
    from blockaudit.manifest.validate import block_manifest

    core = block_manifest(samples.CORE.encode(), "core.yaml")
    assert isinstance(core.stacks[0].final_norm, Norm)
    found = {d.field for d in compare(core, library("llama").manifest).contract if d.changes == "function"}
    assert "decoder.self_attention.norm_in.epsilon" not in found
    assert "decoder.branch_order" not in found


LLAMA, DEEPSEEK = library("llama").manifest, library("deepseek_v3").manifest


def _stack(change: Callable[[Stack], Stack], of: Manifest = LLAMA) -> Manifest:
    return replace(of, stacks=[change(of.stacks[0]), *of.stacks[1:]])


def _attention(change: Callable[[Branch], Branch]) -> Manifest:
    return _stack(lambda s: replace(s, branches=[change(s.branches[0]), *s.branches[1:]]))


def _residual(of: Manifest, **changes: object) -> Manifest:
    return replace(of, residual=replace(of.residual, **changes))


def _kinds(conditions: dict[str, str]) -> Manifest:
    """DeepSeek's two kinds of layer by other names or conditions, in the same order."""
    names = dict(zip(DEEPSEEK.stacks[0].layer_kinds, conditions, strict=True))
    return _stack(
        lambda s: replace(
            s,
            layer_kinds=conditions,
            branches=[replace(b, layer_kinds=[names[k] for k in b.layer_kinds]) for b in s.branches],
        ),
        DEEPSEEK,
    )


def _changed(a: Manifest, b: Manifest) -> set[Changes]:
    found = compare(a, b)
    assert compare(b, a).same_function is found.same_function
    return {d.changes for d in (*found.contract, *found.dims, *found.keys)}


LEARNED = _residual(LLAMA, attention_branch_scale=Scale(learned=True, init=0.1))


@pytest.mark.parametrize(
    ("a", "b", "said"),
    [
        # What is computed.
        (LLAMA, replace(LLAMA, norm=replace(LLAMA.norm, epsilon=1e-5)), "function"),
        (LLAMA, replace(LLAMA, norm=replace(LLAMA.norm, scale_offset=1)), "function"),
        (LLAMA, _residual(LLAMA, shortcut_source="normalised_state"), "function"),
        (LLAMA, _residual(LLAMA, mlp_branch_scale=0.22), "function"),
        (LLAMA, _residual(LLAMA, attention_branch_scale=Scale(learned=True)), "function"),
        (LLAMA, _stack(lambda s: replace(s, parallel=True)), "function"),
        (LLAMA, _stack(lambda s: replace(s, final_norm=None)), "function"),
        (LLAMA, _attention(lambda b: replace(b, norms={"norm_post": b.norms["norm_in"]})), "function"),
        (LLAMA, _attention(lambda b: replace(b, norms={"norm_in": Norm(instance="one")})), "function"),
        (LLAMA, _attention(lambda b: replace(b, tensors=[replace(t, bias=True) for t in b.tensors])), "function"),
        (LLAMA, _attention(lambda b: replace(b, tensors=[replace(t, layout="in_out") for t in b.tensors])), "function"),
        (DEEPSEEK, _kinds({"dense": "l < 5", "moe": "l >= 5"}), "function"),
        # What happens while weights are learned.
        (LLAMA, replace(LLAMA, dropout={"mlp_output": Dropout(p=0.1)}), "training"),
        (LEARNED, _residual(LLAMA, attention_branch_scale=Scale(learned=True, init=0.2)), "training"),
        # How it is rounded.
        (LLAMA, replace(LLAMA, norm=replace(LLAMA.norm, work_dtype="bfloat16")), "numerics"),
        (LLAMA, _residual(LLAMA, dtype="float32"), "numerics"),
        # Other names, other keys of config.json.
        (LLAMA, _stack(lambda s: replace(s, name="model")), "nothing"),
        (LLAMA, _attention(lambda b: replace(b, name="attn")), "nothing"),
        (LLAMA, _attention(lambda b: replace(b, norms={"norm_in": Norm(module="layers.{l}.ln_1")})), "nothing"),
        (LLAMA, replace(LLAMA, norm=replace(LLAMA.norm, epsilon=1e-6)), "nothing"),
        (DEEPSEEK, _kinds({"plain": "l < first_dense", "sparse": "l >= first_dense"}), "nothing"),
    ],
)  # fmt: skip
def test_classes_of_differences(a: Manifest, b: Manifest, said: Changes) -> None:
    # A changed norm may own other keys too, and other keys change nothing.
    assert _changed(a, b) - {"nothing"} == {said} - {"nothing"}
    assert compare(a, b).same_function is (said != "function")


@pytest.mark.parametrize(
    "b",
    [
        replace(LLAMA, source="elsewhere", evidence_label="derived", architecture_id="other"),
        replace(LLAMA, dropout={}),
        _residual(LLAMA, attention_branch_scale=Scale(value=1.0)),
        _attention(lambda b: replace(b, when="1 == 1")),
        _attention(lambda b: replace(b, reads=Bound(expr="'state'"))),
        _attention(lambda b: replace(b, tensors=[replace(t, role=f"{t.role}_proj") for t in b.tensors])),
        _attention(lambda b: replace(b, norms={**b.norms, "norm_out": Norm(when="1 == 2")})),
    ],
)
def test_other_spellings_are_no_difference(b: Manifest) -> None:
    assert _changed(LLAMA, b) == set()


def test_a_renamed_branch_takes_its_readers_along() -> None:
    one = library("gptj").manifest
    two = _stack(
        lambda s: replace(
            s,
            branches=[replace(s.branches[0], name="attn"), replace(s.branches[1], reads="attn.norm_in")],
        ),
        one,
    )
    assert _changed(one, two) == {"nothing"}


def test_a_name_that_chooses_the_factor_is_no_mere_name() -> None:
    one = _residual(_attention(lambda b: replace(b, kind="ssm")), mlp_branch_scale=0.5)
    two = replace(
        one, stacks=[replace(s, branches=[replace(s.branches[0], name="mixer"), *s.branches[1:]]) for s in one.stacks]
    )
    assert not compare(one, two).same_function


def test_a_tied_head_is_another_function() -> None:
    def tied(to: bool) -> Manifest:
        return replace(LLAMA, parts={k: [replace(t, tie=to) for t in tensors] for k, tensors in LLAMA.parts.items()})

    assert not compare(tied(True), tied(False)).same_function
    assert compare(tied(True), tied(True)).same_function
