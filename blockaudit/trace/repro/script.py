"""The script of a repro: some twenty lines that need torch and safetensors alone, the norm's formula written out."""

from __future__ import annotations

from collections.abc import Iterator

from blockaudit.records.norm_spec import NormSpec

MARK = "Written by blockaudit: conform --repro"
DATA = "repro.safetensors"
_ERRORS = {
    "rms_rel": "float(error.norm() / expected.norm()) if expected.any() else float(error.any())",
    "max_abs": "float(error.abs().max())",
    "bits": "float((observed != expected.to(observed.dtype)).double().mean())",
    "non_finite": "float((observed.isfinite() != expected.isfinite()).sum())",
}
_MEAN = ".pow(2).mean(-1, keepdim=True)"
_ERRORS["row_rel"] = _ERRORS["rms_rel"]


def script(title: str, formula: list[str], metric: str, tolerance: float) -> str:
    """The whole script. formula: lines that make `expected` of the tensors `t`."""
    lines = [
        f'"""{title}',
        "",
        f'{MARK}. Needs torch and safetensors; exits with 1 where the two differ beyond the tolerance."""',
        "",
        "import sys",
        "from pathlib import Path",
        "",
        "import torch",
        "from safetensors.torch import load_file",
        "",
        f't = load_file(Path(__file__).with_name("{DATA}"))',
        'observed = t["observed"]',
        *formula,
        "error = observed.double() - expected.double()",
        f"found = {_ERRORS[metric]}",
        'print("expected", expected.double().flatten()[:6].tolist())',
        'print("observed", observed.double().flatten()[:6].tolist())',
        'print("largest difference", float(error.abs().max()), "at channel", int(error.abs().flatten().argmax()))',
        f'print(f"{metric} {{found:.6g}}, {tolerance:.6g} is allowed")',
        f"sys.exit(int(not found <= {tolerance!r}))",
    ]
    return "\n".join(lines) + "\n"


def stored() -> list[str]:
    """What no line of a script can compute: the reference gave it."""
    return ['expected = t["expected"]']


def summed(terms: list[str], wide: str) -> list[str]:
    """The sum of some tensors."""
    values = [f't["{term}"].to({wide})' for term in terms]
    return [f"expected = {' + '.join(values)}"]


def scaled(factor: float, wide: str) -> list[str]:
    """A factor on the one input."""
    product = "" if factor == 1 else f"{factor!r} * "
    return [f'expected = {product}t["x"].to({wide})']


def norm(spec: NormSpec, parts: frozenset[str], wide: str) -> list[str] | None:
    """A norm by its formula in the dtype `wide`. None for one that needs more than a row, or is no formula here.

    parts: the tensors that there are (weight, bias, and what a family keeps).
    """
    body = _normalised(spec, parts, wide)
    if body is None:
        return None
    gain, shift = _affine(spec, parts)
    lines = [_comment(spec), f'h = t["x"].to({wide})', *body]
    weight = _offset(f't["weight"].to({wide})', spec)
    lines += [f"h = h * {weight}"] if gain else []
    return [*lines, f'expected = h + t["bias"].to({wide})' if shift else "expected = h"]


