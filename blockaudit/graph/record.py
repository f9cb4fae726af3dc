"""Record one forward pass of the class that config.json names, under fake tensors: operators, operands, names.

Nothing is downloaded, no weight is loaded, and code that comes with a checkpoint is not run unless its folder is named
as trusted: only classes that the installed transformers ships are built.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from copy import deepcopy
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

from blockaudit.errors import told
from blockaudit.graph import remote, upstream
from blockaudit.graph.fused import FUSED
from blockaudit.graph.pure import without_writes
from blockaudit.graph.reads import consumed, unread, watched
from blockaudit.graph.weightless import mode_of

# Sizes that no dimension of a model is likely to have, so that shapes tell rows from channels.
BATCH, LENGTH, MEMORY = 2, 7, 13
# The most parameters of a model that is built with real weights, where its code does not run without.
_MOST_REAL = 200_000_000
# Elements of the largest buffer whose values are looked at: a causal mask over two thousand positions.
_LARGEST = 2**22


@dataclass(frozen=True)
class Recording:
    """One forward pass. `hidden` maps a stack to the value that leaves it; `names` gives parameters their names."""

    module: GraphModule
    names: dict[str, str]  # get_attr target -> parameter or buffer name
    constants: dict[str, torch.Tensor]  # buffers whose value is known
    hidden: dict[str, Node]
    logits: Node | None
    class_name: str
    version: str
    sizes: dict[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])  # shapes of the parameters
    looked: bool = False  # values of the inputs may be in the graph: it holds for no others
    unread: tuple[str, ...] = ()  # fields of config.json that neither the class nor its config's class reads

    @property
    def nodes(self) -> list[Node]:
        return list(self.module.graph.nodes)

    @property
    def idle(self) -> tuple[str, ...]:
        """Parameters that no operator reads."""
        read = {self.names[str(n.target)] for n in self.nodes if n.op == "get_attr" and n.users}
        return tuple(name for name in self.sizes if name not in read)


class RecordingError(Exception):
    """The class cannot be built or run without its weights; the message says why."""


def record(
    config: Mapping[str, Any],
    dtype: torch.dtype = torch.bfloat16,
    change: Callable[[Any], None] | None = None,
    prepare: Callable[[Any], None] | None = None,
    code: str | None = None,
) -> Recording:
    """Build the class that `config` names in `dtype` under fake tensors and record one forward pass in eval mode.

    change, prepare: what is done to the config object before, and to the model after it is built. code: the
    folder whose own modelling code may be run. Raises RecordingError.
    """
    library = upstream.transformers()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _record(library, dict(config), dtype, change, prepare, code)
        except remote.UntrustedError as error:
            raise RecordingError(str(error)) from error
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # model code may raise anything at all: it is the thing under audit
            raise RecordingError(told(error)) from error


def chosen(transformers: Any, data: dict[str, Any], code: str | None) -> tuple[Any, Any]:
    """(config, class): the named class where the library has it, else the auto class's choice for the config.

    A class of the checkpoint's own code is only ever taken where the library has none of its name. Raises ValueError,
    UntrustedError.
    """
    known, own, model_type = transformers.CONFIG_MAPPING, remote.model_reference(data), data.get("model_type")
    names = [n for n in cast("list[Any]", data.get("architectures") or []) if isinstance(n, str)]
    shipped = [c for n in names if (c := getattr(transformers, n, None)) and c.__module__.startswith("transformers.")]
    if own is not None and (code is not None or model_type not in known or not shipped):
        return remote.load(data, own, code, known)
    if model_type not in known:
        raise ValueError(
            f"transformers {transformers.__version__} has no model type {model_type!r} to build: "
            "run your own module with --candidate FILE.py:NAME"
        )
    config = known[model_type].from_dict({k: v for k, v in data.items() if k != "auto_map"})
    return config, shipped[0] if shipped else _likeliest(transformers, config)


def _likeliest(transformers: Any, config: Any) -> Any:
    """The class for a config that names none. Raises ValueError."""
    for auto in ("AutoModelForCausalLM", "AutoModelForSeq2SeqLM", "AutoModelForMaskedLM", "AutoModel"):
        if (found := getattr(transformers, auto)._model_mapping.get(type(config), None)) is not None:
            return found
    raise ValueError(f"transformers {transformers.__version__} has no model class for {config.model_type!r}")


def _record(
    transformers: Any,
    data: dict[str, Any],
    dtype: torch.dtype,
    change: Callable[[Any], None] | None,
    prepare: Callable[[Any], None] | None,
    code: str | None,
) -> Recording:
    config, cls = chosen(transformers, data, code)
    config._attn_implementation = "eager"
    config._experts_implementation = "batched_mm"
    config.dtype = dtype
    if change is not None:
        change(config)
    with watched(config) as seen:
        recording = _built(config, cls, dtype, prepare, transformers.__version__)
    ignored = tuple(k for k in unread(config, data, seen) if not consumed(config, data, k))
    return replace(recording, unread=ignored)


def _built(config: Any, cls: Any, dtype: torch.dtype, prepare: Callable[[Any], None] | None, version: str) -> Recording:
    """The recording under fake tensors; of a small model whose code reads values, or does without them, with real ones.

    Raises whatever the class raises under fake tensors.
    """
    again = deepcopy(config)
    try:
        return _run(config, cls, dtype, prepare, version, FakeTensorMode(allow_non_fake_inputs=True))
    except Exception:  # some code looks at its inputs, or builds itself in ways that fake tensors do not know
        if not _is_small(again, cls):
            raise
        with suppress(Exception):  # the first reason is the one to tell
            return _run(again, cls, dtype, prepare, version, None)
        raise


def _is_small(config: Any, cls: Any) -> bool:
    """Whether a model may be built with its weights."""
    try:
        with torch.device("meta"):
            model = cls._from_config(deepcopy(config))
    except Exception:  # model code may raise anything at all
        return False
    return sum(p.numel() for p in model.parameters()) <= _MOST_REAL


def _run(
    config: Any,
    cls: Any,
    dtype: torch.dtype,
    prepare: Callable[[Any], None] | None,
    version: str,
    fake: FakeTensorMode | None,
) -> Recording:
    mode = fake if fake is not None else nullcontext()
    stacked = bool(config.is_encoder_decoder)  # some classes change it in the config that they are given
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with mode:
            model = cls._from_config(config, dtype=dtype).eval()
            if prepare is not None:
                prepare(model)
    finally:
        torch.set_default_dtype(before)
    with mode:
        ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
        mask = torch.ones(BATCH, LENGTH, dtype=torch.long)
        takes = inspect.signature(model.forward).parameters
        two = stacked and "decoder_input_ids" in takes
        extra = {"decoder_input_ids": ids} if two else {}
        # A decoder of an encoder-decoder's config is run with a memory, as its cross-attention is stored.
        if (stacked or getattr(config, "add_cross_attention", False)) and not two and "encoder_hidden_states" in takes:
            extra["encoder_hidden_states"] = torch.zeros(BATCH, MEMORY, config.hidden_size, dtype=dtype)
    traced, outputs = _trace(model, mode, {"input_ids": ids, "attention_mask": mask, **extra})
    return _recording(traced, outputs, model, version)


def _trace(model: Any, mode: Any, inputs: dict[str, torch.Tensor]) -> tuple[GraphModule, list[str]]:
    """The recorded graph, and what its outputs are called."""
    within = inner_models(model)
    seen: dict[str, Any] = {}

    def keep(_module: Any, _args: Any, output: Any) -> None:
        for name, key in (("last", "last_hidden_state"), ("encoder", "encoder_last_hidden_state")):
            value = getattr(output, key, None)
            if value is not None:
                seen[name] = value

    names: list[str] = []

    def forward(*values: Any) -> list[Any]:
        given = dict(zip(inputs, values, strict=True))
        seen.clear()
        if "encoder_hidden_states" in given:
            seen["encoder"] = given["encoder_hidden_states"]
        handles = [module.register_forward_hook(keep) for module in within]
        try:
            with torch.no_grad():
                output = model(**given, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        keep(None, None, output)
        found = {"logits": getattr(output, "logits", None), "last": seen.get("last"), "encoder": seen.get("encoder")}
        names[:] = [n for n, v in found.items() if isinstance(v, torch.Tensor)]
        return [found[n] for n in names]

    with mode:
        real = not isinstance(mode, FakeTensorMode)
        trace = make_fx(
            forward, tracing_mode="real", _allow_non_fake_inputs=True, _error_on_data_dependent_ops=not real
        )
        traced = trace(*inputs.values())
        return without_writes(traced, list(inputs.values())), names


def inner_models(model: Any) -> list[torch.nn.Module]:
    """The models inside a Hugging Face model that tell of the value that leaves their stack.

    Some heads call the decoder without the base model around it, some bases are the model itself, and some decoders
    have a head of their own.
    """
    try:
        decoder = model.get_decoder()
    except (AttributeError, NotImplementedError, TypeError):
        decoder = None
    every = (getattr(model, "base_model", None), decoder, getattr(decoder, "base_model", None))
    return [m for m in dict.fromkeys(every) if isinstance(m, torch.nn.Module) and m is not model]


def record_module(
    module: torch.nn.Module, example_inputs: Mapping[str, torch.Tensor] | None = None, *, training: bool = False
) -> Recording:
    """Record one forward pass of any module that takes `input_ids` and `attention_mask` as keywords.

    In-place writes, also those through views, become values of their own, and fused sums the sums that they are.
    Raises RecordingError.
    """
    inputs = dict(example_inputs) if example_inputs is not None else example(module)
    module = module.train(training)
    names: list[str] = []

    def forward(*values: Any) -> list[Any]:
        with torch.no_grad():
            found = _told(module, dict(zip(inputs, values, strict=True)))
        names[:] = list(found)
        return list(found.values())

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _recording(_pure(forward, module, list(inputs.values())), names, module, "")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a user's code may raise anything at all: it is the thing under audit
            raise RecordingError(told(error)) from error


def _told(module: torch.nn.Module, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """The outputs of one call; what leaves the stack of a Hugging Face model with a head is told by its base."""
    last: dict[str, torch.Tensor] = {}

    def keep(_module: Any, _args: Any, output: Any) -> None:
        value = getattr(output, "last_hidden_state", None)
        if isinstance(value, torch.Tensor):
            last["last"] = value

    handles = [inner.register_forward_hook(keep) for inner in inner_models(module)]
    try:
        found = _outputs(module(**inputs))
    finally:
        for handle in handles:
            handle.remove()
    return {**last, **found}


def _pure(forward: Any, module: torch.nn.Module, given: list[torch.Tensor]) -> GraphModule:
    """The operators of one call, where an in-place write is a new value, whichever view it was written through."""

    def recorded(call: Any, values: Sequence[torch.Tensor], fused: Any = FUSED) -> GraphModule:
        return make_fx(call, fused, tracing_mode="real", _allow_non_fake_inputs=True)(*values)

    whole: Any = torch.func.functionalize(forward)
    try:
        return recorded(whole, given)
    except Exception:  # code that looks at values does without only where it sees that they are fake
        fake = mode_of(module) or FakeTensorMode(allow_non_fake_inputs=True)
        with fake:
            faked = [fake.from_tensor(v) for v in given]
            again: Any = torch.func.functionalize(recorded(forward, faked, {}))
            return recorded(again, faked)


def example(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Tokens that say nothing, and a mask where the module takes one."""
    ids = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    takes = inspect.signature(module.forward).parameters
    free = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    mask = {"attention_mask": torch.ones_like(ids)} if free or "attention_mask" in takes else {}
    decoder = {"decoder_input_ids": torch.zeros_like(ids)} if "decoder_input_ids" in takes else {}
    return {"input_ids": ids, **mask, **decoder}


