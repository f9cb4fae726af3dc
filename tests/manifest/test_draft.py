from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from blockaudit.errors import RequestError
from blockaudit.manifest.bind import bind
from blockaudit.manifest.check import check_manifest
from blockaudit.manifest.draft import draft, encode
from blockaudit.manifest.draft_keys import group
from blockaudit.manifest.load import library
from blockaudit.manifest.validate import block_manifest
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint, TensorHeader
from blockaudit.records.manifest import Bound, Manifest

Shapes = dict[str, tuple[int, ...]]


def checkpoint(shapes: Shapes, config: dict[str, Any] | None = None) -> Checkpoint:
    tensors = {key: TensorHeader("F32", shape, (0, 0)) for key, shape in shapes.items()}
    return Checkpoint("somewhere", "safetensors", "somewhere", (), tensors, {}, config, ())


def claimed(bound: BoundManifest) -> Shapes:
    """Every key that a bound manifest expects, with its shape."""
    found: dict[str, Any] = {}
    for tensor in bound.expected:
        layers = tensor.layers if "{l}" in tensor.template else (0,)
        for numbers in itertools.product(layers, *(range(n) for _, n in tensor.counts)):
            names = ("l", *(axis for axis, _ in tensor.counts))
            key = tensor.template
            for name, number in zip(names, numbers, strict=True):
                key = key.replace(f"{{{name}}}", str(number))
            found[key] = tensor.shape
    return found


def drafted(shapes: Shapes, config: dict[str, Any] | None = None, pin: bool = False) -> Manifest:
    """The draft, after a round trip through its file, which must be clean and claim every key."""
    source = checkpoint(shapes, config)
    text = encode(draft(source, None, pin).manifest)
    assert text == encode(draft(source, None, pin).manifest)
    manifest = block_manifest(text.encode(), "draft.json")
    assert check_manifest(manifest) == []
    bound = bind(manifest, config)
    assert claimed(bound) == shapes
    assert bound.problems == ()
    return manifest


LAYER: Shapes = {
    "norm1.weight": (64,), "norm1.bias": (64,), "attn.qkv.weight": (192, 64), "attn.qkv.bias": (192,),
    "attn.out.weight": (64, 64), "ln_2.weight": (64,), "mlp.weight": (256, 64), "mlp.bias": (256,),
    "mix.weight": (64, 256), "mix.bias": (256,), "gate": (64,),
}  # fmt: skip
MODEL: Shapes = {f"net.h.{n}.{name}": shape for n in range(3) for name, shape in LAYER.items()}
MODEL |= {"net.embed.weight": (100, 64), "net.final_norm.weight": (64,), "head.weight": (100, 64), "head.bias": (100,)}
CONFIG: dict[str, Any] = {
    "model_type": "novel", "architectures": ["NovelForCausalLM"], "hidden_size": 64, "intermediate_size": 256,
    "vocab_size": 100, "num_hidden_layers": 3, "num_attention_heads": 4, "norm_eps": 1e-5,
}  # fmt: skip


def test_what_headers_and_config_say() -> None:
    manifest = drafted(MODEL, CONFIG)
    (stack,) = manifest.stacks
    assert (manifest.architecture_id, manifest.witness, manifest.evidence_label) == ("novel", "headers", "source-local")
    assert manifest.match.model_types == ["novel"]
    assert set(stack.unplaced) == {"norm1", "ln_2", "final_norm"}
    assert stack.unplaced["norm1"].epsilon == Bound(config="norm_eps")
    assert (stack.unplaced["norm1"].bias, stack.unplaced["ln_2"].bias) == (True, False)
    shapes = {t.module or t.key: (t.shape, t.bias, t.layout) for t in stack.tensors}
    assert shapes == {
        "net.h.{l}.attn.qkv": (["3 * d_model", "d_model"], True, "out_in"),
        "net.h.{l}.attn.out": (["d_model", "d_model"], False, "out_in"),
        "net.h.{l}.mlp": (["d_ff", "d_model"], True, "out_in"),
        "net.h.{l}.mix": (["d_model", "d_ff"], True, "in_out"),
        "net.h.{l}.gate": (["d_model"], False, "out_in"),
    }
    assert stack.layers == Bound(expr="n_layers")
    assert manifest.dims["n_layers"] == Bound(config="num_hidden_layers")


