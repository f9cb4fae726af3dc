"""The full reference against the models of transformers: every family of the library, and what its config can change.

Weights are random and none is trivial; what is compared is every state that the model tells, and its logits.
"""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import msgspec
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from blockaudit.cli.main import run  # noqa: E402
from blockaudit.manifest.bind import bind  # noqa: E402
from blockaudit.manifest.load import library, load  # noqa: E402
from blockaudit.records.manifest import Manifest  # noqa: E402
from blockaudit.reference.decoder import FullReference  # noqa: E402
from tests.families import models as families  # noqa: E402
from tests.reference import models  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

SHORT = {"hidden_size": 32, "num_attention_heads": 4}
WINDOW = {"sliding_window": 5}
YARN = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
LONG = {"rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1, 2, 3, 4]}

# Beside the variants that change which keys there are: those that only change what is computed.
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "bert": {"relu": {"hidden_act": "relu"}, "causal": {"is_decoder": True}},
    "cohere": {"scaled": {"rope_parameters": YARN}},
    "deepseek_v3": {
        "yarn": {"rope_parameters": {**YARN, "mscale": 0.7, "mscale_all_dim": 1.0}},
        "half": {"rope_interleave": False},
        "plain_weights": {"norm_topk_prob": False, "routed_scaling_factor": 1.5, "n_shared_experts": 2},
    },
    "falcon": {
        "alibi": {"alibi": True},
        "alibi_new": {"alibi": True, "new_decoder_architecture": True, "num_kv_heads": 2},
        "alibi_old": {"alibi": True, "multi_query": False, "parallel_attn": False, "bias": True},
    },
    "gemma2": {"window": WINDOW, "scalar": {"query_pre_attn_scalar": 20, "attn_logit_softcapping": 3.0}},
    "gemma3_text": {
        "window": {**WINDOW, "num_hidden_layers": 7},
        "pattern": {**WINDOW, "layer_types": ["full_attention", "sliding_attention", "full_attention"]},
    },
    "glm4": {"whole": {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 1.0}}},
    "gpt2": {"by_layer": {"scale_attn_by_inverse_layer_idx": True}, "unscaled": {"scale_attn_weights": False}},
    "gpt_neox": {"whole": {"rotary_pct": 1.0}, "theta": {"rotary_emb_base": 100.0, "rotary_pct": 0.5}},
    "gptj": {"whole": {"rotary_dim": 8}},
    "granite": {"scores": {"attention_multiplier": 0.3}},
    "llama": {
        "linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 100.0, "factor": 4.0}},
        "dynamic": {
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 3.0},
            "max_position_embeddings": 8,
        },
        "llama3": {"rope_parameters": LLAMA3},
        "yarn": {"rope_parameters": YARN},
        "yarn_more": {
            "rope_parameters": {**YARN, "beta_fast": 8, "beta_slow": 0.5, "truncate": False, "attention_factor": 1.3}
        },
        "one_key_head": {"num_key_value_heads": 1},
    },
    "mistral": {"window": WINDOW, "no_window": {"sliding_window": None}},
    "mixtral": {"window": WINDOW, "three": {"num_experts_per_tok": 3}},
    "olmo": {"clip": {"clip_qkv": 0.4}},
    "phi3": {
        "window": WINDOW,
        "partial": {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
        "long": {"rope_parameters": LONG, "original_max_position_embeddings": 8},
        "short": {"rope_parameters": LONG, "original_max_position_embeddings": 16},
    },
    "qwen2": {"window": {**WINDOW, "use_sliding_window": True, "max_window_layers": 1}},
    "qwen3": {"window": {**WINDOW, "use_sliding_window": True, "max_window_layers": 2}},
    "qwen3_moe": {
        "normalised": {"norm_topk_prob": True},
        "window": {**WINDOW, "use_sliding_window": True},
        "unused_window": WINDOW,
    },
    "bart": {"scaled": {"scale_embedding": True, "activation_function": "relu"}},
    "opt": {
        "gelu": {"activation_function": "gelu"},
        "post_ln_projected": {"do_layer_norm_before": False, "word_embed_proj_dim": 16},
    },
    "roberta": {"causal": {"is_decoder": True}, "padding": {"pad_token_id": 2}},
    "starcoder2": {"window": WINDOW},
    "t5": {
        "silu": {"feed_forward_proj": "gated-silu"},
        "buckets": {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 9},
    },
}  # fmt: skip
# Cross-attention whose memory the caller gives: no stack of the manifest does.
WITHOUT_MEMORY = {("bert", "decoder"), ("gpt2", "cross")}

# No class of these families has logits.
HEADLESS = {"clip_text_model"}

BASES = [(family, "", dict[str, Any]()) for family in sorted(families.CONFIGS)]
CASES = BASES + [
    (family, name, changes)
    for table in (families.VARIANTS, VARIANTS)
    for family, named in table.items()
    for name, changes in named.items()
    if (family, name) not in WITHOUT_MEMORY
]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _manifest(family: str) -> Manifest:
    return library(family).manifest


