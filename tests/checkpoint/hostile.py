"""Checkpoints that somebody made to do harm: what each is, what is said of it, and what it must not open."""

from __future__ import annotations

import json
import os
import socket
import struct
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.checkpoint.test_pickle import DATA, state, tensor, text, zipped
from tests.support.checkpoint import INDEX, family

Spoil = Callable[[Path], object]
WEIGHTS, CONFIG, BIN = "model.safetensors", "config.json", "pytorch_model.bin"
# A file beside the checkpoint that no audit has any business with; its words would show in a report.
SECRET = {"model_type": "secret-of-the-user", "rms_norm_eps": 0.125}


@dataclass(frozen=True)
class Hostile:
    """A sound LLaMA with one thing done to it. `rule` is the finding that says so; empty: it is passed over."""

    name: str
    spoil: Spoil
    rule: str
    status: int = 1

    def build(self, folder: Path) -> Path:
        """The checkpoint, in a folder of its own beside the secret and the canary's place."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "secret.json").write_text(json.dumps(SECRET))
        family("llama")(folder / "outside")
        source = family("llama")(folder / "checkpoint")
        self.spoil(source)
        return source


# -- what a name in the folder can be ---------------------------------------------------------------------------------


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = Path.cwd()
        os.chdir(path.parent)  # the path of a socket has a hundred bytes at the most
        try:
            made.bind(path.name)
        finally:
            os.chdir(here)


KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "socket": _socket,
    "folder": Path.mkdir,
    "link to itself": lambda path: path.symlink_to(path.name),
    "link to a device": lambda path: path.symlink_to("/dev/zero"),
    "link into proc": lambda path: path.symlink_to("/proc/self/environ"),
    "link to nothing": lambda path: path.symlink_to("nothing"),
    "link to the user's secret": lambda path: path.symlink_to("../secret.json"),
    "hole of 20 GB": lambda path: (path.touch(), os.truncate(path, 20 << 30)),
}


def _replaced(name: str, make: Callable[[Path], object]) -> Spoil:
    def spoil(folder: Path) -> None:
        if name == INDEX:
            (folder / WEIGHTS).unlink()
        (folder / name).unlink(missing_ok=True)
        make(folder / name)

    return spoil


_RULE = {
    WEIGHTS: "unreadable-file",
    INDEX: "unreadable-file",
    CONFIG: "config-invalid",
    "adapter_config.json": "config-invalid",
}


def _kinds() -> list[Hostile]:
    found: list[Hostile] = []
    for name, rule in (*_RULE.items(), ("tokenizer.json", ""), ("generation_config.json", "")):
        for kind, make in KINDS.items():
            said = "corrupt-header" if (name, kind) == (WEIGHTS, "hole of 20 GB") else rule
            found.append(Hostile(f"{name} is a {kind}", _replaced(name, make), said, 1 if rule else 0))
    return found


# -- links and names that lead out ------------------------------------------------------------------------------------


def _index(name: str) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).rename(folder / "a.safetensors")
        keys = json.loads((folder / "a.safetensors").read_bytes()[8:].partition(b"}}")[0] + b"}}")
        first, *others = [key for key in keys if key != "__metadata__"]
        where = {
            first: name.format(outside=folder.parent / "outside" / WEIGHTS),
            **dict.fromkeys(others, "a.safetensors"),
        }
        (folder / INDEX).write_text(json.dumps({"weight_map": where}))

    return spoil


def _linked(name: str, target: str) -> Spoil:
    return _replaced(name, lambda path: path.symlink_to(target.format(parent=path.parent.parent)))


LEADING_OUT = (
    *(
        Hostile(f"the index says {name}", _index(name), "index-mismatch")
        for name in (
            "../outside/model.safetensors",
            "{outside}",
            "x/../../outside/model.safetensors",
            "..",
            "C:\\x",
            "a\\..\\b",
        )
    ),
    Hostile("weights are a link out", _linked(WEIGHTS, "../outside/model.safetensors"), "unreadable-file"),
    Hostile(
        "weights are an absolute link out", _linked(WEIGHTS, "{parent}/outside/model.safetensors"), "unreadable-file"
    ),
    Hostile("config.json is a link out", _linked(CONFIG, "../outside/config.json"), "config-invalid"),
    Hostile(
        "a shard is a link out",
        lambda f: (_index("b.safetensors")(f), (f / "b.safetensors").symlink_to("../outside/model.safetensors")),
        "index-mismatch",
    ),
    Hostile(
        "a shard lies in a linked folder",
        lambda f: (_index("sub/model.safetensors")(f), (f / "sub").symlink_to("../outside")),
        "index-mismatch",
    ),
)


# -- pickles and the archives around them -----------------------------------------------------------------------------


def _pickle(data: bytes) -> Spoil:
    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        (folder / BIN).write_bytes(data.replace(b"CANARY", os.fsencode(folder.parent / "canary")))

    return spoil


def _zip(*entries: tuple[str, bytes], method: int = zipfile.ZIP_STORED, claims: Any = None) -> Spoil:
    """`claims` are the compressed and the whole size that the directory gives for the last entry."""

    def spoil(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        with zipfile.ZipFile(folder / BIN, "w", method) as archive:
            for name, data in entries:
                archive.writestr(name, data)
        if claims:
            raw = bytearray((folder / BIN).read_bytes())
            at = raw.rfind(b"PK\x01\x02")
            raw[at + 20 : at + 28] = struct.pack("<II", *claims)
            (folder / BIN).write_bytes(raw)

    return spoil


def _overlapping(folder: Path) -> None:
    """Two storages of one run of bytes: every entry of the directory points at the same local header."""
    (folder / WEIGHTS).unlink()
    other = tensor().replace(b"X\x01\x00\x00\x000", b"X\x01\x00\x00\x001")
    path = zipped(folder, state(text("a"), tensor(), text("b"), other))
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/data/1", DATA)
    raw = bytearray(path.read_bytes())
    second, first = raw.rfind(b"PK\x01\x02"), raw.rfind(b"PK\x01\x02", 0, raw.rfind(b"PK\x01\x02"))
    raw[second + 42 : second + 46] = raw[first + 42 : first + 46]
    path.rename(folder / BIN)
    (folder / BIN).write_bytes(raw)


_EMPTY = b"\x80\x02}."
_LIES: dict[str, Any] = {"method": zipfile.ZIP_DEFLATED, "claims": (1 << 20, 32 << 20)}
_BAD = "unreadable-file"
PICKLES = (
    Hostile("a pickle that runs a command", _pickle(b"\x80\x02cposix\nsystem\n(S'touch CANARY'\ntR."), "unsafe-pickle"),
    Hostile("the same of protocol 0", _pickle(b"cposix\nsystem\n(S'touch CANARY'\ntR."), "unsafe-pickle"),
    Hostile("a pickle that opens a file", _pickle(b"\x80\x02cbuiltins\nopen\n(S'CANARY'\nS'w'\ntR."), "unsafe-pickle"),
    Hostile("a zip that runs a command", _zip(("a/data.pkl", b"\x80\x02cos\nsystem\n(S'false'\ntR.")), "unsafe-pickle"),
    Hostile("a line that has no end", _pickle(b"\x80\x02S'" + b"a" * (3 << 20)), _BAD),
    Hostile("a number of a million digits", _pickle(b"\x80\x02I" + b"9" * (1 << 20) + b"\n."), _BAD),
    Hostile("a text of 2**62 bytes", _pickle(b"\x80\x04\x8d" + struct.pack("<Q", 2**62)), _BAD),
    Hostile("a zip of zeros", _zip(("a/data.pkl", bytes(64 << 20)), method=zipfile.ZIP_DEFLATED), _BAD),
    Hostile("a zip that lies about its ratio", _zip(("a/data.pkl", bytes(32 << 20)), **_LIES), _BAD),
    Hostile("a zip that claims 2 GB", _zip(("a/data.pkl", _EMPTY), claims=(2**31, 2**31)), _BAD),
    Hostile("a zip that claims 4 GB", _zip(("a/data.pkl", _EMPTY), claims=(2**32 - 2, 2**32 - 2)), _BAD),
    Hostile("a zip in a zip", _zip(("a/data.pkl", b"PK\x03\x04" + bytes(200))), _BAD),
    Hostile(
        "a zip of 20,000 entries", _zip(*((f"a/data/{n}", b"") for n in range(20_000)), ("a/data.pkl", _EMPTY)), _BAD
    ),
    Hostile(
        "a zip with names that lead out",
        _zip(("../../x/data.pkl", _EMPTY), ("/etc/x", b""), ("a/data.pkl", b"N.")),
        _BAD,
    ),
    Hostile("a zip whose entries overlap", _overlapping, "overlapping-tensors"),
    Hostile("ends of archives without a beginning", _pickle(b"PK\x03\x04" + b"PK\x05\x06" * 50_000), "truncated-file"),
)


# -- words ------------------------------------------------------------------------------------------------------------


def _config(**changes: Any) -> Spoil:
    return lambda f: (f / CONFIG).write_text(json.dumps({**json.loads((f / CONFIG).read_text()), **changes}))


def _text(raw: str | bytes) -> Spoil:
    return lambda f: (f / CONFIG).write_bytes(raw if isinstance(raw, bytes) else raw.encode())


CONFIGS = (
    Hostile("epsilon is NaN", _config(rms_norm_eps=float("nan")), "config-invalid"),
    Hostile("epsilon is infinite", _config(rms_norm_eps=float("inf")), "config-invalid"),
    Hostile("a size of 400 digits", _config(hidden_size=10**400), "config-invalid"),
    Hostile("10**18 layers", _config(num_hidden_layers=10**18), "config-invalid"),
    Hostile("no heads", _config(num_attention_heads=0), "config-tensor-mismatch"),
    Hostile("a number of 5,000 digits", _text('{"a": ' + "9" * 5000 + "}"), "config-invalid"),
    Hostile("nested deeply", _text("[" * 100_000), "config-invalid"),
    Hostile("nested 500 deep and closed", _text('{"a":' * 500 + "1" + "}" * 500), "config-invalid"),
    Hostile("half a surrogate pair", _text('{"model_type": "\\ud800"}'), "config-invalid"),
    Hostile("UTF-16", _text("{}".encode("utf-16")), "config-invalid"),
    Hostile("zeros", _text(bytes(1000)), "config-invalid"),
    Hostile("five million lists", _text('{"a": [' + "[]," * 5_000_000 + "[]]}"), "config-invalid"),
)

CASES = (*_kinds(), *LEADING_OUT, *PICKLES, *CONFIGS)