def test_nothing_is_claimed_that_a_header_cannot_show() -> None:
    fields = bind(drafted(MODEL, CONFIG), CONFIG).fields
    claims = {name: f.value for name, f in fields.items() if f.known and f.value is not None}
    assert set(claims) == {
        "decoder.layers",
        *(f"decoder.unplaced.{n}.{f}" for n in ("norm1", "ln_2", "final_norm") for f in ("present", "epsilon", "bias")),
    }


def test_without_a_config_every_size_is_a_number() -> None:
    manifest = drafted(MODEL)
    assert manifest.dims == {"size_64": 64, "size_192": 192, "size_256": 256, "size_100": 100}
    assert manifest.stacks[0].unplaced["norm1"].epsilon is None
    assert manifest.architecture_id == "unknown"


def test_pinned_sizes_stand_when_the_config_moves_on() -> None:
    manifest = drafted(MODEL, CONFIG, pin=True)
    later = CONFIG | {"hidden_size": 96, "norm_eps": 1e-6, "num_hidden_layers": 4}
    held = bind(manifest, later)
    assert claimed(held) == MODEL
    assert held.fields["decoder.unplaced.norm1.epsilon"].value == 1e-5
    assert bind(manifest, later, pins=False).fields["decoder.unplaced.norm1.epsilon"].value == 1e-6
    with pytest.raises(RequestError, match=r"--pin freezes what config\.json says, and there is none to read"):
        draft(checkpoint(MODEL), None, True)


def test_a_count_that_the_config_does_not_confirm_is_a_number() -> None:
    result = draft(checkpoint(MODEL, CONFIG | {"num_hidden_layers": 5}), None, False)
    assert result.manifest.stacks[0].layers == 3
    assert any("num_hidden_layers = 5 and there are 3 layers" in remark for remark in result.remarks)


def test_what_may_be_two_things_is_said() -> None:
    result = draft(checkpoint(MODEL, CONFIG | {"max_position_embeddings": 100, "extra_eps": 1e-6}), None, False)
    assert "size 100 may be vocab, n_ctx: taken as vocab" in result.remarks
    assert "epsilon may be norm_eps, extra_eps: left open" in result.remarks
    assert result.manifest.stacks[0].unplaced["norm1"].epsilon is None


def test_the_library_s_manifest_made_its_own() -> None:
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "rms_norm_eps": 3e-6}
    source = checkpoint({"x": (1,)}, config)
    manifest = draft(source, library("llama"), False).manifest
    assert manifest.witness == "headers"
    assert manifest.norm.epsilon == Bound(config="rms_norm_eps", default=1e-6)
    pinned = block_manifest(encode(draft(source, library("llama"), True).manifest).encode(), "p.json")
    assert pinned.norm.epsilon == Bound(config="rms_norm_eps", default=1e-6, pinned=3e-6)
    assert check_manifest(pinned) == []
    assert bind(pinned, {"rms_norm_eps": 1.0}).fields["decoder.mlp.norm_in.epsilon"].value == 3e-6


def test_conditions_are_pinned_too() -> None:
    manifest = draft(checkpoint({"x": (1,)}, {"model_type": "opt"}), library("opt"), True).manifest
    when = manifest.stacks[0].branches[0].norms["norm_in"].when
    assert when == Bound(expr="pre_ln", pinned=True)
    later = bind(manifest, {"do_layer_norm_before": False})
    assert later.fields["decoder.self_attention.norm_in.present"].value is True


def test_a_header_that_cannot_be_read_stops_the_draft() -> None:
    from blockaudit.records.checkpoint import FileHeader

    broken = FileHeader("a", "a", 0, "safetensors", 0, {}, readable=False)
    source = Checkpoint("s", "safetensors", "s", (broken,), {}, {}, None, ())
    with pytest.raises(RequestError, match="a header cannot be read"):
        draft(source, None, False)
    with pytest.raises(RequestError, match="no tensor that a manifest could name"):
        draft(checkpoint({"a{b": (1,)}), None, False)


