"""What of a conversion is done, line by line in a file, so that a run that was killed is taken up where it stood.

A line says which bytes of which file are written and the digests that they have. It is a claim: a run that resumes
reads the bytes again, and believes what hashes to what the line says. So a line may reach the disk before its bytes do.
Without hashes a line is written once a whole file is on the disk.
"""

from __future__ import annotations

import os
import threading
import time

import msgspec

NAME = "journal.jsonl"
# Bytes of targets, and seconds, after which lines are brought to the disk.
_EVERY_BYTES = 1 << 30
_EVERY_SECONDS = 5.0


class Head(msgspec.Struct, frozen=True, tag="conversion"):
    """The first line: what is converted, and from what. `key` is `Transaction.key`."""

    key: str


class Done(msgspec.Struct, frozen=True, tag="work"):
    """One piece of work of one file: the digests of its outputs, and of the inputs that were read for it, by key."""

    file: str
    work: int
    outputs: dict[str, str]
    inputs: dict[str, str] = {}


class Synced(msgspec.Struct, frozen=True, tag="file"):
    """One file is whole and on the disk (a conversion without hashes)."""

    file: str


Line = Head | Done | Synced
_DECODER = msgspec.json.Decoder(Line)


class Journal:
    """The journal of one conversion, open to be added to. Threads may share it."""

    def __init__(self, folder: str, key: str, durable: bool) -> None:
        """Take up the journal in `folder` where it is of this conversion, else begin anew. Raises OSError."""
        self._path = os.path.join(folder, NAME)
        lines, end = _read(self._path)
        #: Whether there was one, and it was of something else.
        self.discarded = bool(lines) and lines[0] != Head(key)
        self.resumed = bool(lines) and not self.discarded
        kept = lines[1:] if self.resumed else []
        self.done = {(line.file, line.work): line for line in kept if isinstance(line, Done)}
        self.synced = {line.file for line in kept if isinstance(line, Synced)}
        self._durable = durable
        self._lock = threading.Lock()
        self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        # What follows the last whole line was cut off by whatever ended the run.
        os.ftruncate(self._fd, end if self.resumed else 0)
        self._at = end if self.resumed else 0
        self._unsynced, self._since = 0, time.monotonic()
        if not self.resumed:
            self.add(Head(key))

    def add(self, line: Line, nbytes: int = 0) -> None:
        """Append a line; nbytes: how much of a target it speaks of. Raises OSError."""
        text = msgspec.json.encode(line) + b"\n"
        with self._lock:
            done = 0
            while done < len(text):
                done += os.pwrite(self._fd, text[done:], self._at + done)
            self._at += len(text)
            self._unsynced += nbytes
            now = time.monotonic()
            due = self._unsynced >= _EVERY_BYTES or now - self._since >= _EVERY_SECONDS
            if due or isinstance(line, Synced):
                self._unsynced, self._since = 0, now
                if self._durable:
                    os.fsync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _read(path: str) -> tuple[list[Line], int]:
    """The lines of a journal and where the last whole one ends; what is no line ends it."""
    try:
        with open(path, "rb") as file:
            data = file.read()
    except FileNotFoundError:
        return [], 0
    lines: list[Line] = []
    end = 0
    while (stop := data.find(b"\n", end)) >= 0:
        try:
            lines.append(_DECODER.decode(data[end:stop]))
        except msgspec.MsgspecError:
            break
        end = stop + 1
    return (lines, end) if lines and isinstance(lines[0], Head) else ([], 0)
