"""F: what can be wrong with files, indexes and shards; each kind is named by one rule and by no other."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.audit import Case, Fires, Near, check, ids, inspect
from tests.support.checkpoint import (
    INDEX,
    Draft,
    config,
    copy,
    draft,
    drop,
    family,
    file,
    put,
    safetensors,
    shard_name,
    sharded,
    then,
    write,
)  # fmt: skip

WEIGHTS = "model.safetensors"
ONE, TWO = shard_name(0, 2), shard_name(1, 2)
Q0 = "model.layers.0.self_attn.q_proj.weight"
Step = Callable[[Path], Any]
sound = family("llama")
two_shards = family("llama", sharded(2))


def on(name: str, change: Callable[[bytes], bytes]) -> Step:
    """Rewrite one file of the folder."""
    return lambda folder: (folder / name).write_bytes(change((folder / name).read_bytes()))


def header(spoil: Callable[[dict[str, Any]], None]) -> Callable[[Path], Path]:
    """A LLaMA whose safetensors header is changed before it is written."""

    def made(folder: Path) -> Path:
        it = draft("llama")
        write(it, folder)
        safetensors(folder / WEIGHTS, it.tensors, spoil)
        return folder

    return made


def entry(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda made: made[Q0].update(changes)


def overlap(made: dict[str, Any]) -> None:
    """q_proj of layer 0 begins four bytes early and keeps its length."""
    made[Q0]["data_offsets"] = [n - 4 for n in made[Q0]["data_offsets"]]


def hole(made: dict[str, Any]) -> None:
    """The last tensor loses its key, not its bytes."""
    del made[list(made)[-1]]


def double(raw: bytes) -> bytes:
    """The first tensor named a second time, under another offset of the same length."""
    length = int.from_bytes(raw[:8], "little")
    made = json.loads(raw[8 : 8 + length])
    first = next(k for k in made if k != "__metadata__")
    text = json.dumps(made)[:-1] + ", " + json.dumps({first: made[first]})[1:]
    body = text.encode()
    return len(body).to_bytes(8, "little") + body + raw[8 + length :]


def index(change: Callable[[dict[str, Any]], None]) -> Step:
    def step(folder: Path) -> None:
        made = json.loads((folder / INDEX).read_text())
        change(made)
        (folder / INDEX).write_text(json.dumps(made))

    return step


def move(made: dict[str, Any]) -> None:
    """The index puts q_proj of layer 0 into the other shard."""
    at = made["weight_map"]
    at[Q0] = ONE if at[Q0] == TWO else TWO


def unlist(made: dict[str, Any]) -> None:
    del made["weight_map"][Q0]


def total(value: int | None) -> Step:
    def change(made: dict[str, Any]) -> None:
        made["metadata"] = {} if value is None else {"total_size": value}

    return index(change)


def file_bytes(folder: Path) -> None:
    total(sum((folder / n).stat().st_size for n in (ONE, TWO)))(folder)


def in_both(folder: Path) -> None:
    """The second shard holds a tensor of the first one too; the index is right about where each is."""
    it = draft("llama")
    keys = list(it.tensors)
    second = {k: it.tensors[k] for k in (*keys[1::2], keys[0])}
    safetensors(folder / TWO, second)


class Evil:
    """Unpickling this would run code."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/blockaudit-ran",)


def torch_file(value: Any) -> Callable[[Path], Path]:
    def made(folder: Path) -> Path:
        folder.mkdir()
        it = draft("llama")
        (folder / "config.json").write_text(json.dumps(it.config))
        with zipfile.ZipFile(folder / "pytorch_model.bin", "w") as archive:
            archive.writestr("archive/data.pkl", pickle.dumps(value, protocol=2))
            archive.writestr("archive/byteorder", "little")
        return folder

    return made


TENSOR_BYTES = sum(len(t.data) for t in draft("llama").tensors.values())
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:%s\nsize 4096\n" % (b"0" * 64)
NAN, INF = float("nan"), float("inf")


def one_nan(key: str) -> Callable[[Draft], None]:
    shape = draft("llama").tensors[key].shape
    size = 1
    for n in shape:
        size *= n
    import numpy as np

    return put(key, np.array([NAN] + [1 + 0.01 * i for i in range(size - 1)]).reshape(shape))


