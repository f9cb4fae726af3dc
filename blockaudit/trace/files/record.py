"""Running a candidate end to end, with nothing beside it, and writing its trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from blockaudit.errors import RequestError
from blockaudit.records.bound import BoundManifest
from blockaudit.records.checkpoint import Checkpoint
from blockaudit.trace.candidates import Candidates
from blockaudit.trace.files.recorder import Recorder, check
from blockaudit.trace.judge import NAMES
from blockaudit.trace.request import Request, batches_of, device_of, dtype_of
from blockaudit.trace.running import named
from blockaudit.trace.weights import Weights


def record(checkpoint: Checkpoint, config: dict[str, Any], bound: BoundManifest, asked: Request, out: Path) -> None:
    """Write the trace of `asked.candidate` in the dtype asked for, a layer at a time. Raises RequestError."""
    check(out)
    device, dtype = device_of(asked.device), dtype_of(asked.dtype, checkpoint)
    weights = Weights(checkpoint, device)
    making = Candidates(checkpoint, config, bound, asked, device, weights, full=False)
    try:
        inputs = batches_of(asked, bound, config)[0]
        with torch.no_grad():
            _written(making, dtype, inputs, asked, out)
    finally:
        weights.close()
        making.close()


def _written(making: Candidates, dtype: torch.dtype, inputs: Any, asked: Request, out: Path) -> None:
    one = making.one(dtype, inputs, None)
    run, several = one.run(inputs), len(one.stacks) > 1
    layers = sum(segment.layer is not None for segment in run.segments)
    recorder = Recorder(out, inputs, several, layers, asked.manifest_sha256, NAMES[one.dtype])
    try:
        for i, segment in enumerate(run.segments):
            making.weights.prefetch(k for following in run.segments[i + 1 : i + 2] for k in run.reads(following))
            sites = run.advance(segment)
            if segment.layer is None or asked.layers is None or segment.layer.number in asked.layers:
                recorder.keep(named(segment, sites, several))
            for stack in run.stacks:
                value = run.gives(stack, sites.get(f"{stack}.final_norm" if several else "final_norm"), False)
                if run.ends_in(segment, stack) and value is not None:
                    run.outputs[stack] = value
            making.weights.release()
            if recorder.fault:
                raise RequestError(recorder.fault)
    except BaseException:
        recorder.discard()
        raise
    recorder.commit()
    if recorder.fault:
        raise RequestError(recorder.fault)
