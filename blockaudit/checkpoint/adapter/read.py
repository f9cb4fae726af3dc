"""Read an adapter: its keys against its settings. What is wrong with it is a fault; nothing of a base is asked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from blockaudit.checkpoint.adapter.keys import Keys, read_keys
from blockaudit.checkpoint.adapter.settings import NAME, Settings, ends_with, read_settings
from blockaudit.checkpoint.files import short
from blockaudit.records.adapter import Adapter, Pair
from blockaudit.records.checkpoint import Fault, TensorHeader

_PROMPTS = ("PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING")
_MODULAR = ("LORA", "IA3")
READ = (*_MODULAR, *_PROMPTS)
# Modules whose weights PEFT saves of itself where the vocabulary was resized.
_EMBEDDINGS = ("embed_tokens", "lm_head")
_MERGE = "--base SOURCE audits the merged function"


def read_adapter(
    tensors: Mapping[str, TensorHeader], config: Mapping[str, Any] | None, file: str
) -> tuple[Adapter, list[Fault]]:
    """The adapter in `file`, and everything about it that its own settings do not allow."""
    keys = read_keys(tensors)
    if config is None:
        faults = list(_halves(keys, None, file))
        return Adapter("", "", read=False, pairs=keys.pairs, says=_says(keys, None)), faults
    said = read_settings(config)
    read, modular = said.kind in READ, said.kind in _MODULAR
    faults = list(said.faults)
    if said.kind == "LORA":
        faults += [*_halves(keys, said, file), *_ranks(keys, said, file), *_strays(keys, said, file)]
        faults += _unsaved(keys, said, file)
    elif said.kind == "IA3":
        faults += _strays(keys, said, file)
    elif said.kind in _PROMPTS:
        faults += _prompts(tensors, said, file)
    adapter = Adapter(
        unsaid=said.unsaid,
        kind=said.kind,
        base=said.base,
        read=read,
        pairs=keys.pairs if read else (),
        whole=keys.whole if read else {},
        tokens=keys.tokens if read else {},
        says=_says(keys, said),
        targets=(said.targets or ()) if modular else (),
        layers=said.layers,
        excluded=said.excluded,
        unmatched=_unmatched(keys, said) if modular else (),
    )
    if adapter.unmatched:
        faults.append(_unmatched_fault(adapter.unmatched))
    if said.parameters:
        text = f"target_parameters ({', '.join(map(short, said.parameters[:4]))}): their shapes are not checked"
        faults.append(
            Fault("part-not-covered", NAME, text, (), None, len(said.parameters), f"{NAME}: target_parameters")
        )
    return adapter, faults


def only(adapter: Adapter, file: str, count: int) -> Fault:
    """`adapter-only`, the fault of an adapter that is audited without its base."""
    named = f"its base {adapter.base}" if adapter.base else "its base, which it does not name,"
    text = f"{adapter.says}; {named} is not read: {_MERGE}"
    evidence = NAME if adapter.kind else "every key is an adapter's"
    return Fault("adapter-only", file, text, (), None, count, evidence)


def unread(adapter: Adapter, file: str) -> Fault:
    """`adapter-only`, of a kind that is not read beside a base that is."""
    text = f"{adapter.says}; keys of this kind are not read: the base alone was audited"
    return Fault("adapter-only", file, text, (), READ, adapter.kind, f"{NAME}: peft_type")


def _says(keys: Keys, said: Settings | None) -> str:
    """One line of what it is."""
    number = len(keys.pairs)
    on = f"{number:,} module{'' if number == 1 else 's'}"
    if said is None:
        return f"a PEFT adapter without {NAME}, on {on}"
    kind = said.kind or "unknown"
    if said.kind != "LORA":
        return f"a PEFT adapter of kind {kind}" + (f" on {on}" if number else "")
    ranks = sorted({s[0] for p in keys.pairs if (s := p.shape("A"))})
    more = ", DoRA" if said.dora else ""
    shown = "-".join(map(str, [ranks[0], ranks[-1]] if len(ranks) > 1 else ranks)) or "unknown"
    return f"a PEFT adapter of kind LORA{more}, rank {shown}, scale {said.scale()}, on {on}"


def _fault(
    rule: str, file: str, what: str, keys: list[str], evidence: str, need: Any = None, have: Any = None
) -> Fault:
    more = f" and {len(keys) - 1:,} more" if len(keys) > 1 else ""
    return Fault(rule, file, f"{what}: {short(keys[0])}{more}", tuple(keys), need, have, evidence)


def _halves(keys: Keys, said: Settings | None, file: str) -> Iterator[Fault]:
    """A without B, B without A, DoRA without its magnitude."""
    wanted = {"A": "lora_A without lora_B", "B": "lora_B without lora_A"}
    for part, what in wanted.items():
        lone = [p.parts[part][0] for p in keys.pairs if part in p.parts and not {"A", "B"} <= p.parts.keys()]
        if lone:
            yield _fault("adapter-incomplete", file, what, lone, "tensor headers", "both", f"lora_{part} alone")
    if said is not None and said.dora:
        bare = [p.stored()[0] for p in keys.pairs if "magnitude" not in p.parts and {"A", "B"} <= p.parts.keys()]
        if bare:
            what = "DoRA without lora_magnitude_vector beside"
            yield _fault("adapter-incomplete", file, what, bare, f"{NAME}: use_dora", "a magnitude vector", None)


def _ranks(keys: Keys, said: Settings, file: str) -> Iterator[Fault]:
    """The rank that the two matrices share, and the one that the config gives."""
    apart: list[str] = []
    other: dict[tuple[int, tuple[int, ...]], list[str]] = {}
    shape: Any = None
    for pair in keys.pairs:
        if _is_parameter(pair, said):
            continue
        a, b = pair.shape("A"), pair.shape("B")
        ranks = [s[i] for s, i in ((a, 0), (b, 1)) if s and len(s) > i]
        if len(set(ranks)) > 1:
            apart += pair.stored()
            shape = shape or [list(s) for s in (a, b) if s]
        elif ranks and (allowed := said.expected_ranks(pair.module)) and ranks[0] not in allowed:
            other.setdefault((ranks[0], tuple(sorted(allowed))), []).extend(pair.stored())
    if apart:
        what = "lora_A and lora_B have different ranks"
        yield _fault("adapter-shape-mismatch", file, what, apart, "tensor headers", "[r, in] and [out, r]", shape)
    for (rank, allowed), found in other.items():
        wanted = " or ".join(map(str, allowed))
        what = f"rank {rank} is stored and {wanted} is the rank by {NAME}"
        yield _fault("adapter-shape-mismatch", file, what, found, f"{NAME}: r, rank_pattern", allowed[0], rank)


def _is_parameter(pair: Pair, said: Settings) -> bool:
    """Whether a pair adapts a bare parameter (stacked experts), whose rank is multiplied by the experts."""
    return any(
        ends_with(pair.module, name.rpartition(".")[0]) or ends_with(pair.module, name) for name in said.parameters
    )


def _strays(keys: Keys, said: Settings, file: str) -> Iterator[Fault]:
    """Keys that belong to no target, to no saved module and to no bias that was trained."""
    stray = list(keys.odd)
    for pair in keys.pairs:
        known = said.targets is None or any(ends_with(pair.module, name) for name in said.targets)
        if not known and not _is_parameter(pair, said):
            stray += pair.stored()
    targets = {pair.module for pair in keys.pairs}
    for name, key in keys.whole.items():
        module, _, last = name.rpartition(".")
        trained = last == "bias" and (said.bias == "all" or (said.bias == "lora_only" and module in targets))
        saved = any(module.endswith(one) or f".{one}." in f".{name}" for one in said.saved)
        if not trained and not saved and name not in keys.saved and module.rpartition(".")[2] not in _EMBEDDINGS:
            stray.append(key)
    if not said.dora and said.kind == "LORA":
        stray += [p.parts["magnitude"][0] for p in keys.pairs if "magnitude" in p.parts]
    if stray:
        what = f"{len(stray):,} keys belong to nothing that {NAME} names, and a loader drops them"
        yield _fault("adapter-target-mismatch", file, what, stray, f"{NAME}: target_modules, modules_to_save, bias")


def _unsaved(keys: Keys, said: Settings, file: str) -> Iterator[Fault]:
    """Modules that were to be saved with the adapter and are not in it."""
    modules = {name.rpartition(".")[0] for name in keys.whole}
    for one in said.saved:
        if not any(module.endswith(one) or f".{one}." in f".{module}." for module in modules):
            text = f"modules_to_save lists {short(one)}, and no key is of it: its trained weights are lost"
            yield Fault("adapter-incomplete", file, text, (), one, None, f"{NAME}: modules_to_save")


def _unmatched(keys: Keys, said: Settings) -> tuple[str, ...]:
    modules = [pair.module for pair in keys.pairs]
    return tuple(name for name in said.targets or () if not any(ends_with(module, name) for module in modules))


def _unmatched_fault(names: tuple[str, ...]) -> Fault:
    text = f"target_modules lists {', '.join(map(short, names[:8]))}, and no key belongs to it"
    return Fault("adapter-target-unmatched", NAME, text, (), list(names), None, f"{NAME}: target_modules")


def _prompts(tensors: Mapping[str, TensorHeader], said: Settings, file: str) -> Iterator[Fault]:
    """One matrix, with a row for each virtual token."""
    found = tensors.get("prompt_embeddings")
    if found is None:
        text = "no key prompt_embeddings: the virtual tokens are lost"
        yield Fault(
            "adapter-incomplete", file, text, (), "prompt_embeddings", next(iter(tensors), None), "tensor headers"
        )
    elif said.tokens is not None and found.shape[:1] != (said.tokens,):
        what = f"prompt_embeddings has {found.shape[0] if found.shape else 0} rows for {said.tokens} virtual tokens"
        keys, evidence = ["prompt_embeddings"], f"{NAME}: num_virtual_tokens"
        yield _fault("adapter-shape-mismatch", file, what, keys, evidence, said.tokens, list(found.shape))
