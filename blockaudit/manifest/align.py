"""Two manifests under one set of names: what a stack, a branch, a layer kind or a role is called changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from blockaudit.manifest.equation import scale_name
from blockaudit.records.manifest import Branch, ClassSpec, Manifest, Stack, TensorSpec

# Where the name stands, what the first calls it, what the second does.
Renamed = tuple[str, str, str]


def align(a: Manifest, b: Manifest) -> tuple[Manifest, list[Renamed]]:
    """`b` with the names that `a` gives to what stands in the same place, and which those are.

    Only a name that the other does not use is replaced, and only where both have as many of the kind.
    """
    stacks = _names([s.name for s in b.stacks], [s.name for s in a.stacks])
    renamed: list[Renamed] = [(f"stack {new}", new, old) for old, new in stacks.items()]
    by_name = {s.name: s for s in a.stacks}
    found: list[Stack] = []
    for stack in b.stacks:
        stack = replace(stack, name=stacks.get(stack.name, stack.name))
        if stack.name in by_name:
            stack = _stack(by_name[stack.name], stack, renamed)
        found.append(stack)
    if not renamed and found == b.stacks:
        return b, renamed
    classes = {name: _class(spec, stacks) for name, spec in b.match.classes.items()}
    return replace(b, stacks=found, match=replace(b.match, classes=classes)), renamed


def _names(old: Sequence[str], new: Sequence[str]) -> dict[str, str]:
    """The old names that stand where a new one does; none where two lists cannot be laid side by side."""
    old, new = list(dict.fromkeys(old)), list(dict.fromkeys(new))
    if len(old) != len(new):
        return {}
    return {o: n for o, n in zip(old, new, strict=True) if o not in new and n not in old}


def _class(spec: ClassSpec, names: Mapping[str, str]) -> ClassSpec:
    return replace(spec, stacks=[names.get(s, s) for s in spec.stacks]) if isinstance(spec.stacks, list) else spec


def _stack(a: Stack, b: Stack, renamed: list[Renamed]) -> Stack:
    kinds = _names(list(b.layer_kinds), list(a.layer_kinds))
    branches = _branch_names(a, b)
    renamed += [(f"{a.name}: layer kind {new}", new, old) for old, new in kinds.items()]
    renamed += [(f"{a.name}: branch {new}", new, old) for old, new in branches.items()]
    found = [_branch(branch, branches, kinds) for branch in b.branches]
    roles = {(x.name, tuple(x.layer_kinds), x.when): x for x in a.branches}
    found = [_roles(roles.get((x.name, tuple(x.layer_kinds), x.when)), x) for x in found]
    return replace(b, layer_kinds={kinds.get(k, k): text for k, text in b.layer_kinds.items()}, branches=found)


def _branch_names(a: Stack, b: Stack) -> dict[str, str]:
    """Names of branches that only the name tells apart: the residual equation gives both the same factor."""
    names = _names([x.name for x in b.branches], [x.name for x in a.branches])
    return {
        old: new
        for old, new in names.items()
        if all(scale_name(x) == scale_name(replace(x, name=new)) for x in b.branches if x.name == old)
    }


def _branch(branch: Branch, names: Mapping[str, str], kinds: Mapping[str, str]) -> Branch:
    return replace(
        branch,
        name=names.get(branch.name, branch.name),
        layer_kinds=[kinds.get(k, k) for k in branch.layer_kinds],
        reads=_place(branch.reads, names),
        sources={name: _place(source, names) for name, source in branch.sources.items()},
    )


def _place(read: Any, names: Mapping[str, str]) -> Any:
    """`attn.norm_in` by the branch's new name."""
    if not isinstance(read, str):
        return read
    owner, dot, site = read.partition(".")
    return names.get(owner, owner) + dot + site


def _roles(a: Branch | None, b: Branch) -> Branch:
    """Roles as the other calls them, where they are of one key."""
    theirs = {} if a is None else {_key(t): t.role for t in a.tensors}
    if len(set(theirs.values())) != len(theirs) or {_key(t) for t in b.tensors} != set(theirs):
        return b
    return replace(b, tensors=[replace(t, role=theirs[_key(t)]) for t in b.tensors])


def _key(tensor: TensorSpec) -> tuple[str | None, str | None, Any]:
    return tensor.module, tensor.key, tensor.when
