"""Inputs of every kind that the tool reads, spoilt: real ones with bytes changed, and ones made from a grammar.

A kind is a folder that is sound, the file in it that is attacked, and the command line that reads it. What had an
answer of its own is kept and spoilt further, so that the search goes where the code has not been.
"""

from __future__ import annotations

import io
import json
import pickletools
import random
import shutil
import struct
import zipfile
from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.checkpoint.mutate import HURTFUL, damage
from tests.checkpoint.test_container_mutations import distributed, gguf, spoil
from tests.checkpoint.test_pickle import DATA, legacy, state, tensor, text, zipped
from tests.support.checkpoint import INDEX, draft, family, write

Grammar = Callable[[random.Random], bytes]
# Inputs that were answered as no other, kept for each kind.
_KEPT = 300
_WORDS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 2**31, 2**63, 2**64, 10**30, 10**400, 0.5, 1e-6, 1e308, float("nan"),
    float("inf"), -0.0, "", "llama", "rmsnorm", "../x", "/etc/passwd", "\x1b[2J", "a\u202eb", "\ud800", "x" * 3000,
    "{l}", "{", "a.b", [], {}, [[]], [1, "a", None], {"a": {"b": []}}, {"": None}, ["x"] * 50,
)  # fmt: skip


def value(dice: random.Random, depth: int = 3) -> Any:
    """Something that a JSON document could hold, and should not."""
    if depth and dice.random() < 0.3:
        if dice.random() < 0.5:
            return [value(dice, depth - 1) for _ in range(dice.randint(0, 4))]
        return {str(dice.choice(_WORDS))[:50]: value(dice, depth - 1) for _ in range(dice.randint(0, 4))}
    return deepcopy(dice.choice(_WORDS))


def altered(document: Any, dice: random.Random) -> Any:
    """A document with one to four of its values replaced, doubled, dropped or moved."""
    made = json.loads(json.dumps(document))
    for _ in range(dice.randint(1, 4)):
        at, trail = made, 0
        while isinstance(at, dict | list) and at and (trail == 0 or dice.random() < 0.7):
            parent, key = at, dice.choice(list(at)) if isinstance(at, dict) else dice.randrange(len(at))
            at, trail = parent[key], trail + 1
        if not trail:
            return value(dice)
        action = dice.randrange(4)
        if action == 0:
            del parent[key]
        elif action == 1 and isinstance(parent, dict):
            parent[str(dice.choice(_WORDS))[:50]] = at
        else:
            parent[key] = value(dice)
    return made


def tree(document: Any) -> Grammar:
    """A JSON document altered as a tree; now and then with a key twice, which a tree cannot have."""

    def made(dice: random.Random) -> bytes:
        raw = json.dumps(altered(document, dice)).encode()
        return raw.replace(b"{", b'{"a": 1, "a": 2, ', 1) if dice.random() < 0.05 else raw

    return made


def headers(sound: bytes) -> Grammar:
    """A safetensors file whose header is altered as a tree, its length now and then wrong."""
    length = int.from_bytes(sound[:8], "little")
    document = tree(json.loads(sound[8 : 8 + length]))

    def made(dice: random.Random) -> bytes:
        raw = document(dice)
        told = len(raw) if dice.random() < 0.9 else dice.choice((0, 1, len(raw) - 1, len(raw) + 1, 2**31, 2**63, 10**8))
        return struct.pack("<Q", told) + raw + sound[8 + length :]

    return made


_CODES = [code.code.encode("latin1") for code in pickletools.opcodes if code.arg is None]
_ATOMS = [
    b"cos\nsystem\n", b"cposix\nsystem\n(S'touch CANARY'\ntR", b"ctorch._utils\n_rebuild_tensor_v2\n",
    b"ctorch\nSize\n",
    b"ctorch\nFloatStorage\n", b"ccollections\nOrderedDict\n", b"X\x01\0\0\0a", b"K\x01", b"I9\n", b"L9L\n",
    b"F1e999\n",
    b"S'a'\n", b"V\\ud800\n", b"h\0", b"q\0", b"j\xff\xff\xff\x7f", b"r\xff\xff\xff\x7f", b"g0\n", b"p0\n",
    b"Pid\n", b"Q",
    b"\x8a\xff" + b"9" * 255, b"\x8b\xff\xff\xff\x7f", b"B\xff\xff\xff\x7f", b"\x8e" + struct.pack("<Q", 2**62),
    b"\x95" + bytes(8),
    b"((X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK\x06tQ",
    b"K\x00K\x02K\x03\x86K\x03K\x01\x86",
]  # fmt: skip


