"""Every contradiction that `manifest check` knows, each in a manifest that is otherwise clean."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from blockaudit.manifest.check import check, check_manifest
from blockaudit.manifest.validate import any_manifest, block_manifest
from tests.manifest import samples
from tests.manifest.test_schemas import EXAMPLES

STACK = ("stacks", 0)
BRANCH = (*STACK, "branches", 0)
NORM_IN = (*BRANCH, "norms", "norm_in")
GONE: Any = object()


def _changed(document: dict[str, Any], where: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed = copy.deepcopy(document)
    here: Any = changed
    for step in where[:-1]:
        here = here[step]
    if value is GONE:
        del here[where[-1]]
    else:
        here[where[-1]] = value
    return changed


BLOCK: list[tuple[tuple[Any, ...], Any, str]] = [
    (("source",), " ", "source: implementation evidence names no source"),
    (("evidence_label",), "primary-paper", "evidence_label: a manifest drafted from headers"),
    (("match", "classes", "EverythingForCausalLM", "parts"), ["tail"], "part 'tail' is not in parts"),
    (("match", "classes", "EverythingForCausalLM", "parts"), [], "parts.lm_head: no class has it"),
    (("match", "classes", "EverythingForCausalLM", "stacks"), ["coder"], "stack 'coder' is not in stacks"),
    (("match", "base_prefix"), "root.", "no template begins with 'root.'"),
    (("dims", "d_model"), GONE, "reads 'd_model', which dims does not have"),
    (("dims", "deep"), {"expr": "deep + 1"}, "dims.deep: "),
    (("dims", "deep"), {"expr": "d_model +"}, "dims.deep: 'd_model +' is not an expression"),
    (("dims", "deep"), {"expr": "len(d_model)"}, "with the defaults"),
    ((*BRANCH, "tensors", 0, "shape", 0), "2 ** 99999999", "power out of range, with the defaults"),
    ((*BRANCH, "tensors", 0, "shape", 0), "d_model // 0", "division or modulo by zero, with the defaults"),
    (("axes", "z"), "n_layers", "axes.z: no template has it"),
    (("axes", "e"), GONE, "axis {e} is not in axes"),
    (("head",), {"activation": {"expr": "no_such"}}, "head.activation: 'no_such' reads 'no_such'"),
    (("parts", "lm_head", 1, "role"), "dense", "head: no part has a tensor head.dense"),
    ((*STACK, "layer_axis"), "i", "decoder.layer_axis: i is not in axes"),
    ((*STACK, "inputs", "padding_id"), None, "inputs.padding_id: positions count what is not the padding"),
    ((*STACK, "inputs", "projected"), "normalised", "inputs.projected: the embedding has no tensor project_in"),
    ((*STACK, "tensors", 0, "role"), "bias", "attention.relative: the stack has no tensor relative_bias"),
    ((*BRANCH, "kind"), "gated_mlp", "decoder.self_attention.attention: the branch is gated_mlp"),
    ((*STACK, "branches", 2, "kind"), "attention", "decoder.mlp.feed_forward: the branch is attention"),
    ((*BRANCH, "attention", "fused"), None, "attention.fused: there is a tensor qkv"),
    ((*BRANCH, "tensors", 1, "role"), "k", "attention.fused: there is no tensor qkv"),
    ((*BRANCH, "tensors", 2, "role"), "k", "attention.latent: there are no tensors kv_a and kv_b"),
    ((*BRANCH, "attention", "window"), None, "attention.window: not given"),
    ((*BRANCH, "attention", "kv_heads"), 3, "attention.kv_heads: 8 heads cannot share 3"),
    ((*BRANCH, "attention", "rotary", "dim"), 3, "attention.rotary.dim: 3 of 8 coordinates"),
    ((*BRANCH, "attention", "window_when"), "m > 1", "window_when: 'm > 1' reads 'm'"),
    ((*STACK, "branches", 2, "tensors", 1, "role"), "gate_up", "feed_forward.routing: there is no tensor router"),
    ((*STACK, "branches", 2, "feed_forward", "routing"), None, "feed_forward.routing: there is a tensor router"),
    (("state_layout",), ["batch", "sequence"], "state_layout: no model axis"),
    (("branch_order",), ["gated_mlp"], "branch_order: [gated_mlp] for decoder"),
    (("branch_order",), {"coder": ["mlp"]}, "branch_order: 'coder' is no stack"),
    (("final_norm",), "layernorm", "final_norm: layernorm, and decoder.final_norm is rmsnorm"),
    ((*STACK, "final_norm"), None, "final_norm: declared, and decoder has none"),
    (("norm", "placement"), "post_add", "norm.placement: post_add, and decoder has norm_in, norm_out"),
    (("norm", "center"), True, "center: prmsnorm subtracts no mean"),
    ((*NORM_IN, "placement"), "post_add", "placement: expected pre_branch at this site, found post_add"),
    (("witness",), "declared", "unplaced: a declared manifest places its norms"),
    (("norm", "variance_correction"), 1, "variance_correction: rmsnorm has no variance to correct"),
    (("norm", "algorithm"), "welford", "algorithm: welford keeps a running mean"),
    (("norm", "reduction_axes"), [-4], "reduction_axes: [-4] on a state of 3 axes"),
    (("norm", "family"), "dyt", "epsilon: dyt has no root and no epsilon"),
    (("norm", "family"), "dyt", "reduction_axes: dyt reduces over nothing"),
    (("norm", "family"), "layernorm", "center: layernorm subtracts the mean"),
    (("norm", "family"), "layernorm_std_eps", "outside the root"),
    (("norm", "epsilon"), 1.5, "epsilon: 1.5 is no small number"),
    ((*NORM_IN, "scale"), "per_head", "scale: per_head scales belong to norms inside attention"),
    ((*NORM_IN, "scale"), "scalar", "scale: one scalar, and the shape is [d_model]"),
    ((*STACK, "embedding_norm"), {"shape": ["d_model"]}, "shape: there is no module to have it"),
    ((*STACK, "embedding_norm"), {}, "embedding_norm: its module is not named"),
    (("norm", "work_dtype"), "float31", "work_dtype: expected one of float64"),
    (("norm", "work_dtype"), "input", "cast_order: cast_before_scale, and the work is done"),
    (("norm", "family"), "batchnorm", "couples: batchnorm ties examples together"),
    (("norm", "family"), "batchnorm", "padding_policy: padded positions would enter the statistics"),
    (("norm", "family"), "batchnorm", "persistent_state: batchnorm keeps running statistics"),
    (("norm", "couples"), ["positions"], "couples: rmsnorm statistics stay inside a row"),
    (("norm", "padding_policy"), "masked", "padding_policy: statistics stay inside a row"),
    (("norm", "persistent_state"), ["running_mean"], "persistent_state: rmsnorm keeps no statistics"),
    (("norm", "names"), {"gain": "scale"}, "names: a norm has no tensor gain; it has weight, bias"),
    (("norm", "names"), {"weight": "bias"}, "names: two tensors are called bias"),
    (("norm", "groups"), 2, "groups: rmsnorm with 2 groups"),
    (("norm", "family"), "groupnorm", "groups: groupnorm with no groups"),
    ((*NORM_IN, "subset"), None, "subset: prmsnorm with no subset"),
    ((*NORM_IN, "subset", "size"), None, "subset: random coordinates need a size"),
    ((*NORM_IN, "subset", "coordinates"), [1], "subset: 1 coordinates and size 8"),
    ((*NORM_IN, "subset", "coordinates"), "first", "subset: only a random subset is drawn again"),
    ((*NORM_IN, "subset", "distributed_owner"), None, "name the distributed_owner"),
    ((*NORM_IN, "instance"), "mine", "instance 'mine' is at no other site"),
    ((*NORM_IN, "module"), "model.other", "one instance 'shared' and several modules"),
    ((*NORM_IN, "owner"), " ", "owner is empty"),
    (("residual", "shortcut"), None, ""),
    ((*STACK, "residual", "shortcut_scale"), 2.0, "identity, and shortcut_scale is 2.0"),
    ((*STACK, "residual", "update"), "interpolate_retract", "interpolation needs a rate"),
    ((*STACK, "residual", "dtype"), "half", "residual.dtype: expected one of"),
    (("residual", "shortcut_scale", "learned"), False, "init belongs to a learned scale"),
    (("residual", "shortcut_scale", "granularity"), "head", "only attention has heads"),
    (("residual", "shortcut_scale"), {"value": None, "learned": True}, "a learned scale starts somewhere"),
    (("dropout", "attention_output", "p"), 1, "p: 1 is not in [0, 1)"),
    (("dropout", "attention_output", "position"), "inside_branch", "position: inside_branch for attention_output"),
    (("dropout", "attention_output", "position"), "input", "position: input for attention_output"),
    (("dropout", "attention_output", "schedule"), "linear_in_depth", "belongs to drop_path"),
    (("dropout", "drop_path"), {"p": 0.1}, "granularity: drop_path drops a branch"),
    (("dropout", "mlp_output"), {"p": 0, "scaling": "none"}, "scaling: nothing is dropped"),
    ((*STACK, "layer_kinds", "odd"), "l % 2 == 0", "layer_kinds: layer 0 is of even and odd"),
    ((*STACK, "layer_kinds", "odd"), "l < 0", "layer_kinds: layer 1 is of no kind"),
    ((*STACK, "layers"), -1, None),
    ((*STACK, "stored_layers"), 3, "stored_layers: 3 on disk, and only 2 are run"),
    ((*STACK, "embedding_scale"), 0, "embedding_scale: 0 leaves nothing"),
    ((*STACK, "logit_softcap"), -1, "logit_softcap: -1 is not positive"),
    ((*BRANCH, "softcap"), 0, "softcap: 0 is not positive"),
    ((*STACK, "ignored"), True, "ignored: layers that are not built"),
    ((*BRANCH, "reads"), "elsewhere", "reads: 'elsewhere' is neither state nor memory nor a norm"),
    ((*BRANCH, "sources", "q"), "there", "sources.q: 'there' is neither"),
    ((*STACK, "branches", 1, "sources"), {"q": "state"}, "cross attention reads no memory"),
    ((*STACK, "branches", 2, "layer_kinds"), ["even", "third"], "layer_kinds: 'third' is no kind"),
    ((*BRANCH, "tensors", 0, "shape"), ["d_model"], "layout: in_out on [d_model]"),
    ((*BRANCH, "tensors", 0, "module"), "a.{l}.{l}", "axis {l} comes twice"),
    (("parts", "lm_head", 0, "tied_to"), "nothing.weight", "tied_to: no tensor is called 'nothing.weight'"),
    (("parts", "lm_head", 0, "tied_to"), GONE, "tie: tied_to does not say to what"),
    (("parts", "lm_head", 0, "derived"), True, "derived: what the config determines"),
    ((*STACK, "tensors", 0, "bias"), True, "bias: a key is one tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("where", "value", "said"), BLOCK, ids=[".".join(map(str, w)) for w, _, _ in BLOCK])
def test_a_contradiction_in_a_block_manifest(where: tuple[Any, ...], value: Any, said: str | None) -> None:
    document = _changed(samples.EVERYTHING, where, value)
    if said is None:
        return  # the schema refuses it
    found = check_manifest(samples.manifest(document))
    assert all("\n" not in line for line in found)
    assert said == "" or any(said in line for line in found), found


def test_branches_that_stand_beside_each_other() -> None:
    document = _changed(samples.EVERYTHING, (*STACK, "parallel"), True)
    document["stacks"][0]["branches"][0]["norms"]["norm_post"] = {"module": "model.layers.{l}.post"}
    assert any("no branch has a norm after an add" in f for f in check_manifest(samples.manifest(document)))
    document["stacks"][0]["branches"][1:] = []
    assert any("one branch has nothing beside it" in f for f in check_manifest(samples.manifest(document)))


def test_names_that_are_given_twice() -> None:
    document = samples.everything()
    document["stacks"].append(copy.deepcopy(document["stacks"][0]))
    assert "stacks: 'decoder' is given twice" in check_manifest(samples.manifest(document))
    document = samples.everything()
    document["stacks"][0]["branches"].append({"name": "self_attention", "kind": "self_attention"})
    assert any("nothing (when, layer_kinds) tells which" in f for f in check_manifest(samples.manifest(document)))


JOINED: list[tuple[str, tuple[Any, ...], Any, str]] = [
    ("tensor_manifest", ("tensors", 0, "axes"), ["batch", "model"], "axes: 2 names for 3 sizes"),
    ("tensor_manifest", ("tensors", 0, "axes"), ["batch", "batch", "model"], "a name comes twice"),
    ("tensor_manifest", ("tensors", 0, "dtype"), "float31", "dtype: expected one of"),
    ("tensor_manifest", ("tensors", 0, "device"), "cuda:x", "device: expected cpu"),
    ("tensor_manifest", ("tensors", 0, "branch_owner"), "moe", "branch_owner 'moe' is none of"),
    ("tensor_manifest", ("tensors", 0, "valid_rows", "axes"), ["time"], "valid_rows: 'time' is no axis"),
    ("tensor_manifest", ("tensors", 0, "valid_rows", "axes"), ["model"], "is the channel axis"),
    ("tensor_manifest", ("tensors", 0, "valid_rows", "axes"), ["batch"], "attention_mask speaks of the sequence"),
    ("tensor_manifest", ("tensors", 0, "contiguity"), "strided", "stride: a strided tensor gives its strides"),
    ("tensor_manifest", ("tensors", 1, "stride"), [1, 2], "stride: 2 strides for 3 sizes"),
    ("tensor_manifest", ("tensors", 1, "stride"), [1, 2, 3], "contiguity: contiguous, and the strides are"),
    ("tensor_manifest", ("tensors", 1, "contiguity"), "strided", "contiguity: strided, and the strides are"),
    ("tensor_manifest", ("tensors", 1, "name"), "layers.0.self_attention.residual", "given twice"),
    ("checkpoint_manifest", ("axes",), {}, "axis {l} is not in axes"),
    ("checkpoint_manifest", ("axes", "e"), 2, "axes.e: no key has it"),
    ("checkpoint_manifest", ("axes", "l"), "n +", "axes.l: "),
    ("checkpoint_manifest", ("tensors", 0, "key"), "a{", "not a key template"),
    ("checkpoint_manifest", ("tensors", 1, "transpose"), "in_out", "transpose in_out on a tensor of 1 axes"),
    ("checkpoint_manifest", ("tensors", 0, "dtype"), "float31", "dtype: expected one of"),
    ("checkpoint_manifest", ("tensors", 0, "shape"), ["d ++"], "is not an expression"),
    ("checkpoint_manifest", ("tensors", 6, "shape"), ["vocab"], "shape ['vocab'], and"),
    ("checkpoint_manifest", ("shared", 0, "same_as"), "nothing", "which is no key of this checkpoint"),
    ("checkpoint_manifest", ("shared", 0, "same_as"), "lm_head.weight", "tied to itself"),
    ("checkpoint_manifest", ("shared", 0), {"key": "x", "same_as": "lm_head.weight", "how": "aliased"}, "an alias is"),
    ("checkpoint_manifest", ("norms", 0, "weight"), "nothing", "nothing is no key of this checkpoint"),
    ("checkpoint_manifest", ("norms", 0), {"site": "s", "weight": None, "bias": "model.norm.weight"}, "without a"),
    ("checkpoint_manifest", ("final_norm",), "nothing", "final_norm: nothing is no key"),
    ("checkpoint_manifest", ("final_norm",), None, "final_norm: None, and norms has model.norm.weight"),
    ("checkpoint_manifest", ("buffers", 0, "derived_from"), None, "derived_from: what is it computed from?"),
    ("checkpoint_manifest", ("buffers", 0, "state"), "owned", "owned by the checkpoint, which has no such key"),
    ("checkpoint_manifest", ("quantisation",), {"scheme": "awq", "bits": 3}, "bits: awq packs 4 bits, found 3"),
    ("checkpoint_manifest", ("quantisation",), {"scheme": "awq", "bits": 4}, "group_size: awq packs by groups"),
    ("checkpoint_manifest", ("quantisation",), {"scheme": "mxfp4", "bits": 4, "group_size": 8}, "between 32 weights"),
    ("checkpoint_manifest", ("quantisation",), {"scheme": "fp8", "bits": 8, "excluded": ["x"]}, "excluded: x is no"),
    ("training_manifest", ("dropout", "attention_output", "p"), 1, "p 1.0 is not in [0, 1)"),
    ("training_manifest", ("rng",), None, "rng: dropout acts, and nothing says"),
    ("training_manifest", ("rng", "coordinates"), ["step", "layer"], "lacks microbatch, branch, row, channel"),
    ("training_manifest", ("rng", "generator"), " ", "rng: the generator is not named"),
    ("training_manifest", ("dropout",), {}, "rng: given, and nothing is dropped"),
    ("training_manifest", ("dropout", "drop_path"), {"p": 0.1}, "granularity element for a whole branch"),
    ("training_manifest", ("recomputed",), ["layers.{l}.state"], "is saved as well"),
    ("training_manifest", ("mode",), "eval", "recomputed: in mode eval there is no backward"),
    ("training_manifest", ("mode",), "eval", "optimizer: adamw in mode eval"),
    ("training_manifest", ("optimizer",), None, "optimizer: none in mode train"),
    ("training_manifest", ("optimizer", "state"), [], "a resumed adamw needs exp_avg, exp_avg_sq"),
    ("training_manifest", ("optimizer",), {"name": "sgd", "state": [], "state_dtype": "bfloat16"}, "small updates"),
    ("training_manifest", ("initialization", 0, "meaning"), None, "needs its number, and what the number means"),
    ("training_manifest", ("initialization", 0, "meaning"), "bound", "a normal distribution has no bound"),
    ("training_manifest", ("initialization", 0, "number"), 0, "draws nothing"),
    ("training_manifest", ("initialization", 0, "distribution"), "zeros", "zeros takes no number"),
    ("training_manifest", ("counters",), {}, "counters: a resumed schedule needs step"),
    ("training_manifest", ("counters", "step"), 10**9, "counters.step: 1000000000 of 100000 steps"),
    ("training_manifest", ("autocast",), {"enabled": True}, "autocast: enabled, and casts to None"),
    ("training_manifest", ("autocast", "enabled"), False, "autocast: off, and a dtype"),
    ("training_manifest", ("autocast", "dtype"), "float16", "underflow without loss scaling"),
    ("runtime_manifest", ("backend",), "fused", "fused: 0 kernels on the fused backend"),
    ("runtime_manifest", ("accumulation_dtype",), "float8_e4m3", "is narrower than the output, bfloat16"),
    ("runtime_manifest", ("residual_dtype",), "float8_e4m3", "residual_dtype: float8_e4m3 drops"),
    ("runtime_manifest", ("parallel", "branch", "degree"), 2, "both operands of an add have one ownership map"),
    ("runtime_manifest", ("deterministic", "enabled"), True, "sums in any order round differently"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "where", "value", "said"), JOINED, ids=[f"{k}.{w[-1]}" for k, w, _, _ in JOINED])
def test_a_contradiction_in_another_manifest(kind: str, where: tuple[Any, ...], value: Any, said: str) -> None:
    document = _changed(json.loads((EXAMPLES / f"{kind}.json").read_bytes()), where, value)
    found = check(any_manifest(json.dumps(document).encode(), "m.json")[1])
    assert any(said in line for line in found), found


def test_a_float32_residual_crosses_stages_as_it_is() -> None:
    document = json.loads((EXAMPLES / "runtime_manifest.json").read_bytes())
    document |= {"residual_dtype": "float32", "pipeline_dtype": "bfloat16"}
    document["parallel"]["reduced_before_add"] = False
    document["parallel"]["residual"] = document["parallel"]["branch"] = {"layout": "hidden", "degree": 4}
    document["deterministic"] = {"enabled": True, "rng": "launch_order", "reduction_order": "fixed"}
    found = check(any_manifest(json.dumps(document).encode(), "m.json")[1])
    assert [line.partition(":")[0] for line in found] == ["pipeline_dtype", "parallel", "deterministic"]


def test_a_core_that_contradicts_itself() -> None:
    text = samples.CORE.replace("center: false", "center: true").replace("p: ", "")
    assert any("subtracts no mean" in line for line in check_manifest(block_manifest(text.encode(), "m.yaml")))