@pytest.mark.parametrize(("family", "name", "changes"), CASES, ids=[f"{f}-{n}".rstrip("-") for f, n, _ in CASES])
def test_every_state_and_the_logits(family: str, name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    model = models.build(family, **changes)
    ours = models.reference(model, family, tmp_path, torch.float32)
    assert ours.refusal(ours.bound) == ""
    for padded in ("", "left", "right"):
        found = models.errors(model, ours, models.batch(ours.bound, padded=padded))
        assert found.pop("logits", 0.0 if family in HEADLESS else 1.0) < 1e-5
        assert len(found) >= 2
        assert max(found.values()) < 1e-5, found


CLASSES = [
    ("albert", "AlbertModel"), ("bart", "BartModel"), ("bert", "BertForPreTraining"),
    ("bert", "BertForSequenceClassification"), ("deepseek_v3", "DeepseekV3Model"), ("gpt2", "GPT2Model"),
    ("llama", "LlamaForQuestionAnswering"), ("llama", "LlamaModel"), ("opt", "OPTModel"), ("t5", "T5EncoderModel"),
    ("t5", "T5Model"),
]  # fmt: skip


@pytest.mark.parametrize(("family", "name"), CLASSES)
def test_a_class_of_other_parts(family: str, name: str, tmp_path: Path) -> None:
    """Keys without the prefix, one stack of two, heads that are no language model's."""
    model = models.build(family, name)
    ours = models.reference(model, family, tmp_path, torch.float32)
    found = models.errors(model, ours, models.batch(ours.bound, padded="right"))
    assert len(found) >= 2
    assert max(found.values()) < 1e-5, found
    assert (ours.head(torch.zeros(1, 1, 32)) is not None) == ("CausalLM" in name or "PreTraining" in name)


@pytest.mark.parametrize("family", ["albert", "bart", "bert", "gpt2", "opt", "roberta"])
def test_in_float64(family: str, tmp_path: Path) -> None:
    """Where the model's own code keeps float64 (angles and RMSNorm do not), nothing hides in rounding."""
    model = models.build(family, dtype=torch.float64, attn_implementation="sdpa")
    ours = models.reference(model, family, tmp_path, torch.float64)
    found = models.errors(model, ours, models.batch(ours.bound, padded="right"))
    assert max(found.values()) < 1e-9, found


@pytest.mark.parametrize("family", sorted(families.CONFIGS))
def test_a_low_dtype_runs_and_is_near(family: str, tmp_path: Path) -> None:
    """The reference in the release's dtype shows the noise of this dtype."""
    model = models.build(family)
    exact = models.reference(model, family, tmp_path, torch.float32)
    low = FullReference(exact.bound, models.weights(tmp_path, torch.bfloat16), torch.bfloat16)
    inputs = models.batch(exact.bound)
    one, two = exact.run(inputs), low.run(inputs)
    assert list(one) == list(two)
    assert all(two[site].dtype == torch.bfloat16 for site in two)
    if "experts" not in str(exact.bound.manifest.axes):  # a token may go to another expert
        last = "final_norm" if family in HEADLESS else "logits"
        assert models.relative(one[last], two[last].float()) < 0.5


@pytest.mark.parametrize("family", ["llama", "gemma2", "t5", "deepseek_v3", "bloom", "albert"])
def test_gradients_reach_every_weight(family: str, tmp_path: Path) -> None:
    model = models.build(family)
    exact = models.reference(model, family, tmp_path, torch.float32)
    stored = models.weights(tmp_path, torch.float32)
    leaves: dict[str, torch.Tensor] = {}

    def leaf(key: str) -> torch.Tensor:
        if key not in leaves:
            leaves[key] = stored(key).clone().requires_grad_()
        return leaves[key]

    of = FullReference(exact.bound, leaf, torch.float32)
    inputs = models.batch(of.bound, size=3, length=20)
    of.run(inputs)["logits"].pow(2).sum().backward()
    still = {key for key, value in leaves.items() if value.grad is None or not value.grad.any()}
    # What only chooses experts moves nothing.
    assert {key for key in still if "correction_bias" not in key} == set()
    theirs = {key: stored(key) for key in leaves}
    assert all(torch.equal(leaves[key].detach(), theirs[key]) for key in leaves)


def test_no_weight_is_kept(tmp_path: Path) -> None:
    """Every tensor can be freed once the branch that asked for it has run, and is asked for again the next time."""
    model = models.build("llama")
    exact = models.reference(model, "llama", tmp_path, torch.float32)
    stored, alive = models.weights(tmp_path, torch.float32), list[Any]()

    def lent(key: str) -> torch.Tensor:
        tensor = stored(key).clone()
        alive.append(weakref.ref(tensor))
        return tensor

    of = FullReference(exact.bound, lent, torch.float32)
    context = of.context(models.batch(of.bound))
    x = of.embed("decoder", context)
    for branch in ("self_attention", "mlp"):
        with torch.no_grad():
            x = of.branch("decoder", 1, branch, x, context)
        assert [ref() for ref in alive] == [None] * len(alive)
    assert len(alive) == 1 + 4 + 3


OLD: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": (
        {"rope_theta": 500.0, "rope_scaling": {"type": "linear", "factor": 4.0}},
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 4.0}},
    ),
    "phi": (
        {"rope_theta": 50.0, "partial_rotary_factor": 0.25},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.25}},
    ),
    "gpt_neox": (
        {"rotary_emb_base": 50.0, "rotary_pct": 0.5},
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0, "partial_rotary_factor": 0.5}},
    ),
    "gemma3_text": (
        {"rope_theta": 50.0, "rope_local_base_freq": 20.0, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 50.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 20.0},
            }
        },
    ),
}


