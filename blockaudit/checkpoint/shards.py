"""What a shard index and the shards themselves say of each other, as faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from blockaudit.checkpoint.files import short
from blockaudit.checkpoint.index import Index, family
from blockaudit.records.checkpoint import Fault, FileHeader


def _names(names: Sequence[str], limit: int = 5) -> str:
    return ", ".join(map(short, names[:limit])) + (f" and {len(names) - limit:,} more" if len(names) > limit else "")


def missing(index: Index, name: str, shards: Sequence[str]) -> list[Fault]:
    """Shards that the index names and that are not there: one fault, with every key that is lost."""
    if not shards:
        return []
    keys = tuple(key for shard in shards for key in index.keys_of[shard])
    verb = "is" if len(shards) == 1 else "are"
    return [
        Fault(
            "shard-missing",
            shards[0] if len(shards) == 1 else name,
            f"{_names(shards)} {verb} not there; {name} puts {len(keys):,} tensors there",
            keys,
            expected=len(index.shards),
            observed=len(index.shards) - len(shards),
            evidence=f"{name}: weight_map",
        )
    ]


def refused(index: Index, name: str, shards: Mapping[str, str]) -> list[Fault]:
    """Shard names that are not followed: shard -> why."""
    return [
        Fault(
            "index-mismatch",
            name,
            f"the shard name {short(shard)!r} {why}; the file was not opened",
            tuple(index.keys_of[shard]),
            evidence=f"{name}: weight_map",
        )
        for shard, why in shards.items()
    ]


def unlisted(index: Index, name: str, present: Sequence[str]) -> list[Fault]:
    """Files of the same family as the index that it does not name."""
    pattern = family(name)
    extra = [found for found in sorted(present) if found not in index.keys_of and pattern.fullmatch(found)]
    return [
        Fault("shard-unlisted", shard, f"{shard} lies beside the index, which does not name it", evidence=name)
        for shard in extra
    ]


def misplaced(index: Index, name: str, files: Sequence[FileHeader]) -> list[Fault]:
    """Keys that the index puts where they are not, and keys that are where the index does not put them."""
    faults: list[Fault] = []
    for shard in files:
        listed = index.keys_of.get(shard.name, [])
        held = shard.tensors
        absent = tuple(key for key in listed if key not in held)
        if absent:
            text = (
                f"{name} puts {len(absent):,} tensors into {shard.name}, which does not hold them: {_names(absent, 3)}"
            )
            faults.append(Fault("index-mismatch", shard.name, text, absent, evidence=f"{name}: weight_map"))
        if len(held) == len(listed) and not absent:
            continue
        extra = tuple(key for key in held if key not in index.weight_map)
        if extra:
            text = f"{shard.name} holds {len(extra):,} tensors that {name} does not list: {_names(extra, 3)}"
            faults.append(Fault("index-mismatch", shard.name, text, extra, evidence=f"{name}: weight_map"))
    return faults


def duplicates(files: Sequence[FileHeader]) -> list[Fault]:
    """Keys that two files hold."""
    if sum(len(f.tensors) for f in files) == len(set[str]().union(*(f.tensors for f in files))):
        return []
    first: dict[str, str] = {}
    twice: dict[str, list[str]] = {}
    for shard in files:
        for key in shard.tensors:
            if key in first:
                twice.setdefault(key, [first[key]]).append(shard.name)
            else:
                first[key] = shard.name
    key, holders = next(iter(twice.items()))
    more = f" (and {len(twice) - 1:,} more keys)" if len(twice) > 1 else ""
    return [
        Fault("duplicate-key", holders[1], f"{short(key)} is stored in {' and in '.join(holders)}{more}", tuple(twice))
    ]


def _storage_bytes(shard: FileHeader) -> int:
    """Bytes of a pickled file's tensors with every shared storage counted once, as its writer counts them."""
    seen: dict[str, int] = {}
    for key, tensor in shard.tensors.items():
        storage = shard.storages.get(key, key)
        seen[storage] = max(seen.get(storage, 0), tensor.nbytes)
    return sum(seen.values())


def total_size(index: Index, name: str, files: Sequence[FileHeader]) -> list[Fault]:
    """metadata.total_size against the bytes of the tensors. Nothing is said where a file is missing or unreadable."""
    stated = index.total_size
    if stated is None or not all(f.readable for f in files):
        return []
    tensor_bytes = sum(t.data_offsets[1] - t.data_offsets[0] for f in files for t in f.tensors.values())
    pickled = any(f.storages for f in files)
    if stated == tensor_bytes or (pickled and stated == sum(_storage_bytes(f) for f in files)):
        return []
    file_bytes = sum(f.size for f in files)
    hint = "; it is the sum of the file sizes, headers included" if stated == file_bytes else ""
    return [
        Fault(
            "total-size-mismatch",
            name,
            f"total_size says {stated:,} bytes, the tensors have {tensor_bytes:,}{hint}",
            expected=tensor_bytes,
            observed=stated,
            evidence=f"{name}: metadata.total_size",
        )
    ]
