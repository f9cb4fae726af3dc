"""One proof for every map: the target computes what the source did, and the way back gives the source's bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from blockaudit.pipeline.converting import Writing, convert
from blockaudit.pipeline.mapping import check_map
from blockaudit.records.report import Report

Weights = dict[str, torch.Tensor]
WRITING = Writing(shard_bytes=1 << 30, fsync=False)


def saved(weights: Weights, config: dict[str, Any], folder: Path) -> Path:
    """A source as one safetensors file and config.json."""
    folder.mkdir(parents=True)
    save_file(weights, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def accepted(report: Report) -> Report:
    assert report.verdict == "accepted", [(f.name, f.message) for f in report.findings]
    return report


def there(map_: str, source: Path, target: Path) -> Path:
    """Source -> target, the map proved on its headers first."""
    accepted(check_map(map_, source))
    accepted(convert(source, target, map_=map_, writing=WRITING))
    return target


def back(map_: str, target: Path, again: Path) -> Weights:
    """Target -> source once more: its tensors."""
    accepted(check_map(map_, target, reverse=True))
    accepted(convert(target, again, map_=map_, reverse=True, writing=WRITING))
    return stored(again)


def stored(folder: Path) -> Weights:
    """Every tensor of a folder of safetensors files."""
    return {key: t for file in sorted(folder.glob("*.safetensors")) for key, t in load_file(file).items()}


def same_bytes(found: Weights, wanted: Weights) -> None:
    assert found.keys() == wanted.keys()
    for key, tensor in wanted.items():
        assert (found[key].dtype, found[key].shape) == (tensor.dtype, tensor.shape), key
        assert torch.equal(found[key].contiguous().view(torch.uint8), tensor.contiguous().view(torch.uint8)), key


def computed(target: Path, *ids: torch.Tensor) -> torch.Tensor:
    """Logits of the target in the class that its config names: of ids, or of those of an encoder and a decoder."""
    import transformers

    name: str = json.loads((target / "config.json").read_text())["architectures"][0]
    kind: Any = getattr(transformers, name)
    model, report = kind.from_pretrained(target, dtype=torch.float32, output_loading_info=True)
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    given = dict(zip(("input_ids", "decoder_input_ids"), ids, strict=False))
    with torch.no_grad():
        return model.eval()(**given).logits


def agree(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """Equal to FP32 round-off: 1e-5 of the largest logit. Returns the largest difference, over that logit."""
    worst = float((found - wanted).abs().max() / wanted.abs().max())
    assert worst < 1e-5, worst
    return worst
