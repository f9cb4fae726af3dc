"""Layer numbers as people write them, and sites that repeat in every layer by the name that they share."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from blockaudit.records.sites import parse


def ranges(numbers: Iterable[int]) -> str:
    """`0-31`, `1, 4-6`: numbers as runs."""
    runs: list[list[int]] = []
    for n in sorted(set(numbers)):
        if runs and n == runs[-1][1] + 1:
            runs[-1][1] = n
        else:
            runs.append([n, n])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)


def numbers(layers: str) -> set[int]:
    """`0-3, 7` as numbers: `ranges` undone."""
    runs = [run.strip().partition("-") for run in layers.split(",") if run.strip()]
    return {n for first, _, last in runs for n in range(int(first), int(last or first) + 1)}


def spoken(layers: str) -> str:
    """`layer 1`, `layers 0-3`; empty for no layers."""
    return f"{'layer' if layers.isdecimal() else 'layers'} {layers}" if layers else ""


def template(name: str) -> str:
    """`layers.{l}.mlp.norm_in`: what a site is called in every layer; the name itself of one that has no layer."""
    site = parse(name)
    if site is None or site.layer is None:
        return name
    return replace(site, layer=0).name.replace("layers.0", "layers.{l}", 1)


def by_template(names: Iterable[str]) -> dict[str, list[int]]:
    """Template -> the layers of its sites (none for a site without one), in the order of the first of each."""
    groups: dict[str, list[int]] = {}
    for name in names:
        site = parse(name)
        layer = [] if site is None or site.layer is None else [site.layer]
        groups.setdefault(template(name), []).extend(layer)
    return groups
