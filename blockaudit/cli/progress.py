"""Progress of long work, on stderr and only where somebody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

from blockaudit.report.escape import escape

# What is being done, how much of it is done, how much there is (bytes, or layers).
Progress = Callable[[str, int, int], None]


@contextmanager
def progress_bar(wanted: bool, unit: Literal["bytes", "layers"] = "bytes") -> Generator[Progress | None]:
    """A callback that moves a progress bar, or None where there is nobody to show it to."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich import progress as bars
    from rich.console import Console
    from rich.text import Text

    class _Name(bars.ProgressColumn):
        """The name as it is: rich would read `[bold]` in a tensor's name as markup."""

        def render(self, task: bars.Task) -> Text:
            return Text(escape(task.description))

    told = (bars.DownloadColumn(), bars.TransferSpeedColumn(), bars.TimeRemainingColumn())
    if unit == "layers":
        told = (bars.MofNCompleteColumn(), bars.TimeElapsedColumn())
    columns = (_Name(), bars.BarColumn(), *told)
    with bars.Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda name, done, total: bar.update(task, description=name, completed=done, total=total)
