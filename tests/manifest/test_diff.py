from __future__ import annotations

import msgspec
import pytest

from blockaudit import resources
from blockaudit.manifest.diff import Changes, changes, compare
from blockaudit.manifest.load import library
from blockaudit.records.manifest import Bound, Norm
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
        ("decoder.self_attention.norm_in.present", "function"), ("decoder.dropout.mlp_output.p", "function"),
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
