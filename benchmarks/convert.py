"""`python -m benchmarks.convert`: a conversion that only renames, by what copying and hashing the same files costs.

The last line of its output is JSON: one `Speed` for each comparison.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from math import prod
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.results import Speed
from blockaudit.checkpoint.hashing import cores
from blockaudit.pipeline.converting import Writing, convert

ROUNDS = 5
LEAST_THROUGHPUT, LARGEST_RATIO = 0.85, 1.3
MAP = "unwrap_ddp"
CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "torch_dtype": "bfloat16",
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 8, "num_attention_heads": 32,
    "num_key_value_heads": 32, "vocab_size": 32000, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    "attention_bias": False, "mlp_bias": False, "rope_theta": 10000.0, "max_position_embeddings": 4096,
}  # fmt: skip


def main() -> int:
    with TemporaryDirectory(prefix="blockaudit-bench-", dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        at = Path(folder)
        source = _write(at / "source")
        rows = [_copied(source, at), _hashed(source, at, warm=False), _hashed(source, at, warm=True)]
    print(json.dumps([asdict(row) for row in rows]))
    return 0 if all(row.kept for row in rows) else 1


def _copied(source: Path, at: Path) -> Speed:
    def copy() -> None:
        subprocess.run(["cp", "-r", source, at / "copy"], check=True)
        subprocess.run(["sync"], check=True)

    pairs = _rounds(lambda: _convert(source, at, hashes=False), copy, at)
    ratio = median(floor / mine for mine, floor in pairs)
    return _speed("convert --no-hash, throughput", "cp + sync", pairs, ratio, LEAST_THROUGHPUT, least=True)


def _hashed(source: Path, at: Path, *, warm: bool) -> Speed:
    """Both with their files in memory, or both with none of theirs there."""

    def files() -> list[Path]:
        return [*source.glob("*.safetensors"), *(at / "target").glob("*.safetensors")]

    def hash_all() -> None:
        with ThreadPoolExecutor(cores()) as pool:
            list(pool.map(_sha256, files()))

    def ready() -> None:
        for path in files():
            _sha256(path) if warm else _evict(path)

    pairs = _rounds(lambda: _convert(source, at, hashes=True), hash_all, at, ready)
    ratio = median(mine / floor for mine, floor in pairs)
    what = f"convert, files {'in memory' if warm else 'on disk'}"
    return _speed(what, "hashlib, in and out", pairs, ratio, None if warm else LARGEST_RATIO, least=False)


def _rounds(
    mine: Callable[[], None], floor: Callable[[], None], at: Path, ready: Callable[[], None] = lambda: None
) -> list[tuple[float, float]]:
    """Seconds of both in each round, after one that is not counted."""
    pairs: list[tuple[float, float]] = []
    for _ in range(ROUNDS + 1):
        for name in ("target", "copy"):
            shutil.rmtree(at / name, ignore_errors=True)
        seconds: list[float] = []
        for run in (mine, floor):
            os.sync()
            ready()
            start = time.perf_counter()
            run()
            seconds.append(time.perf_counter() - start)
        pairs.append((seconds[0], seconds[1]))
    return pairs[1:]


def _convert(source: Path, at: Path, *, hashes: bool) -> None:
    report = convert(source, at / "target", map_=MAP, writing=Writing(shard_bytes=10**11, hashes=hashes))
    assert report.verdict == "accepted", report.findings


def _speed(
    what: str, floor: str, pairs: list[tuple[float, float]], ratio: float, limit: float | None, *, least: bool
) -> Speed:
    mine, under = (median(pair[n] for pair in pairs) for n in (0, 1))
    return Speed(what, mine, floor, under, ratio, limit, least)


def _sha256(path: Path) -> str:
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _evict(path: Path) -> None:
    """What the system keeps of a file in memory is given up; what is not on the disk yet cannot be."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _write(folder: Path) -> Path:
    """A LLaMA of 3.8 GB as DistributedDataParallel saves it: every key has `module.` before it."""
    folder.mkdir()
    header, at = dict[str, object](), 0
    for key, shape in _shapes().items():
        header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at := at + 2 * prod(shape)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    noise = os.urandom(1 << 24)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for start in range(0, at, len(noise)):
            file.write(noise[: at - start])
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def _shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"module.model.embed_tokens.weight": (32000, 4096)}
    for layer in range(8):
        start = f"module.model.layers.{layer}."
        shapes |= {f"{start}self_attn.{name}_proj.weight": (4096, 4096) for name in "qkvo"}
        shapes |= {f"{start}mlp.{name}_proj.weight": (11008, 4096) for name in ("gate", "up")}
        shapes |= {f"{start}mlp.down_proj.weight": (4096, 11008)}
        shapes |= {f"{start}{name}_layernorm.weight": (4096,) for name in ("input", "post_attention")}
    return {**shapes, "module.model.norm.weight": (4096,), "module.lm_head.weight": (32000, 4096)}


if __name__ == "__main__":
    sys.exit(main())