CASES: list[Case] = [
    # -- unreadable
    Fires(
        "unreadable-file",
        "an HTML page in place of a .bin",
        then(
            sound, lambda f: (f / WEIGHTS).unlink(), lambda f: (f / "pytorch_model.bin").write_bytes(b"<!DOCTYPE html>")
        ),
    ),
    Fires("unreadable-file", "an index that is no index", then(two_shards, lambda f: (f / INDEX).write_text("[]"))),
    Near(
        "unreadable-file",
        "an index with a note of its own",
        then(two_shards, index(lambda made: made["metadata"].update(note="x"))),
    ),
    # -- truncated
    Fires("truncated-file", "by four bytes", then(sound, on(WEIGHTS, lambda b: b[:-4])), says=["4 missing"]),
    Fires("truncated-file", "inside the header", then(sound, on(WEIGHTS, lambda b: b[:200])), observed=200),
    Fires("truncated-file", "to nothing", then(sound, on(WEIGHTS, lambda b: b"")), observed=0),
    Fires("truncated-file", "one shard of two", then(two_shards, on(TWO, lambda b: b[:-4]))),
    Near("truncated-file", "whole", sound),
    # -- header
    Fires(
        "corrupt-header",
        "header length beyond the file",
        then(sound, on(WEIGHTS, lambda b: (2**40).to_bytes(8, "little") + b[8:])),
        observed=2**40,
    ),
    Fires("corrupt-header", "no JSON", then(sound, on(WEIGHTS, lambda b: b[:8] + b"{x" + b[10:]))),
    Fires("corrupt-header", "unknown dtype", header(entry(dtype="F33")), tensors=[Q0]),
    Fires(
        "corrupt-header",
        "shape larger than its bytes",
        header(entry(shape=[8, 9])),
        expected=288,
        observed=256,
        tensors=[Q0],
        beside=["shape-mismatch"],
    ),
    Fires("corrupt-header", "negative size", header(entry(shape=[-8, -8])), tensors=[Q0], beside=["shape-mismatch"]),
    Near("corrupt-header", "an empty metadata", header(lambda made: made.update(__metadata__={}))),
    # -- overlap and gaps
    Fires("overlapping-tensors", "four bytes shared", header(overlap), beside=["header-gap"]),
    Near("overlapping-tensors", "side by side", sound),
    Fires("header-gap", "a hole at the end", header(hole), observed=32, beside=["final-norm-missing"]),
    Fires("header-gap", "trailing bytes", then(sound, on(WEIGHTS, lambda b: b + b"\0" * 16)), expected=0, observed=16),
    Near(
        "header-gap",
        "blanks that pad the header",
        then(
            sound,
            on(
                WEIGHTS,
                lambda b: (
                    (int.from_bytes(b[:8], "little") + 64).to_bytes(8, "little")
                    + b[8 : 8 + int.from_bytes(b[:8], "little")]
                    + b" " * 64
                    + b[8 + int.from_bytes(b[:8], "little") :]
                ),
            ),
        ),
    ),
    # -- shards and index
    Fires("shard-missing", "one of two", then(two_shards, lambda f: (f / TWO).unlink()), subject=TWO, says=[INDEX]),
    Near("shard-missing", "both there", two_shards),
    Fires(
        "shard-unlisted",
        "a third shard that the index does not name",
        then(two_shards, lambda f: (f / shard_name(2, 3)).write_bytes((f / ONE).read_bytes())),
        severity="warning",
        exit=0,
        subject=shard_name(2, 3),
    ),
    Near("shard-unlisted", "another file beside", then(two_shards, lambda f: (f / "tokenizer.json").write_text("{}"))),
    Fires("index-mismatch", "a key in another shard than the index says", then(two_shards, index(move)), tensors=[Q0]),
    Fires("index-mismatch", "a key that the index does not list", then(two_shards, index(unlist)), tensors=[Q0]),
    Fires(
        "index-mismatch",
        "a shard name that walks out",
        then(two_shards, index(lambda made: made["weight_map"].update({Q0: "../x.safetensors"}))),
        tensors=[Q0],
        says=["leads out"],
    ),
    Near(
        "index-mismatch",
        "keys in another order",
        then(two_shards, index(lambda made: made.update(weight_map=dict(reversed(made["weight_map"].items()))))),
    ),
    Fires(
        "total-size-mismatch",
        "stale",
        then(two_shards, total(4)),
        severity="warning",
        exit=0,
        expected=TENSOR_BYTES,
        observed=4,
    ),
    Fires(
        "total-size-mismatch",
        "bytes of the files",
        then(two_shards, file_bytes),
        severity="warning",
        exit=0,
        expected=TENSOR_BYTES,
        says=["file sizes"],
    ),
    Near("total-size-mismatch", "not stated", then(two_shards, total(None))),
    Fires("duplicate-key", "in one header", then(sound, on(WEIGHTS, double))),
    Fires(
        "duplicate-key",
        "in two shards",
        then(two_shards, in_both),
        tensors=["lm_head.weight"],
        beside=["total-size-mismatch"],
    ),
    Near(
        "duplicate-key",
        "equal bytes under two keys",
        family("llama", copy(Q0, "model.layers.1.self_attn.q_proj.weight")),
    ),
    # -- pickles and pointers
    Fires("unsafe-pickle", "a state dict that calls os.system", torch_file({"a": Evil()}), says=["system"]),
    Near("unsafe-pickle", "an empty state dict", torch_file({}), exit=1, beside=["unreadable-file"]),
    Fires(
        "lfs-pointer",
        "the weights",
        then(sound, lambda f: (f / WEIGHTS).write_bytes(LFS)),
        says=["4,096", "git lfs pull"],
    ),
    Fires("lfs-pointer", "one shard", then(two_shards, lambda f: (f / TWO).write_bytes(LFS)), subject=TWO),
    Near("lfs-pointer", "a pointer that is no weight file", family("llama", file("tokenizer.model", LFS))),
    # -- values
    Fires(
        "non-finite-values",
        "NaN in a norm, at the headers level",
        family("llama", one_nan("model.norm.weight")),
        subject="model.norm.weight",
        expected=0,
        observed=1,
    ),
    Fires(
        "non-finite-values",
        "NaN in a matrix, at the values level",
        family("llama", one_nan(Q0)),
        args=["--level", "values"],
        tensors=[Q0],
        observed=1,
        says=["1 of 64", "at 0"],
    ),
    Near("non-finite-values", "NaN in a matrix, which headers do not read", family("llama", one_nan(Q0))),
    Near(
        "non-finite-values",
        "the largest float32",
        family("llama", put(Q0, [[3.4028e38] * 8] * 8)),
        args=["--level", "values"],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=ids)
def test_files(case: Case, tmp_path: Path) -> None:
    check(case, tmp_path)
    assert not os.path.exists("/tmp/blockaudit-ran")


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_each_kind_of_non_finite(value: float, tmp_path: Path) -> None:
    source = family("llama", put("model.norm.weight", [1.01, 1.02, value, 0.99, 1.03, 0.98, 1.04, value]))(tmp_path)
    (finding,) = inspect(source).findings
    assert (finding["name"], finding["observed"]) == ("non-finite-values", 2)


def test_nothing_is_missing_where_a_shard_is(tmp_path: Path) -> None:
    """Keys of a shard that is not there are unknown, not absent: one finding, not twenty."""
    outcome = inspect(then(two_shards, lambda f: (f / TWO).unlink())(tmp_path))
    assert outcome.grave == ["shard-missing"]
    assert len(outcome.findings[0]["tensors"]) == len(draft("llama").tensors) // 2


def test_one_shard_or_many_is_the_same_checkpoint(tmp_path: Path) -> None:
    one, many = inspect(sound(tmp_path / "a")), inspect(family("llama", sharded(5))(tmp_path / "b"))
    assert one.report is not None
    assert many.report is not None
    assert one.report["contract"] == many.report["contract"]
    assert one.report["subject"]["bytes"] == many.report["subject"]["bytes"] == TENSOR_BYTES


@pytest.mark.parametrize("edit", [drop("model.norm.weight"), config(num_hidden_layers=3)])
def test_a_fault_is_found_in_shards_too(edit: Any, tmp_path: Path) -> None:
    one, many = (
        inspect(family("llama", edit)(tmp_path / "a")),
        inspect(family("llama", edit, sharded(3))(tmp_path / "b")),
    )
    assert one.names == many.names != []
