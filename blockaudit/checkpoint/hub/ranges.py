"""What a server's answer to a request for some bytes of a file must look like to be believed."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from blockaudit.errors import RequestError

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19}|\*)", re.ASCII)


class Range(msgspec.Struct, frozen=True):
    """Some bytes of a file, and how long that file is by the hub's own listing."""

    offset: int
    length: int
    size: int

    @property
    def header(self) -> str:
        """The value of the request's `Range`."""
        return f"bytes={self.offset}-{self.offset + self.length - 1}"

    @property
    def whole(self) -> bool:
        return self.offset == 0 and self.length == self.size


def check(asked: Range, status: int, headers: Mapping[str, str], what: str) -> None:
    """Raises RequestError unless what follows is just the bytes that were asked for."""
    encoding = headers.get("Content-Encoding", "identity").lower()
    if encoding != "identity":
        raise RequestError(f"{what}: the server sends it encoded as {encoding[:40]!r}, which was not asked for")
    if status == 200:
        _check_whole(asked, what)
    else:
        _check_part(asked, headers, what)
    length = headers.get("Content-Length", str(asked.length))
    if length != str(asked.length):
        raise RequestError(
            f"{what}: the server was asked for {asked.length:,} bytes and announces {length[:40]!r}: try again later"
        )


def _check_whole(asked: Range, what: str) -> None:
    if not asked.whole:
        raise RequestError(
            f"{what}: the server ignores range requests (it answers 200 with the whole file, {asked.size:,} bytes, "
            "and was not read further): use another HF_ENDPOINT, or download the checkpoint"
        )


def _check_part(asked: Range, headers: Mapping[str, str], what: str) -> None:
    given = headers.get("Content-Range", "")
    match = _CONTENT_RANGE.fullmatch(given)
    last = asked.offset + asked.length - 1
    if match is None or (int(match[1]), int(match[2])) != (asked.offset, last):
        raise RequestError(
            f"{what}: the server was asked for bytes {asked.offset}-{last} and says that it sends {given[:80]!r}"
        )
    if match[3] != "*" and int(match[3]) != asked.size:
        raise _mismatch(asked, match[3], what)


def _mismatch(asked: Range, found: str, what: str) -> RequestError:
    return RequestError(f"{what}: the hub lists {asked.size:,} bytes and serves a file of {int(found[:19]):,}")
