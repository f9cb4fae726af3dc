"""Where recorded values come from: a trace file, or the dict that a user's `trace()` gives; checked before use."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from blockaudit.errors import RequestError, told
from blockaudit.records import sites
from blockaudit.records.bound import BoundManifest
from blockaudit.records.tolerance import EPS
from blockaudit.records.trace_file import TOKENS
from blockaudit.trace.files.read import TraceFile
from blockaudit.trace.models import Inputs
from blockaudit.trace.tokens import digest

_NAMED = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Values(Protocol):
    """Values by site name, each read when it is asked for."""

    @property
    def sites(self) -> Sequence[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def dtype(self, name: str) -> str: ...

    def tensor(self, name: str) -> Tensor: ...


class Held:
    """Values in memory. Raises RequestError for whatever is no site with a value [B, S, D]."""

    def __init__(self, label: str, given: Any) -> None:
        if not isinstance(given, Mapping):
            raise RequestError(f"--candidate {label}: trace() returned {type(given).__name__}, not a dict of tensors")
        found = cast("Mapping[Any, Any]", given)
        for name, value in found.items():
            if not isinstance(name, str) or sites.parse(name) is None:
                raise RequestError(f"--candidate {label}: trace() gave {name!r}, which is no trace site")
            if not isinstance(value, Tensor):
                raise RequestError(f"--candidate {label}: trace() gave {type(value).__name__} for {name}, not a tensor")
            if str(value.dtype).removeprefix("torch.") not in _NAMED or value.dim() != 3 or not value.numel():
                said = f"{value.dtype} of shape {list(value.shape)}".removeprefix("torch.")
                raise RequestError(f"--candidate {label}: {name}: expected floats of shape [B, S, D], found {said}")
        if not found:
            raise RequestError(f"--candidate {label}: trace() gave no site")
        self._values = {name: cast("Tensor", value).detach() for name, value in found.items()}
        self.sites = tuple(sites.ordered(self._values))

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._values[name].shape)

    def dtype(self, name: str) -> str:
        return str(self._values[name].dtype).removeprefix("torch.")

    def tensor(self, name: str) -> Tensor:
        return self._values[name]


def asked(made: Any, label: str, inputs: Inputs) -> Held:
    """What a user's object with `trace` gives for these tokens. Raises RequestError, also for what its code raises."""
    import inspect

    known: dict[str, Tensor] = {"attention_mask": torch.ones_like(inputs["input_ids"]), **inputs}
    try:
        takes = inspect.signature(made.trace).parameters
        more = {name: value for name, value in known.items() if name in takes and name not in TOKENS[:2]}
        given = made.trace(known["input_ids"].clone(), known["attention_mask"].clone(), **more)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # a user's code may raise anything at all
        raise RequestError(f"--candidate {label}: trace(): {told(error)}") from error
    return Held(label, given)


def check(values: Values, label: str, bound: BoundManifest, inputs: Inputs) -> None:
    """Hold the sizes of recorded values to the tokens and to the manifest. Raises RequestError."""
    names = [s.name for s in bound.spans if not s.ignored]
    width = bound.dims["d_model"].value if "d_model" in bound.dims else None
    if not any(_stack(name, names) for name in values.sites):
        raise RequestError(f"{label}: no site of the stack{'s' if len(names) > 1 else ''} {', '.join(names)} in it")
    for name in values.sites:
        stack, shape = _stack(name, names), values.shape(name)
        ids = "decoder_input_ids" if len(names) > 1 and stack == names[-1] else "input_ids"
        expected = tuple(inputs[ids].shape) if ids in inputs else shape[:2]
        if stack and shape[:2] != expected:
            raise RequestError(f"{label}: {name}: shape {list(shape)}, and the tokens are {list(expected)}")
        inner = name.rpartition(".")[2] not in ("embed", "embed_norm", "logits")
        if stack and inner and isinstance(width, int) and shape[2] != width:
            raise RequestError(f"{label}: {name}: shape {list(shape)}, and d_model is {width}")


def _stack(name: str, names: Sequence[str]) -> str:
    """The stack that a site belongs to; empty where the manifest has none of that name."""
    site = sites.parse(name)
    if site is None or (site.site == "logits" and not site.stack):
        return names[-1]
    if len(names) == 1:
        return names[0] if not site.stack else ""
    return site.stack if site.stack in names else ""


def dtype_of(values: Values, policy: str) -> torch.dtype:
    """The dtype that a trace is judged in: the coarsest that most sites have, or that its run is said to have had."""
    counts: dict[str, int] = {}
    for name in values.sites:
        counts[values.dtype(name)] = counts.get(values.dtype(name), 0) + 1
    most = max(counts, key=lambda name: counts[name])
    named = [most, *([policy] if policy in _NAMED else [])]
    return _NAMED[max(named, key=lambda name: EPS[name])]


def tokens_of(file: TraceFile, others: Inputs, given: bool) -> Inputs:
    """The tokens of a trace: those in it, else `others`, whose hash has to be the file's. Raises RequestError.

    given: whether the user named `others`; then they have to be the file's own, where it holds any.
    """
    held, said = file.tokens(), file.metadata.tokens_sha256
    if held and "input_ids" in held:
        if said and digest(held) != said:
            raise RequestError(f"{file.path}: its tokens are not those whose hash its metadata gives")
        if given and any(name in others and not torch.equal(held[name], others[name]) for name in held):
            raise RequestError(f"{file.path}: recorded on other tokens than those named: leave --tokens out")
        return {"attention_mask": torch.ones_like(held["input_ids"]), **held}
    if not said:
        raise RequestError(f"{file.path}: it holds neither its tokens nor their hash (docs/traces.md)")
    fitting = next((one for one in _subsets(others) if digest(one) == said), None)
    if fitting is None:
        raise RequestError(
            f"{file.path}: recorded on other tokens: name them with --tokens FILE, or with the --batch, --seq-len and "
            "--seed of its run"
        )
    return {"attention_mask": torch.ones_like(fitting["input_ids"]), **fitting}


def _subsets(tokens: Inputs) -> Iterator[dict[str, Tensor]]:
    """Every choice of token tensors that holds input_ids: a writer need not have stored a mask of ones."""
    more = [name for name in TOKENS[1:] if name in tokens]
    for names in chain.from_iterable(combinations(more, n) for n in range(len(more), -1, -1)):
        yield {"input_ids": tokens["input_ids"], **{name: tokens[name] for name in names}}
