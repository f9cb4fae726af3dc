"""`python -m benchmarks.conform [DTYPE ...]`: what a comparison of every site costs, beside the forward passes alone.

Everything runs in one process and one thread, in turn. Ratios are of processor seconds: a machine that others use as
well takes its time from the longest run most of all, and a thread that reads ahead is paid for. The last line of the
output is the rows as JSON.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors import torch as safetensors
from torch import Tensor
from transformers import model_debugging_utils

from benchmarks.conform_large import Shape, write
from benchmarks.results import Cost, costs
from blockaudit.checkpoint.source import open_checkpoint
from blockaudit.cli.main import run as command
from blockaudit.manifest.library import Choice, choose
from blockaudit.pipeline.audit import audited
from blockaudit.records.bound import BoundManifest
from blockaudit.records.conformance import MODES, Mode
from blockaudit.reference.decoder import FullReference
from blockaudit.trace import models, tolerance
from blockaudit.trace.candidate import Candidate
from blockaudit.trace.judge import Judge
from blockaudit.trace.reference import Full
from blockaudit.trace.run import Pass
from blockaudit.trace.weights import Weights

ROUNDS = 3
BATCH, LENGTH = 8, 256
LARGEST_RATIO = 1.3
BOUNDED = "end-to-end, every site"
Call = Callable[[], Any]


def measure(dtype: torch.dtype, folder: Path) -> list[Cost]:
    """Every way to look inside one model, in turn."""
    shape = Shape(16, 1024, 2816, 16, 32000, dtype)
    source = write(folder / "model", shape)
    ids = torch.randint(0, shape.vocab, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    passes = _passes(source, dtype, inputs)
    calls = {**_alone(source, dtype, inputs, folder), BOUNDED: passes.pop(BOUNDED)}
    taken: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    for turn in range(ROUNDS + 1):
        for name, call in calls.items():
            spent = _timed(call)
            taken[name] += [spent] if turn else []
    # What takes minutes and has no limit is run once.
    taken |= {name: [_timed(call)] for name, call in {**passes, **_commands(source)}.items()}
    both = [a[1] + b[1] for a, b in zip(taken["candidate forward"], taken["reference forward"], strict=True)]
    return [_cost(name, dtype, spent, both) for name, spent in taken.items()]


def _cost(name: str, dtype: torch.dtype, spent: list[tuple[float, float]], both: list[float]) -> Cost:
    clock, processor = median(s for s, _ in spent), median(p for _, p in spent)
    rounds = zip(spent, both, strict=True) if len(spent) == len(both) else [(s, median(both)) for s in spent]
    ratio = median(s[1] / b for s, b in rounds)
    limit = LARGEST_RATIO if name == BOUNDED else None
    return Cost(name, str(dtype).removeprefix("torch."), clock, processor, ratio, limit)


def _timed(call: Call) -> tuple[float, float]:
    """Seconds that a call takes: by the clock, and of the processor."""
    start, used = time.perf_counter(), time.process_time()
    with torch.no_grad():
        call()
    return time.perf_counter() - start, time.process_time() - used


def _alone(source: Path, dtype: torch.dtype, inputs: dict[str, Tensor], folder: Path) -> dict[str, Call]:
    """The two forward passes, and what others have to look inside the first."""
    llama: Any = transformers.LlamaForCausalLM
    load: Any = safetensors
    debugger: Any = model_debugging_utils
    model = llama.from_pretrained(source, dtype=dtype, attn_implementation="eager").eval()
    held = {k: v.float() for k, v in load.load_file(source / "model.safetensors").items()}
    reference = FullReference(_bound(source), held.__getitem__, torch.float32)

    def forward() -> Any:
        return model(**inputs, use_cache=False)

    def hooked() -> int:
        """Bare hooks: the output of every module is kept."""
        kept: dict[str, Any] = {}

        def keeping(name: str) -> Callable[[Any, Any, Any], None]:
            return lambda _module, _given, output: kept.update({name: output})

        handles = [module.register_forward_hook(keeping(name)) for name, module in model.named_modules()]
        forward()
        for handle in handles:
            handle.remove()
        return len(kept)

    def debugged() -> None:
        with (
            TemporaryDirectory(dir=folder) as at,
            debugger.model_addition_debugger_context(model, at, do_prune_layers=False),
        ):
            forward()

    return {
        "candidate forward": forward,
        "reference forward": lambda: reference.run(inputs),
        "forward hooks on every module": hooked,
        "transformers' model debugger": debugged,
    }


def _passes(source: Path, dtype: torch.dtype, inputs: dict[str, Tensor]) -> dict[str, Call]:
    """A pass over the batch in this dtype: weights are read, candidate and reference run, every site is judged."""
    cpu = torch.device("cpu")
    checkpoint, bound = open_checkpoint(str(source)), _bound(source)
    weights = Weights(checkpoint, cpu)
    config = json.loads((source / "config.json").read_text())
    candidate = Candidate(models.hugging_face(checkpoint, config, dtype, weights), bound, cpu)

    def make(of: BoundManifest, wide: torch.dtype, run: Any) -> Full:
        del run
        return Full(of, weights.source(dtype, wide), wide, cpu)

    def compared(*asked: Mode) -> Call:
        def call() -> None:
            judge = Judge(dtype, tolerance.load(None))
            Pass(candidate, bound, weights, judge, frozenset(asked), make).batch(inputs, [])
            failed = [r.site for r in judge.results if r.passed is not True]
            if failed or len(judge.results) < 100:
                raise SystemExit(f"{len(judge.results)} comparisons, {len(failed)} of them failed: {failed[:3]}")

        return call

    return {BOUNDED: compared("end-to-end"), "all modes, every site": compared(*MODES)}


def _commands(source: Path) -> dict[str, Call]:
    """The whole command, from the checkpoint's headers to the report; a bfloat16 model is run in float32 as well."""

    def called(mode: str) -> Call:
        asked = ["conform", str(source), "--mode", mode, "--batch", str(BATCH), "--seq-len", str(LENGTH)]

        def call() -> None:
            with contextlib.redirect_stdout(io.StringIO()):
                status = command([*asked, "--device", "cpu", "--format", "json", "--quiet"])
            if status:
                raise SystemExit(f"conform --mode {mode}: exit {status}")

        return call

    return {f"conform --mode {mode}": called(mode) for mode in ("end-to-end", "all")}


def _bound(source: Path) -> BoundManifest:
    checkpoint = open_checkpoint(str(source))
    choice = choose(None, checkpoint)
    assert isinstance(choice, Choice)
    reconciled = audited(checkpoint, choice, "headers", ())[0].reconciled
    assert reconciled is not None
    return reconciled.declared


def main() -> int:
    names = sys.argv[1:] or ["float32", "bfloat16"]
    rows: list[Cost] = []
    torch.set_num_threads(1)
    for name in names:
        with TemporaryDirectory(prefix="blockaudit-bench-") as folder:
            rows += measure(getattr(torch, name), Path(folder))
    print(costs(rows))
    print(json.dumps([asdict(row) for row in rows]))
    return 0 if all(row.kept for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
