"""The shape of the code (docs/design): imports run one way, and nothing heavy is paid for before it is used."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import blockaudit

PACKAGE = Path(blockaudit.__file__).parent

# Who stands on whom: a part may import itself and what is listed, nothing else of blockaudit.
BELOW: dict[str, set[str]] = {
    "records": set(),
    "errors": set(),
    "resources": {"errors"},
    "kept": set(),
    "checkpoint": {"records", "errors", "kept"},
    "manifest": {"records", "errors", "resources"},
    "reconcile": {"records", "errors", "manifest", "checkpoint"},
    "graph": {"records", "errors", "kept"},
    "reference": {"records", "errors", "manifest"},
    "trace": {"records", "errors", "manifest", "checkpoint", "graph", "reference"},
    "migrate": {"records", "errors", "resources", "manifest", "checkpoint", "reconcile"},
    "rules": {"records", "errors", "manifest", "checkpoint", "reconcile"},
    "report": {"records", "errors"},
    # Waivers name rules, and a rule says whether it may be waived; gates will read their policies with it.
    "suppress": {"records", "errors", "rules"},
    "pipeline": {
        "records",
        "errors",
        "resources",
        "manifest",
        "checkpoint",
        "rules",
        "reconcile",
        "graph",
        "trace",
        "suppress",
        "migrate",
        # A conversion leaves its report in the target.
        "report",
    },
    "cli": {"records", "errors", "resources", "report", "pipeline", "rules", "manifest", "suppress"},
    "zoo": {"records", "errors", "resources", "manifest", "graph", "pipeline"},
    "__main__": {"cli"},
    "__init__": {"pipeline", "records"},
}
# The version, and nothing else of the package's top, is everybody's.
EVERYBODYS = {"__version__"}
RECORDS_MAY_USE = {"msgspec", *sys.stdlib_module_names}


def _part(module: str) -> str:
    """`blockaudit.report.text` -> `report`."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def _files() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if "_data" not in p.parts)


def _module(path: Path) -> str:
    names = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def _imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, at its top or in a function, `from blockaudit import x` as `blockaudit.x`."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides which way it runs"
            if node.module == "blockaudit":
                yield from (f"blockaudit.{alias.name}" for alias in node.names)
            else:
                yield node.module or ""


def _inner(path: Path) -> set[str]:
    """Parts of blockaudit that a file imports, its own left out."""
    parts = {_part(m) for m in _imports(path) if m.split(".")[0] == "blockaudit"}
    return parts - {_part(_module(path))} - EVERYBODYS


@pytest.mark.parametrize("path", _files(), ids=_module)
def test_imports_run_one_way(path: Path) -> None:
    part = _part(_module(path))
    assert part in BELOW, f"{part} has no place in BELOW yet"
    assert _inner(path) <= BELOW[part]


def test_the_order_has_no_way_back() -> None:
    def above(part: str, seen: frozenset[str]) -> None:
        assert part not in seen, f"{part} stands on itself by way of {sorted(seen)}"
        for below in BELOW.get(part, set()):
            above(below, seen | {part})

    for part in BELOW:
        above(part, frozenset())


@pytest.mark.parametrize("path", sorted((PACKAGE / "records").glob("*.py")), ids=_module)
def test_records_need_nothing(path: Path) -> None:
    outer = {m.split(".")[0] for m in _imports(path)} - {"blockaudit"}
    assert outer <= RECORDS_MAY_USE


HEAVY = ("torch", "transformers", "numpy", "jsonschema", "yaml", "rich", "safetensors", "jinja2", "urllib3", "blake3")
LOOK = """
import sys
from blockaudit.cli.main import run
status = run({argv!r})
print("loaded:", *(m for m in {heavy!r} if m in sys.modules), file=sys.stderr)
sys.exit(status)
"""


def _loaded(*argv: str) -> set[str]:
    """Heavy modules that one command line has loaded when it ends, in a process of its own."""
    code = LOOK.format(argv=list(argv), heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("loaded:"), done.stderr
    return set(last.split()[1:])


def test_version_loads_nothing_heavy() -> None:
    assert _loaded("--version") == set()


def test_refusing_a_source_loads_nothing_heavy() -> None:
    assert _loaded("inspect", "/no/such/source") == set()


def test_inspecting_a_checkpoint_loads_nothing_heavy(tmp_path: Path) -> None:
    data = bytes(8)
    header = b'{"model.norm.weight":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
    header += b" " * (-len(header) % 8)
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    for argv in (["--format", "text"], ["--format", "json"], ["--report", str(tmp_path.with_suffix(".json"))]):
        assert _loaded("inspect", str(tmp_path), *argv) == set()


def test_a_command_does_not_load_its_siblings() -> None:
    code = "import sys, blockaudit.cli.main as m; m.run(['--version']); assert 'blockaudit.pipeline' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, timeout=60)
