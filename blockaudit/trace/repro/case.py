"""The smallest thing that shows a divergence: one module, one row of its input, what should come out and what does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

import torch
from torch import Tensor

from blockaudit.records.conformance import SiteResult
from blockaudit.reference import assembly
from blockaudit.reference.assembly import Block, BranchPlan, NormSite
from blockaudit.reference.norms.rounding import work_dtype
from blockaudit.trace import local, probes
from blockaudit.trace.program import Layer
from blockaudit.trace.repro import script
from blockaudit.trace.scene import Scene, Seen, norm_at

# Bytes of a branch's weights that are worth handing over; beyond that their names have to do.
_MOST = 1 << 26


@dataclass(frozen=True)
class Case:
    """`tensors` by name in the file, `formula` the script's lines that make `expected`, `keys` where weights are from.

    `found`: what the script will find. `row`: where the input lies.
    """

    result: SiteResult
    tensors: dict[str, Tensor]
    formula: list[str]
    found: float
    row: str
    keys: dict[str, str] = field(default_factory=dict[str, str])
    left_out: tuple[str, ...] = ()


@dataclass
class _Parts:
    """What a site is made of, whole: rows are taken of it later."""

    observed: Tensor
    expected: Tensor
    inputs: dict[str, Tensor]
    formula: list[str] = field(default_factory=script.stored)
    weights: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    keys: dict[str, str] = field(default_factory=dict[str, str])
    norm: NormSite | None = None
    bits: Tensor | None = None  # what bits are held to
    sequence: bool = False  # the input is a whole row of the batch
    left_out: tuple[str, ...] = ()


def of(seen: Seen, result: SiteResult) -> Case | None:
    """The case of one failing site of what was just seen. None where it cannot be cut out."""
    scene, layer = seen.scene, seen.segment.layer
    parts = _outer(seen, result) if layer is None else _inner(seen, layer, result)
    if parts is None or parts.observed.shape != parts.expected.shape:
        return None
    if result.probe is not None:
        parts = _probed(seen, result, parts)
        if parts is None:
            return None
    valid = None if result.probe is not None or layer is None else scene.valid(layer.stack)
    return _cut(scene, result, parts, valid)


def _inner(seen: Seen, layer: Layer, result: SiteResult) -> _Parts | None:
    scene, block, enter = seen.scene, seen.block, seen.enter
    if block is None or enter is None:
        return None
    site = result.site.removeprefix(scene.prefix(layer.stack) + f"layers.{layer.number}.")
    wide = {k: v.to(scene.wide) for k, v in seen.sites.items()}
    made = assembly.local(block, wide, enter.to(scene.wide), None, scene.exact())
    if site.endswith(".branch"):
        made[site] = _own_branch(scene, layer, block, site, seen)
    if site not in seen.sites or site not in made:
        return None
    parts = _Parts(seen.sites[site], made[site], {})
    norm = norm_at(block, site)
    source = assembly.source_of(block, site, seen.sites, enter) if norm is not None else None
    if norm is not None and source is not None:
        return _norm(scene, norm, source, parts)
    inputs = None if norm is not None else _read(block, site, seen.sites, enter)
    if inputs is None:
        return parts
    parts.inputs, name = inputs, site.rpartition(".")[2]
    if name == "branch":
        part = block.branch(site.rpartition(".")[0])
        parts.sequence = part.name != "mlp"
        _branch_weights(scene, layer, part, parts)
    else:
        parts.formula = _summed(block, site, inputs, str(scene.wide))
    return parts


def _own_branch(scene: Scene, layer: Layer, block: Block, site: str, seen: Seen) -> Tensor:
    """What the reference's branch function makes of what the candidate's read; no rows where that is not known."""
    name = site.removesuffix(".branch")
    inside = assembly.read_by(block, block.branch(name), seen.sites, seen.enter) if seen.enter is not None else None
    if inside is None or not scene.main.full:
        return torch.empty(0)
    return scene.main.branch(layer, scene.outputs(scene.main.dtype))(name, inside.to(scene.main.dtype))


def _read(block: Block, site: str, sites: Mapping[str, Tensor], enter: Tensor) -> dict[str, Tensor] | None:
    """What a site that is no norm is made of, as the candidate gives it: `x`, and of a sum `u0`, `u1` ... as well."""
    branch, _, what = site.rpartition(".")
    part = block.branch(branch) if branch else block.branches[-1]
    found: dict[str, Tensor | None]
    if what == "residual":
        normed = sites.get(f"{part.name}.norm_in")
        found = {"x": normed if block.normalised_shortcut else assembly.entering(block, part, sites, enter)}
    elif what == "branch":
        found = {"x": assembly.read_by(block, part, sites, enter)}
    elif what == "update":
        found = {"x": sites.get(f"{part.name}.{'norm_out' if 'norm_out' in part.norms else 'branch'}")}
    elif what == "sum":
        joined = block.branches if block.parallel else (part,)
        found = {"x": sites.get(f"{joined[0].name}.residual")}
        found |= {f"u{i}": sites.get(f"{p.name}.update") for i, p in enumerate(joined)}
    else:
        found = {"x": sites.get(f"{part.name}.sum")}
    known = {k: v for k, v in found.items() if v is not None}
    return known if len(known) == len(found) else None


def _summed(block: Block, site: str, inputs: dict[str, Tensor], wide: str) -> list[str]:
    branch, _, what = site.rpartition(".")
    part = block.branch(branch) if branch else block.branches[-1]
    if len(inputs) > 1:
        return script.summed(list(inputs), wide)
    return script.scaled({"residual": part.shortcut_scale, "update": part.scale}.get(what, 1.0), wide)


def _norm(scene: Scene, norm: NormSite, source: Tensor, parts: _Parts) -> _Parts:
    weight, bias, state = norm.parameters(scene.weight(scene.dtype))
    given = {"weight": weight, "bias": bias, **state}
    keys = {"weight": norm.weight, "bias": norm.bias, **norm.state}
    parts.weights = {k: v for k, v in given.items() if v is not None}
    parts.keys = {k: str(keys[k]) for k in parts.weights}
    parts.inputs, parts.norm = {"x": source}, norm
    if scene.low:
        parts.bits = local.spelled(scene, norm, source)[0]
    return parts


def _outer(seen: Seen, result: SiteResult) -> _Parts | None:
    """Embedding, the norms beside the layers, logits."""
    scene, run, name = seen.scene, seen.run, result.site
    observed = seen.sites.get(name)
    stack = next((s for s in run.stacks if name.startswith(f"{s}.")), run.stacks[-1])
    what = name.rpartition(".")[2]
    if observed is None:
        return None
    if what in ("embed_norm", "final_norm"):
        norm = assembly.norm_site(scene.bound, f"{stack}.{what}")
        source = run.left(stack) if what == "final_norm" else seen.sites.get(scene.prefix(stack) + "embed")
        if norm is None or source is None:
            return None
        return _norm(scene, norm, source, _Parts(observed, scene.exact()(norm, source.to(scene.wide)), {}))
    if what == "embed":
        ids = scene.inputs.get("decoder_input_ids" if scene.several and stack == "decoder" else "input_ids")
        own = scene.main.embed(stack)
        given = {} if ids is None else {"x": ids.to(observed.device)[..., None]}
        return None if own is None else _Parts(observed, own, given)
    last = run.outputs.get(stack)
    own = scene.main.head(last.to(scene.main.dtype)) if last is not None else None
    return None if own is None or last is None else _Parts(observed, own, {"x": last})


def _probed(seen: Seen, result: SiteResult, parts: _Parts) -> _Parts | None:
    """The same norm on the probe rows of the kind on which it failed."""
    scene, layer, norm = seen.scene, seen.segment.layer, parts.norm
    if norm is None:
        return None
    if layer is None:
        found = seen.run.outer_norms().get(result.site)
    else:
        branch, _, what = result.site.rpartition(".")
        found = layer.norm(branch.rpartition(".")[2], "norm_post" if what == "state" else what)
    ask = seen.run.norm(found) if found is not None else None
    if ask is None or result.probe is None:
        return None
    width = parts.inputs["x"].shape[-1]
    rows = probes.rows(width, seed=local.PROBE_SEED, dtype=scene.dtype, device=seen.run.device)[result.probe]
    parts.observed, parts.expected = ask(rows), scene.exact()(norm, rows.to(scene.wide))
    parts.inputs, parts.bits = {"x": rows}, None
    return parts


def _branch_weights(scene: Scene, layer: Layer, part: BranchPlan, parts: _Parts) -> None:
    """Every tensor of a branch, its own norms left out, as far as they are small enough to hand over."""
    room, left = _MOST, list[str]()
    for key in _branch_keys(scene, layer, part):
        if key not in scene.weights:
            continue
        value = scene.weights.tensor(key)
        if value.nbytes > room:
            left.append(key)
            continue
        room -= value.nbytes
        parts.weights[key], parts.keys[key] = value, key
    parts.left_out = tuple(left)


def _branch_keys(scene: Scene, layer: Layer, part: BranchPlan) -> Iterator[str]:
    norms = [n.field for n in part.norms.values()]
    for expected in scene.bound.expected:
        mine = expected.owner == part.owner or expected.owner.startswith(f"{part.owner}.")
        if not mine or expected.owner in norms:
            continue
        for numbers in product(*(range(n) for _, n in expected.counts)):
            axes = dict(zip((a for a, _ in expected.counts), numbers, strict=True))
            yield assembly.key(scene.bound, expected, layer.stack, layer.number, **axes)


def _cut(scene: Scene, result: SiteResult, parts: _Parts, valid: Tensor | None) -> Case:
    """One row of everything, and the formula that gives what is expected of it."""
    against = parts.bits if result.metric == "bits" and parts.bits is not None else parts.expected
    observed, expected = _flat(parts.observed), _flat(against)
    token = _worst(result, observed, expected, valid)
    row = slice(token, token + 1)
    length = parts.observed.shape[-2] if parts.observed.dim() > 2 else 1
    place = f"batch row {token // length}, position {token % length}"
    tensors = {"observed": observed[row], "expected": expected[row]}
    if parts.sequence:
        tensors |= {k: v[token // length].reshape(-1, v.shape[-1]) for k, v in parts.inputs.items()}
    else:
        tensors |= {k: _flat(v)[row] for k, v in parts.inputs.items()}
    tensors = {k: v.detach().cpu().clone() for k, v in (tensors | parts.weights).items()}
    formula = _formula(scene, result, parts, tensors)
    place = f"probe row {token} of kind {result.probe}" if result.probe else place
    found = _measure(result.metric, tensors["observed"][0], tensors["expected"][0])
    return Case(result, tensors, formula, found, place, parts.keys, parts.left_out)


def _formula(scene: Scene, result: SiteResult, parts: _Parts, tensors: dict[str, Tensor]) -> list[str]:
    """Lines that give what is expected of these tensors, tried; else it is read from the file."""
    tries = [parts.formula]
    if parts.norm is not None:
        names, spec = frozenset(parts.weights), parts.norm.spec
        if result.metric == "bits":
            tries = list(script.rounded(spec, names, str(work_dtype(spec, tensors["x"]))))
        else:
            exact = script.norm(spec, names, str(scene.wide))
            tries = [exact] if exact is not None else []
    near = 0.0 if result.metric == "bits" else 16 * torch.finfo(tensors["expected"].dtype).eps
    for lines in tries:
        made = _ran(lines, tensors)
        if made is not None and _alike(made, tensors["expected"], near):
            return lines
    return script.stored()


def _ran(lines: list[str], tensors: dict[str, Tensor]) -> Tensor | None:
    space: dict[str, object] = {"torch": torch, "t": tensors}
    try:
        exec("\n".join(lines), space)  # lines of ours, numbers of the manifest in them
    except (RuntimeError, KeyError, ValueError):
        return None
    made = space.get("expected")
    return made if isinstance(made, Tensor) else None


def _alike(a: Tensor, b: Tensor, near: float) -> bool:
    """Equal up to `near` times the row's largest number, where both are finite."""
    if a.shape != b.shape or not torch.equal(a.isfinite(), b.isfinite()):
        return False
    a, b = (torch.nan_to_num(v.double(), 0.0, 0.0, 0.0) for v in (a, b))
    return float((a - b).abs().amax()) <= near * float(b.abs().amax())