def opcodes(dice: random.Random) -> bytes:
    """A pickle of random opcodes, biased towards those that a state dict has."""
    parts = [dice.choice(_ATOMS if dice.random() < 0.5 else _CODES) for _ in range(dice.randint(1, 60))]
    if dice.random() < 0.5:
        items = (text("w"), tensor(), *(dice.choice(_ATOMS) for _ in range(dice.randint(0, 3))))
        parts = [state(*dice.sample(items, len(items)))[:-1], *parts[: dice.randint(0, 5)]]
    return b"\x80" + bytes([dice.choice((2, 2, 3, 4, 5))]) + b"".join(parts) + b"."


def archives(dice: random.Random) -> bytes:
    """A zip around a random pickle; some of its bytes may be wrong too."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, data in (("a/data.pkl", opcodes(dice)), ("a/byteorder", b"little"), ("a/data/0", DATA)):
            # With a time of its own the same seed would not make the same bytes.
            archive.writestr(zipfile.ZipInfo(name), data)
    return damage(made.getvalue(), dice) if dice.random() < 0.3 else made.getvalue()


def texts(sound: bytes) -> Grammar:
    """A text with its lines shuffled, doubled and dropped, and hurtful words in them."""
    lines = sound.splitlines(keepends=True)
    words = [
        *HURTFUL,
        b"&a [*a]\n",
        b"!!python/object/apply:os.system ['touch CANARY']\n",
        b"<<: *a\n",
        b"[[waivers]]\n",
        b'"\\u001b"',
    ]

    def made(dice: random.Random) -> bytes:
        chosen = [dice.choice(words) if dice.random() < 0.1 else line for line in lines if dice.random() < 0.9]
        if dice.random() < 0.3 and chosen:
            chosen *= dice.choice((2, 2, 50))
        return b"".join(chosen)

    return made


@dataclass
class Kind:
    """One kind of input. `argv` are the words that follow `inspect`, FOLDER standing for its folder."""

    name: str
    file: str
    argv: Sequence[str]
    grammar: Grammar | None = None
    mutate: Callable[[bytes, int], bytes] = lambda raw, seed: damage(raw, random.Random(seed))
    kept: list[bytes] = field(default_factory=list)
    answers: set[Any] = field(default_factory=set)

    def line(self, folder: Path) -> list[str]:
        return ["inspect", *(word.replace("FOLDER", str(folder)) for word in self.argv)]

    def make(self, seed: int) -> tuple[str, bytes]:
        """How the input of a seed is made, and the input."""
        dice = random.Random(seed)
        if self.grammar is not None and dice.random() < 0.5:
            return "grammar", self.grammar(dice)
        return "mutated", self.mutate(dice.choice(self.kept), seed)

    def learn(self, raw: bytes, answer: Any) -> bool:
        """Keep an input whose answer is new."""
        new = answer not in self.answers and len(raw) < 100_000
        self.answers.add(answer)
        if new and len(self.kept) < _KEPT:
            self.kept.append(raw)
        return new


_SETTINGS = b"""
select = ["N", "K1"]
ignore = "K109"
strict = true
allow-unverified = false
level = "headers"
format = "json"
[[waivers]]
rule = "epsilon-mismatch"
scope = "decoder.*"
reason = "retrained"
owner = "norms"
expires = 2027-01-31
[[waivers]]
rule = "K101"
scope = "*"
source = "*/x"
reason = "known"
owner = "us"
expires = "2027-02-01"
"""
_ADAPTER = {
    "peft_type": "LORA", "base_model_name_or_path": "x/y", "r": 2, "lora_alpha": 4,
    "target_modules": ["q_proj", "v_proj"],
    "rank_pattern": {"q_proj": 2}, "alpha_pattern": {}, "modules_to_save": None, "bias": "none", "use_dora": False,
    "use_rslora": False, "layers_to_transform": [0], "fan_in_fan_out": False, "task_type": "CAUSAL_LM",
}  # fmt: skip
_QUANTIZED = {
    "quant_method": "gptq", "bits": 4, "group_size": 32, "sym": True, "desc_act": False, "dynamic": {"-:.*down.*": {}},
    "modules_to_not_convert": ["lm_head"], "config_groups": {"g": {"targets": ["Linear"], "weights": {"num_bits": 4}}},
    "ignore": ["re:.*x"], "weight_block_size": [128, 128],
}  # fmt: skip


def _adapter(folder: Path) -> bytes:
    import numpy as np

    from tests.support.checkpoint import Draft, encoded

    keys = {}
    for module in ("q_proj", "v_proj"):
        stem = f"base_model.model.model.layers.0.self_attn.{module}.lora_"
        keys |= {f"{stem}A.weight": encoded(np.ones((2, 8))), f"{stem}B.weight": encoded(np.ones((8, 2)))}
    write(Draft(keys, None), folder)
    (folder / "model.safetensors").rename(folder / "adapter_model.safetensors")
    return json.dumps(_ADAPTER).encode()


def _manifest() -> dict[str, Any]:
    from blockaudit import resources

    return json.loads(resources.manifest_path("llama").read_bytes())


def prepare(folder: Path) -> None:
    """The sound folders of all kinds. torch is needed for distributed ones, and gguf for GGUF."""
    for name in ("header", "config", "quantization", "manifest", "manifest-yaml", "settings", "baseline", "tokenizer"):
        family("llama")(folder / name)
    sound = json.loads((folder / "config" / "config.json").read_text())
    write(draft("llama", lambda d: setattr(d, "shards", 3)), folder / "index")
    (folder / "quantization" / "config.json").write_text(json.dumps({**sound, "quantization_config": _QUANTIZED}))
    (folder / "manifest" / "m.json").write_text(json.dumps(_manifest()))
    # JSON is YAML; written as blocks, it is what people write.
    import yaml

    (folder / "manifest-yaml" / "m.yaml").write_text(yaml.safe_dump(_manifest(), sort_keys=False))
    (folder / "settings" / "blockaudit.toml").write_bytes(_SETTINGS)
    known = {
        "code": "N201",
        "name": "epsilon-mismatch",
        "subject": "decoder.x",
        "message": "m",
        "fingerprint": "0" * 16,
    }
    baseline = {"schema": "blockaudit/baseline/1", "kind": "inspection", "level": "headers", "findings": [known]}
    (folder / "baseline" / "b.json").write_text(json.dumps(baseline))
    (folder / "tokenizer" / "tokenizer.json").write_text(json.dumps({"model": {"vocab": {"a": 0}}, "added_tokens": []}))
    config = json.loads((folder / "tokenizer" / "config.json").read_text())
    (folder / "tokenizer" / "config.json").write_text(json.dumps({**config, "vocab_size": 7}))
    for name, make in (("zip", lambda p: zipped(p, state(text("w"), tensor()))), ("legacy", legacy)):
        (folder / name).mkdir()
        make(folder / name)
    (folder / "adapter" / "").mkdir(parents=True)
    (folder / "adapter" / "adapter_config.json").write_bytes(_adapter(folder / "adapter"))
    gguf_folder = folder / "gguf"
    gguf_folder.mkdir()
    gguf(gguf_folder)
    distributed(folder / "distributed")


def kinds(folder: Path) -> list[Kind]:
    """All kinds over folders that were prepared, each with its sound input as the first that is kept."""
    plain = ("FOLDER",)

    def document(name: str, file: str) -> Any:
        return json.loads((folder / name / file).read_bytes())

    made = [
        Kind("header", "model.safetensors", plain, headers((folder / "header" / "model.safetensors").read_bytes())),
        Kind("index", INDEX, plain, tree(document("index", INDEX))),
        Kind("config", "config.json", plain, tree(document("config", "config.json"))),
        Kind("quantization", "config.json", plain, tree(document("quantization", "config.json"))),
        Kind("adapter", "adapter_config.json", plain, tree(_ADAPTER)),
        Kind("tokenizer", "tokenizer.json", plain, tree(document("tokenizer", "tokenizer.json"))),
        Kind("zip", "m.bin", ("FOLDER/m.bin",), archives),
        Kind("legacy", "m.bin", ("FOLDER/m.bin",), opcodes),
        Kind("manifest", "m.json", ("FOLDER", "--manifest", "FOLDER/m.json"), tree(_manifest())),
        Kind("manifest-yaml", "m.yaml", ("FOLDER", "--manifest", "FOLDER/m.yaml"),
             texts((folder / "manifest-yaml" / "m.yaml").read_bytes())),
        Kind("settings", "blockaudit.toml", ("FOLDER", "--config", "FOLDER/blockaudit.toml"), texts(_SETTINGS)),
        Kind("baseline", "b.json", ("FOLDER", "--baseline", "FOLDER/b.json"), tree(document("baseline", "b.json"))),
        Kind("gguf", "model.gguf", plain, None, spoil),
        Kind("distributed", ".metadata", plain, None, spoil),
    ]  # fmt: skip
    for kind in made:
        kind.kept.append((folder / kind.name / kind.file).read_bytes())
    return made


def copied(kind: Kind, source: Path, target: Path) -> Path:
    """A folder of a kind for one worker to spoil."""
    return Path(shutil.copytree(source / kind.name, target / kind.name))