def rounded(spec: NormSpec, parts: frozenset[str], work: str) -> Iterator[list[str]]:
    """A norm as its release rounds it, in the ways that a release is written; the first that gives the bits is it.

    work: the dtype of the moments.
    """
    gain, shift = _affine(spec, parts)
    stored = _offset('t["weight"]', spec)
    if spec.cast_order == "none" and spec.family in ("layernorm", "rmsnorm"):
        arguments = ['t["x"]', 't["x"].shape[-1:]', stored if gain else "None"]
        arguments += [('t["bias"]' if shift else "None")] if spec.family == "layernorm" else []
        call = "layer_norm" if spec.family == "layernorm" else "rms_norm"
        given = ", ".join([*arguments, repr(spec.epsilon or 0.0)])
        yield [_comment(spec), f"expected = torch.nn.functional.{call}({given})"]
    body = _normalised(spec, parts, work, "rsqrt")
    if body is None:
        return
    lines = [_comment(spec), f'h = t["x"].to({work})', *body]
    if spec.cast_order == "cast_before_scale":
        lines.append('h = h.to(t["x"].dtype)')
        lines += [f"h = h * {stored}"] if gain else []
        yield [*lines, 'expected = h + t["bias"]' if shift else "expected = h"]
        return
    weight = f"({stored}).to({work})"
    if spec.cast_order != "none":
        weight = _offset(f't["weight"].to({work})', spec)
    lines += [f"h = h * {weight}"] if gain else []
    lines += [f'h = h + t["bias"].to({work})'] if shift else []
    yield [*lines, 'expected = h.to(t["x"].dtype)']


def _affine(spec: NormSpec, parts: frozenset[str]) -> tuple[bool, bool]:
    return "weight" in parts and spec.scale != "none", "bias" in parts and spec.bias


def _offset(weight: str, spec: NormSpec) -> str:
    return f"({weight} + {spec.scale_offset!r})" if spec.scale_offset else weight


def _comment(spec: NormSpec) -> str:
    said = [spec.family]
    if spec.epsilon is not None:
        said.append(f"epsilon {spec.epsilon!r} {spec.epsilon_location} the root")
    said.append("no weight" if spec.scale == "none" else f"weight {spec.scale}")
    said += [f"plus {spec.scale_offset:g}"] if spec.scale_offset else []
    return f"# {', '.join(said)}: as the manifest declares it"


def _normalised(spec: NormSpec, parts: frozenset[str], wide: str, root: str = "divide") -> list[str] | None:
    """`h`, the row, to `h`, the normalised row. None where it takes more than the row."""
    if spec.family in ("none", "dyt"):
        return [f'h = torch.tanh(t["alpha"].to({wide}) * h)'] if spec.family == "dyt" else []
    if {"running_mean", "running_var"} <= parts and spec.family in ("batchnorm", "instancenorm"):
        return [f'h = h - t["running_mean"].to({wide})', _over(spec, f't["running_var"].to({wide})', root)]
    if "running_phi" in parts and spec.family == "powernorm":
        return [_over(spec, f't["running_phi"].to({wide})', root)]
    centred = ["h = h - h.mean(-1, keepdim=True)", _over(spec, _corrected(spec), root)]
    rows = {
        "layernorm": centred,
        "layernorm_std_eps": centred,
        "groupnorm": [f"h = h.unflatten(-1, ({spec.groups}, -1))", *centred, "h = h.flatten(-2)"],
        "rmsnorm": [_over(spec, f"h{_MEAN}", root)],
        "scalenorm": [_over(spec, "h.pow(2).sum(-1, keepdim=True)", root)],
        "prmsnorm": [_over(spec, f"h[..., {_read(spec)}]{_MEAN}", root)],
    }
    return rows.get(spec.family) if spec.axes == (-1,) else None


def _read(spec: NormSpec) -> str:
    return f":{spec.subset}" if isinstance(spec.subset, int) else repr(list(spec.subset or ()))


def _corrected(spec: NormSpec) -> str:
    n = spec.variance_correction
    return f"h{_MEAN} * (h.shape[-1] / (h.shape[-1] - {n}))" if n else f"h{_MEAN}"


def _over(spec: NormSpec, square: str, root: str) -> str:
    epsilon = spec.epsilon or 0.0
    if spec.epsilon_location == "outside" or spec.family == "layernorm_std_eps":
        deviation = f"(({square}).sqrt() + {epsilon!r})"
        return f"h = h * {deviation}.reciprocal()" if root == "rsqrt" else f"h = h / {deviation}"
    if root == "rsqrt":
        return f"h = h * torch.rsqrt({square} + {epsilon!r})"
    return f"h = h / ({square} + {epsilon!r}).sqrt()"
