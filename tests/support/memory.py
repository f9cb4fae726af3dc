"""What a process took of memory at the most.

Its `ru_maxrss` does not say: Linux starts that at what the parent had taken.
"""

from __future__ import annotations

from pathlib import Path


def peak() -> int:
    """Bytes that this process has held at most since its program was started; 0 where the system does not say."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)
