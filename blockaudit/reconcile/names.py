"""Undo the ways in which a whole key set is spelt otherwise: wrappers, roots, legacy parameter names."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping

from blockaudit.records.binding import Rename
from blockaudit.records.checkpoint import TensorHeader

WRAPPERS = (
    "base_model.model.",
    "base_layer.",
    "_fsdp_wrapped_module.",
    "_checkpoint_wrapped_module.",
    "_orig_mod.",
    "module.",
)
_WRAPPER = re.compile(rf"(?:^|(?<=\.))(?:{'|'.join(map(re.escape, WRAPPERS))})")
_NORM = re.compile(r"(?:norm|(?:^|[._])ln)[^.]*$", re.IGNORECASE)
_LEGACY = {"gamma": "weight", "beta": "bias"}


def canonical(
    tensors: Mapping[str, TensorHeader], expected: Collection[str], base_prefix: str
) -> tuple[dict[str, str], list[Rename]]:
    """Stored name -> canonical name for every tensor, and what was undone to get there.

    Names that already fit are left alone; nothing is renamed onto a key that is stored under its own name.
    """
    names = {key: key for key in tensors}
    renames: list[Rename] = []
    strangers: list[str] = [key for key in tensors if key not in expected]
    for step in (_wrappers, _root, _legacy):
        renamed, found = step(names, strangers, expected, base_prefix)
        if found:
            names = renamed
            renames += found
            strangers = [name for name in names.values() if name not in expected]
    return names, renames


def _apply(names: dict[str, str], wanted: dict[str, str]) -> tuple[dict[str, str], list[str]]:
    """Apply canonical -> new; a new name that is already taken keeps the old one and is a collision."""
    taken = Counter(wanted.get(name, name) for name in names.values())
    collisions = sorted(old for old, new in wanted.items() if taken[new] > 1)
    clash = set(collisions)
    return {key: (wanted.get(name, name) if name not in clash else name) for key, name in names.items()}, collisions


def _wrappers(
    names: dict[str, str], strangers: list[str], expected: Collection[str], base: str
) -> tuple[dict[str, str], list[Rename]]:
    """`module.`, `_orig_mod.` and the like, in front or in mid-path, several deep."""
    del base, expected
    wanted: dict[str, str] = {}
    seen: Counter[str] = Counter()
    for name in strangers:
        bare, stripped = name, list[str]()
        while (hit := _WRAPPER.search(bare)) is not None:
            stripped.append(hit[0])
            bare = bare[: hit.start()] + bare[hit.end() :]
        if stripped:
            wanted[name] = bare
            seen["".join(dict.fromkeys(stripped))] += 1
    if not wanted:
        return names, []
    renamed, collisions = _apply(names, wanted)
    prefix = seen.most_common(1)[0][0]
    return renamed, [Rename("wrapper", prefix, "", len(wanted), False, next(iter(wanted)), tuple(collisions))]


def _root(
    names: dict[str, str], strangers: list[str], expected: Collection[str], base: str
) -> tuple[dict[str, str], list[Rename]]:
    """One root rename that makes the unmatched keys fit: `model.` too many or too few, `language_model.` in front."""
    if 2 * len(strangers) < min(len(names), len(expected)) or not strangers:
        return names, []
    votes: Counter[tuple[str, str]] = Counter()
    tails = _tails(expected)
    # A sample votes: in a real renaming every key says the same.
    for name in strangers[:: max(1, len(strangers) // 200)]:
        votes.update(dict.fromkeys(_proposals(name, tails), 1))
    best: tuple[dict[str, str], tuple[str, str]] | None = None
    for (old, new), _ in votes.most_common(8):
        fits = {n: new + n[len(old) :] for n in strangers if n.startswith(old) and new + n[len(old) :] in expected}
        if best is None or len(fits) > len(best[0]):
            best = fits, (old, new)
    # Most strangers fit, or most of what is expected is found: a text stack inside a larger model is the second case.
    if best is None or 2 * len(best[0]) < min(len(strangers), len(expected)):
        return names, []
    fits, (old, new) = best
    renamed, collisions = _apply(names, fits | _along(strangers, expected, old, new))
    # The loader adds or strips the base model's prefix, once, where that makes the key fit.
    loads = bool(base) and (old == base + new or new == base + old)
    return renamed, [Rename("prefix", old, new, len(fits), loads, next(iter(fits)), tuple(collisions))]


def _along(strangers: list[str], expected: Collection[str], old: str, new: str) -> dict[str, str]:
    """Names that fit nothing and stand below the old root, such as those of a surplus layer."""
    if not old:
        return {}
    roots = {key.partition(".")[0] for key in expected}
    moved = {name: new + name[len(old) :] for name in strangers if name.startswith(old)}
    return {name: other for name, other in moved.items() if other.partition(".")[0] in roots}


def _tails(expected: Collection[str]) -> dict[str, set[str]]:
    """Every tail of every expected key (whole segments), with the head it needs in front."""
    tails: dict[str, set[str]] = {}
    for key in list(expected)[:: max(1, len(expected) // 2000)]:
        segments = key.split(".")
        for i in range(min(3, len(segments) - 1)):
            head = ".".join(segments[:i])
            tails.setdefault(".".join(segments[i:]), set()).add(f"{head}." if head else "")
    return tails


def _proposals(name: str, tails: Mapping[str, set[str]]) -> list[tuple[str, str]]:
    segments = name.split(".")
    found: list[tuple[str, str]] = []
    for i in range(min(4, len(segments) - 1)):
        head = ".".join(segments[:i])
        old = f"{head}." if head else ""
        found += [(old, new) for new in sorted(tails.get(".".join(segments[i:]), ())) if new != old]
    return found


def _legacy(
    names: dict[str, str], strangers: list[str], expected: Collection[str], base: str
) -> tuple[dict[str, str], list[Rename]]:
    """`gamma` and `beta` of TensorFlow days, only as the last segment under a norm, where that makes the key fit."""
    del base
    wanted: dict[str, str] = {}
    for name in strangers:
        head, _, last = name.rpartition(".")
        if last in _LEGACY and _NORM.search(head) and f"{head}.{_LEGACY[last]}" in expected:
            wanted[name] = f"{head}.{_LEGACY[last]}"
    if not wanted:
        return names, []
    renamed, collisions = _apply(names, wanted)
    # transformers 5.24 renames behind the literal text `LayerNorm` alone (conversion_mapping.py, "legacy").
    loads = all("LayerNorm." in name for name in wanted)
    example = next(iter(wanted))
    return renamed, [Rename("legacy", "gamma/beta", "weight/bias", len(wanted), loads, example, tuple(collisions))]