@pytest.mark.parametrize("family", sorted(OLD))
def test_an_older_spelling_of_config_json_means_the_same(family: str, tmp_path: Path) -> None:
    old, new = OLD[family]
    model = models.build(family, **new)
    exact = models.reference(model, family, tmp_path, torch.float32)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["rope_parameters"]
    older = FullReference(bind(_manifest(family), config | old), models.weights(tmp_path, torch.float32), torch.float32)
    inputs = models.batch(exact.bound)
    assert models.errors(model, older, inputs)["logits"] < 1e-5


REFUSED = {
    "rope_type": ("llama", {"rope_parameters": {"rope_type": "spiral", "rope_theta": 1e4}}, "rotary.type is 'spiral'"),
    "factor": ("llama", {"rope_parameters": {"rope_type": "linear"}}, "rotary.factor is not given"),
    "activation": ("llama", {"hidden_act": "sine"}, "activation is 'sine'"),
    "bidirectional": ("gemma2", {"use_bidirectional_attention": True}, "bidirectional is set"),
    "heads": ("llama", {"num_key_value_heads": 3}, "4 heads cannot share 3"),
    "epsilon": ("llama", {"rms_norm_eps": "small"}, "norm_in.epsilon is 'small'"),
    "softcap": ("gemma2", {"attn_logit_softcapping": [30]}, "self_attention.softcap is [30]"),
    "experts": ("mixtral", {"num_experts_per_tok": 5}, "routing.top_k is 5, of 4 experts"),
    "groups": ("deepseek_v3", {"n_group": 3}, "4 experts are not 3 groups"),
    "width": ("bloom", {"n_head": 5}, "has 96 outputs, and its heads take 90"),
    "longrope": ("phi3", {"rope_parameters": {**LONG, "long_factor": [1.0]}}, "do not have 4 entries"),
    "decoder_alone": ("bart", {"architectures": ["BartForCausalLM"]}, "reads a memory that no stack gives"),
    "memory": ("gpt2", {"add_cross_attention": True}, "reads a memory that no stack gives"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_what_the_reference_cannot_run_is_refused_in_a_line(name: str) -> None:
    family, changes, said = REFUSED[name]
    bound = bind(_manifest(family), {**families.CONFIGS[family], **changes})
    assert said in FullReference.refusal(bound)
    assert "\n" not in FullReference.refusal(bound)


def test_without_config_nothing_is_guessed() -> None:
    assert FullReference.refusal(bind(_manifest("llama"), None)) == "decoder.layers is not known"


def test_a_pinned_manifest_runs_as_it_was_pinned(tmp_path: Path) -> None:
    """What later becomes of config.json changes nothing: theta, window pattern and activation are in the manifest."""
    model = models.build("gemma2", sliding_window=5)
    pinned, saved = tmp_path / "pinned.json", tmp_path / "model"
    exact = models.reference(model, "gemma2", saved, torch.float32)
    assert run(["manifest", "draft", str(saved), "--level", "headers", "--pin", "--output", str(pinned)]) == 0
    config = json.loads((saved / "config.json").read_text())
    config |= {"sliding_window": 9, "hidden_activation": "relu", "rope_parameters": {"rope_theta": 3.0}}
    config["layer_types"] = ["full_attention"] * 3
    bound = bind(load(str(pinned)).manifest, config)
    later = FullReference(bound, models.weights(saved, torch.float32), torch.float32)
    inputs = models.batch(bound)
    assert torch.equal(later.run(inputs)["logits"], exact.run(inputs)["logits"])


def test_a_manifest_without_functions_is_refused() -> None:
    manifest = _manifest("llama")
    stack = manifest.stacks[0]
    branches = [msgspec.structs.replace(b, attention=None) for b in stack.branches]
    bare = msgspec.structs.replace(manifest, stacks=[msgspec.structs.replace(stack, branches=branches)])
    said = FullReference.refusal(bind(bare, {}))
    assert said == "decoder.self_attention: the manifest does not say what the attention computes"
