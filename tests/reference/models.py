"""A model of transformers beside the full reference of its checkpoint: both run on one batch, the sites compared."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file  # pyright: ignore[reportUnknownVariableType]

from blockaudit.manifest.bind import bind
from blockaudit.manifest.load import library
from blockaudit.records.bound import BoundManifest
from blockaudit.reference.decoder import FullReference
from tests.families import models

Tensors = dict[str, torch.Tensor]


def build(family: str, class_name: str | None = None, dtype: torch.dtype = torch.float32, **changes: Any) -> Any:
    """A tiny model none of whose weights is trivial: biases away from 0, gains away from 1, no symmetric table."""
    model = models.build(family, class_name, **changes)
    chance = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=chance)
            parameter.add_(0.3 * noise if parameter.ndim == 1 else 0.08 * noise)
            # Positions and relative biases start at zero in some classes.
            if "relative" in name:
                parameter.add_(noise)
        for name, buffer in model.named_buffers():
            if name.endswith(("e_score_correction_bias", "final_logits_bias")):
                buffer.add_(0.3 * torch.randn(buffer.shape, generator=chance))
    return model.to(dtype).eval()


def reference(model: Any, family: str, folder: Path, dtype: torch.dtype) -> FullReference:
    """The full reference of what the model saves: its config.json and its tensors, and nothing of its code."""
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    bound = bind(library(family).manifest, config)
    return FullReference(bound, weights(folder, dtype), dtype)


def weights(folder: Path, dtype: torch.dtype) -> Callable[[str], torch.Tensor]:
    stored = load_file(folder / "model.safetensors")
    return lambda key: stored[key].to(dtype)


def batch(bound: BoundManifest, size: int = 2, length: int = 13, padded: str = "", seed: int = 3) -> Tensors:
    """Tokens that are no padding, and a mask with four tokens of padding on the left or right of all rows but one."""
    chance = torch.Generator().manual_seed(seed)
    inputs = {"input_ids": torch.randint(3, 90, (size, length), generator=chance)}
    mask = torch.ones(size, length, dtype=torch.long)
    if padded:
        hidden = slice(0, 4) if padded == "left" else slice(length - 4, length)
        mask[1:, hidden] = 0
        pad = bound.functions.get(f"{bound.spans[0].name}.inputs.padding_id")
        inputs["input_ids"][mask == 0] = pad.value if pad is not None and pad.value is not None else 0
        inputs["attention_mask"] = mask
    if len([s for s in bound.spans if not s.ignored]) > 1:
        inputs["decoder_input_ids"] = torch.randint(3, 90, (size, length - 3), generator=chance)
    return inputs


def errors(model: Any, of: FullReference, inputs: Tensors) -> dict[str, float]:
    """The largest error at every state that transformers tells, relative to the root mean square; valid rows only."""
    with torch.no_grad():
        theirs, ours = model(**inputs, output_hidden_states=True, use_cache=False), of.run(inputs)
    found: dict[str, float] = {}
    names = [s.name for s in of.spans]
    valid = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"])).bool()
    for name in names:
        alone = len(names) == 1
        states = theirs.hidden_states if alone else getattr(theirs, f"{name}_hidden_states")
        rows = torch.ones_like(inputs["decoder_input_ids"]).bool() if not alone and name == names[-1] else valid
        span, before = next(s for s in of.spans if s.name == name), "" if alone else f"{name}."
        # CLIP tells the last state before its final norm, as of every other layer, and what leaves the norm beside it.
        left = getattr(theirs, "last_hidden_state", None) if alone else None
        apart = left is not None and not torch.equal(left, states[-1])
        if apart:
            found["final_norm"] = relative(left[rows], ours["final_norm"][rows])
        for number, state in enumerate(states[1:]):
            site = f"layers.{_layer(of.bound, number, len(states) - 1, span.run or 0)}.state"
            last = number == len(states) - 2 and f"{before}final_norm" in ours and not apart
            site = "final_norm" if last else site
            if state.shape == ours[before + site].shape:
                found[before + site] = relative(state[rows], ours[before + site][rows])
    if getattr(theirs, "logits", None) is not None and "logits" in ours:
        rows = valid if len(names) == 1 else slice(None)
        found["logits"] = relative(theirs.logits[rows], ours["logits"][rows])
    return found


def _layer(bound: BoundManifest, number: int, told: int, run: int) -> int:
    """The layer that a state of transformers is behind: ALBERT tells one in `inner`."""
    return (number + 1) * run // told - 1


def relative(theirs: torch.Tensor, ours: torch.Tensor) -> float:
    """The largest difference over the root mean square of theirs."""
    assert theirs.shape == ours.shape
    return float((theirs - ours).abs().max() / theirs.pow(2).mean().sqrt())