def _flat(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1])


def _worst(result: SiteResult, observed: Tensor, expected: Tensor, valid: Tensor | None) -> int:
    """The row that violates the tolerance by itself: the worst by the metric that was judged."""
    scores = torch.stack([torch.tensor(_measure(result.metric, o, e)) for o, e in zip(observed, expected, strict=True)])
    if valid is not None and valid.numel() == len(scores):
        scores = torch.where(valid.reshape(-1).cpu(), scores, -1.0)
    told = result.difference.token
    # What a router left out counts for nothing, and is not known here: the comparison's own row is, where it will do.
    if result.site.endswith(".branch") and told < len(scores) and float(scores[told]) > result.tolerance:
        return told
    return int(torch.nan_to_num(scores, torch.inf, torch.inf).argmax())


def _measure(metric: str, observed: Tensor, expected: Tensor) -> float:
    """What the script will find of one row."""
    error = observed.double() - expected.double()
    if metric == "max_abs":
        return float(error.abs().max())
    if metric == "bits":
        return float((observed != expected.to(observed.dtype)).double().mean())
    if metric == "non_finite":
        return float((observed.isfinite() != expected.isfinite()).sum())
    size = expected.double().square().sum().sqrt()
    return float(error.square().sum().sqrt() / size) if float(size) else float(error.any())
