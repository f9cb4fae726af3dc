"""Conversions of real size: what they take of memory, in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from math import prod
from pathlib import Path

import pytest

from blockaudit.checkpoint.hashing import semantic_hash
from blockaudit.checkpoint.source import open_checkpoint
from tests.migrate.convert import hand, large

pytestmark = pytest.mark.soak
# Bytes beyond the largest tensor of one rule.
MOST = 400 << 20
SCRIPT = """
import json, sys
from pathlib import Path
from tests.migrate.convert import hand, large
from tests.soak.test_convert_large import planned
from tests.support.memory import peak
types = getattr(large, sys.argv[3])()
hashing = sys.argv[5] == "hash"
hand.run(Path(sys.argv[1]), Path(sys.argv[2]), planned(types, sys.argv[4]), most=5 * 10**9, hashing=hashing)
print(json.dumps(peak()))
"""


def planned(types: large.Types, how: str) -> object:
    """Every tensor renamed; or, as Megatron and GPT-2 would have it, fused, turned over and cast."""
    from blockaudit.records.operations import Cast, Concat, Transpose

    if how == "renamed":
        return hand.plan(hand.renamed(types))
    steps = []
    for key in types:
        if key.endswith((".k", ".v", ".up")):
            continue
        if key.endswith(".q"):
            parts, to = [key, key[:-1] + "k", key[:-1] + "v"], key[:-1] + "qkv"
            steps.append(hand.step(types, parts, [Concat(dim=0, layout="per_head", heads=32)], [to]))
        elif key.endswith(".gate"):
            steps.append(hand.step(types, [key, key[:-4] + "up"], [Concat(dim=0)], [key[:-4] + "gate_up"]))
        elif key.endswith((".o", ".down")):
            steps.append(hand.step(types, [key], [Transpose()], [key]))
        else:
            steps.append(hand.step(types, [key], [Cast(dtype="F32")] if "norm" in key or key == "head" else [], [key]))
    return hand.plan(steps)


def largest(types: large.Types, how: str) -> int:
    """Bytes of the largest tensor of one rule."""
    plan = planned(types, how)
    sides = [t for step in plan.steps for side in (step.in_types, step.out_types) for t in side.values()]  # type: ignore[attr-defined]
    return max(large.WIDTHS[t.dtype] * prod(t.shape) for t in sides)


@pytest.mark.parametrize("how", ["renamed", "computed"])
@pytest.mark.parametrize(("model", "shards"), [("seven_billion", 1), ("ten_billion", 5)])
@pytest.mark.parametrize("hashes", ["hash", "plain"])
def test_memory(tmp_path: Path, model: str, shards: int, how: str, hashes: str) -> None:
    types: large.Types = getattr(large, model)()
    if shutil.disk_usage(tmp_path).free < 1.3 * large.nbytes(types):
        pytest.skip(f"needs {1.3 * large.nbytes(types) / 1e9:.0f} GB of disk")
    source, target = large.write(tmp_path / "s", types, shards), tmp_path / "t"
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, source, target, model, how, hashes],
        cwd=root, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    peak, bound = json.loads(done.stdout), largest(types, how)
    print(f"{model}, {shards} files, {how}, {hashes}: {peak >> 20} MiB, largest tensor {bound >> 20} MiB")
    assert peak - bound < MOST
    if hashes == "hash" and how == "renamed":
        assert hand.report(target).target.semantic == semantic_hash(open_checkpoint(str(target)))
    shutil.rmtree(target)
