"""`python -m benchmarks.conform_memory MEGABYTES SOURCE [OPTION ...]`: `blockaudit conform` under a memory limit.

The limit is on the address space of the whole process (RLIMIT_AS), set before torch is imported. The last line of
the output holds what the process took, in MB: `address` (VmPeak) and `resident` (VmHWM), and both after the imports.
"""

from __future__ import annotations

import importlib
import json
import resource
import sys
from pathlib import Path


def main() -> int:
    limit = int(sys.argv[1]) << 20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    import torch

    from blockaudit.cli.main import run

    # What the command imports by itself, later: it is no part of what the run takes.
    for name in ("transformers.models.llama.modeling_llama", "blockaudit.trace.conform"):
        importlib.import_module(name)
    torch.set_num_threads(min(2, torch.get_num_threads()))
    before = memory()
    status = run(["conform", *sys.argv[2:]])
    print(json.dumps({"status": status, "limit": limit >> 20, "imports": before, "peak": memory()}))
    return status


def memory() -> dict[str, int]:
    """The highest address space and resident memory of this process until now, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    found = {line.split(":")[0]: int(line.split()[1]) >> 10 for line in lines if line.startswith("Vm")}
    return {"address": found["VmPeak"], "resident": found["VmHWM"]}


if __name__ == "__main__":
    sys.exit(main())