def _outputs(output: Any) -> dict[str, torch.Tensor]:
    """Logits and the last state of a Hugging Face output, a dict, a tuple or a plain tensor.

    Raises TypeError for anything else.
    """
    if isinstance(output, torch.Tensor):
        return {"logits": output}
    if isinstance(output, tuple | list):
        found: dict[str, Any] = dict(zip(("logits",), cast("Any", output), strict=False))
    else:
        fields = cast("Any", output if isinstance(output, Mapping) else getattr(output, "__dict__", {}))
        keys = {"logits": "logits", "last": "last_hidden_state", "encoder": "encoder_last_hidden_state"}
        found = {name: fields.get(key) for name, key in keys.items()}
    tensors = {k: v for k, v in found.items() if isinstance(v, torch.Tensor)}
    if not tensors or tensors.keys() != {k for k, v in found.items() if v is not None}:
        kind = type(cast("object", output)).__name__
        raise TypeError(
            f"forward returned {kind}: expected logits, or a tuple, dict or object that holds them, as tensors"
        )
    return tensors


def _recording(traced: GraphModule, outputs: list[str], model: Any, version: str) -> Recording:
    by_id = {id(p): n for n, p in (*model.named_parameters(), *model.named_buffers())}
    names: dict[str, str] = {}
    constants: dict[str, torch.Tensor] = {}
    for node in traced.graph.nodes:
        if node.op == "get_attr":
            value = getattr(traced, node.target)
            names[node.target] = by_id.get(id(value), "")
            constant = getattr(value, "constant", None) if hasattr(value, "fake_mode") else value
            if constant is not None and constant.numel() <= _LARGEST and not isinstance(value, torch.nn.Parameter):
                constants[node.target] = constant
    sizes = {n: tuple(p.shape) for n, p in model.named_parameters()}
    last = next(n for n in reversed(list(traced.graph.nodes)) if n.op == "output")
    values = dict(zip(outputs, last.args[0], strict=True))
    hidden = {k: v for k, v in (("decoder", values.get("last")), ("encoder", values.get("encoder"))) if v is not None}
    looked = not all(names.values())  # a tensor of nobody's may be made of them
    return Recording(
        traced, names, constants, hidden, values.get("logits"), type(model).__name__, version, sizes, looked
    )
