"""Updates of another shape than the state, and parameters that nothing reads: named for a candidate, by the CLI."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from tests.support.audit import Outcome, inspect

USER = """
import torch
from torch import nn

class Layer(nn.Module):
    def __init__(self, way, width):
        super().__init__()
        self.way, self.norm = way, nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 32), nn.Linear(32, 1 if way == "row" else width)
        self.extra = nn.Linear(width, width) if way == "dead" else None

    def forward(self, x):
        u = self.down(self.up(self.norm(x)).relu())
        batch, length, width = x.shape
        if self.way == "mean":
            u = u.mean(1, keepdim=True)
        if self.way == "channel":
            u = u.mean((0, 1))
        if self.way == "expanded":
            u = u[:, :1].expand(batch, length, width)
        if self.way == "beside":
            return torch.cat((x, u), -1)
        if self.way == "heads":
            return (x[:, None] + torch.stack((u, 2 * u), 1)).sum(1)
        if self.way == "gated":  # a gate of one number a row is no update
            return x + u * u.mean(-1, keepdim=True).sigmoid()
        return x + u

class Model(nn.Module):
    def __init__(self, way):
        super().__init__()
        widths = (16, 32, 64) if way == "beside" else (16, 16, 16)
        self.table, self.layers = nn.Embedding(50, 16), nn.ModuleList(Layer(way, w) for w in widths)
        width = 128 if way == "beside" else 16
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50)

    def forward(self, input_ids):
        x = self.table(input_ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))

def _maker(way):
    return lambda source, *, device, dtype: Model(way).to(dtype)

for way in ("plain", "row", "mean", "channel", "expanded", "beside", "heads", "gated", "dead"):
    globals()[way] = _maker(way)
"""


def _audited(way: str, folder: Path) -> Outcome:
    (folder / "user.py").write_text(USER, encoding="utf-8")
    return inspect("--level=graph", "--candidate", f"{folder / 'user.py'}:{way}")


@pytest.mark.parametrize(
    ("way", "message"),
    [
        ("row", "broadcasts an update of [14,1] and a state of [2,7,16] to [2,7,16]; 2 more"),
        ("mean", "an update of [2,1,16]"),
        ("channel", "an update of [16]"),
        ("expanded", "an update of [2,1,16]"),
        ("heads", "an update of [2,2,7,16] and a state of [2,7,16] to [2,2,7,16]"),
        ("beside", "concatenates an update of [14,16] and a state of [2,7,16] to [2,7,32]"),
    ],
)
def test_an_update_of_another_shape_is_named(way: str, message: str, tmp_path: Path) -> None:
    outcome = _audited(way, tmp_path)
    found = [f["message"] for f in outcome.findings if f["name"] == "residual-shape-mismatch"]
    assert outcome.status == 1
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.parametrize("way", ["plain", "gated", "dead"])
def test_an_update_of_the_states_shape_is_not(way: str, tmp_path: Path) -> None:
    outcome = _audited(way, tmp_path)
    assert "residual-shape-mismatch" not in outcome.names


def test_parameters_that_nothing_reads_are_one_note(tmp_path: Path) -> None:
    outcome = _audited("dead", tmp_path)
    (finding,) = outcome.findings
    assert (outcome.status, finding["name"], finding["severity"]) == (0, "parameter-unconsumed", "note")
    assert finding["message"] == (
        "Model builds 6 parameters that no operator reads: layers.{l}.extra.weight (layers 0-2), "
        "layers.{l}.extra.bias (layers 0-2)"
    )
    assert finding["tensors"] == [f"layers.{n}.extra.{role}" for n in range(3) for role in ("weight", "bias")]


def test_a_module_without_them_has_no_note(tmp_path: Path) -> None:
    assert _audited("plain", tmp_path).findings == []