def _texts(*keys: str) -> list[tuple[str, str | None]]:
    return [(t.text, t.when) for t in group(dict.fromkeys(keys, (2,))).templates]


def test_numbers_are_axes_where_they_count() -> None:
    experts = [f"l.{n}.e.{e}.w" for n in range(3) for e in range(2)]
    assert _texts(*experts) == [("l.{l}.e.{e}.w", None)]
    assert _texts("l.0.w", "l.1.w", "l.1.v", "l.2.v") == [("l.{l}.v", "l >= 1"), ("l.{l}.w", "l < 2")]
    assert _texts("l.0.w", "l.1.w", "l.2.w", "l.1.v") == [("l.{l}.v", "l >= 1 and l < 2"), ("l.{l}.w", None)]
    # One expert is missing in layer 2, which then stands by itself.
    assert _texts(*experts[:-1]) == [("l.2.e.0.w", None), ("l.{l}.e.{e}.w", "l < 2")]
    even = [f"l.{n}.v" for n in range(0, 8, 2)]
    assert ("l.{l}.v", "l % 2 == 0") in _texts(*even, *(f"l.{n}.w" for n in range(8)))
    assert _texts("seq.0.w", "seq.3.w", "l.0.w", "l.1.w", "l.2.w") == [
        ("l.{l}.w", None), ("seq.0.w", None), ("seq.3.w", None),
    ]  # fmt: skip
    assert _texts("l.007.w", "l.1x.w") == [("l.007.w", None), ("l.1x.w", None)]


def test_the_longest_outer_list_is_the_layers() -> None:
    keys = [f"enc.{n}.w" for n in range(4)] + [f"dec.{n}.x.{m}.w" for n in range(2) for m in range(9)]
    found = group(dict.fromkeys(keys, (2,)))
    assert (found.layer_list, found.layers, found.axes) == ("enc", range(4), {"e": 2, "i": 9})
    assert [t.text for t in found.templates] == ["dec.{e}.x.{i}.w", "enc.{l}.w"]


WORD = st.sampled_from(["a", "norm", "ln_1", "weight", "bias", "mlp", "e", "0", "1", "2", "3", "00", "x y", "é"])
KEY = st.lists(WORD, min_size=1, max_size=5).map(".".join)
SHAPE = st.lists(st.sampled_from([0, 1, 3, 8, 16, 24, 64]), max_size=3).map(tuple)
NUMBERS = st.dictionaries(
    st.sampled_from(["hidden_size", "num_attention_heads", "num_hidden_layers", "vocab_size", "odd key", "n_kv_heads",
                     "head_dim", "num_experts", "layer_norm_eps", "eps", "some_size"]),
    st.sampled_from([0, 1, 2, 3, 8, 16, 64, 1e-5, True, None, "x", [8], {"hidden_size": 8}]),
    max_size=6,
)  # fmt: skip


@settings(deadline=None)
@given(st.dictionaries(KEY, SHAPE, min_size=1, max_size=14), st.none() | NUMBERS)
def test_every_key_is_claimed_whatever_it_is_called(shapes: Any, config: dict[str, Any] | None) -> None:
    drafted(shapes, config)


@settings(deadline=None, max_examples=50)
@given(
    st.integers(1, 4), st.integers(1, 3), st.lists(st.sampled_from(sorted(LAYER)), min_size=1, max_size=4, unique=True)
)
def test_layers_and_experts_fold_into_templates(layers: int, experts: int, names: list[str]) -> None:
    shapes = {f"h.{n}.experts.{e}.{name}": LAYER[name] for n in range(layers) for e in range(experts) for name in names}
    manifest = drafted(shapes)
    text = json.dumps([t.module or t.key for t in manifest.stacks[0].tensors]) + str(manifest.stacks[0].unplaced)
    assert "h.0" not in text
    assert ("{e}" in text) == (experts > 1)
