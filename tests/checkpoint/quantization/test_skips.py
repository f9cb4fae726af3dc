"""Lists of modules that are left in plain numbers: read as their loaders read them, and never run as patterns."""

from __future__ import annotations

from typing import Any

import pytest

from blockaudit.checkpoint.quantization.declared import Declared
from blockaudit.checkpoint.quantization.skips import skips

MODULE = "model.layers.11.mlp.gate_proj"


@pytest.mark.parametrize(
    ("field", "entry", "said"),
    [
        # transformers: the start up to a dot, the end, or a pattern up to a dot
        ("modules_to_not_convert", "gate_proj", True),
        ("modules_to_not_convert", "model.layers.11", True),
        ("modules_to_not_convert", "model.layers.1", False),
        ("modules_to_not_convert", "mlp.gate", False),
        ("modules_to_not_convert", "mlp.gate_proj", True),
        ("llm_int8_skip_modules", "model.layers.*.mlp", True),
        ("llm_int8_skip_modules", "lm_head", False),
        ("ignored_layers", MODULE, True),
        # compressed-tensors: a name, or `re:` from the start
        ("ignore", MODULE, True),
        ("ignore", "gate_proj", False),
        ("ignore", "re:.*gate_proj$", True),
        ("ignore", "re:.*gate$", False),
        ("ignore", r"re:model\.layers\.\d+\.mlp", True),
        ("ignore", r"re:.*\.self_attn\..*", False),
        # more than wildcards: not judged
        ("ignore", "re:.*(gate|up)_proj", None),
        ("modules_to_not_convert", "(a+)+$", None),
    ],
)
def test_lists(field: str, entry: str, said: bool | None) -> None:
    assert skips(Declared(True, "m", {field: [entry]})).leaves_out(MODULE) is said


def test_gptq_names_what_it_leaves_out_and_what_it_takes() -> None:
    assert skips(Declared(True, "gptq", {"dynamic": {r"-:.*gate_proj": {}}})).leaves_out(MODULE) is True
    taken = {"modules_in_block_to_quantize": [["self_attn.q_proj"], ["mlp.up_proj"]]}
    assert skips(Declared(True, "gptq", taken)).leaves_out(MODULE) is True
    assert skips(Declared(True, "gptq", taken)).leaves_out("model.layers.0.mlp.up_proj") is False


@pytest.mark.parametrize(("target", "said"), [("Linear", False), ("re:.*up_proj$", True), ("re:.*gate_proj$", False)])
def test_targets_of_compressed_tensors(target: str, said: bool) -> None:
    raw: dict[str, Any] = {"config_groups": {"group_0": {"targets": [target], "weights": {}}}}
    assert skips(Declared(True, "compressed-tensors", raw)).leaves_out(MODULE) is said


def test_lists_of_anything_else_are_no_lists() -> None:
    for strange in (None, 3, "gate_proj", {"a": 1}, [None, 4, ["x"]]):
        assert skips(Declared(True, "m", {"ignore": strange, "dynamic": strange})).leaves_out(MODULE) is False


@pytest.mark.timeout(20)
def test_a_hostile_pattern_ends() -> None:
    """One that backtracks would run for hours."""
    listed = skips(Declared(True, "m", {"ignore": ["re:" + ".*a" * 60 + "$", "re:(a+)+$"]}))
    assert listed.leaves_out("a" * 400 + "b") is None
