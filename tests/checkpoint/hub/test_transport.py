"""Hubs that fail, stall, lie or send elsewhere: one clear line and exit 2, in bounded time; what passes is borne.

No test looks at a clock: one that waits for ever runs into the suite's timeout.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.checkpoint.hub.conftest import TOKEN
from tests.support import sparse
from tests.support.audit import inspect
from tests.support.hub import COMMIT, LARGE, SOURCE, Hub, Request

Fault = Callable[[Request], bool]


def refused(hub: Hub, fault: Fault, *words: str) -> str:
    """The one line that an audit of a hub with this fault ends in."""
    hub.fault = fault
    done = inspect(SOURCE)
    assert (done.status, done.out) == (2, ""), done.out
    (line,) = done.err.splitlines()
    assert line.startswith(f"blockaudit: error: {SOURCE}"), line
    assert TOKEN not in line
    assert "s3cret" not in line
    assert all(word in line for word in words), line
    return line


def on_files(answer: Callable[[Request], object]) -> Fault:
    """A fault of every file, wherever it is served from."""

    def fault(request: Request) -> bool:
        # A redirect to the second host is as it should be.
        if request.is_api or (not request.to_cdn and request.file.name.endswith(LARGE)):
            return False
        answer(request)
        return True

    return fault


def on_api(answer: Callable[[Request], object]) -> Fault:
    def fault(request: Request) -> bool:
        if request.is_api:
            answer(request)
        return request.is_api

    return fault


def once(fault: Fault) -> Fault:
    """The first time only, of each path."""
    seen: set[str] = set()

    def first(request: Request) -> bool:
        if request.path in seen:
            return False
        seen.add(request.path)
        return fault(request)

    return first


def impatient(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Waits that are short enough to be waited for, where a fault is one of time."""
    if "stall" in name or "drip" in name:
        monkeypatch.setenv("BLOCKAUDIT_HUB_TIMEOUT", "0.5")
        monkeypatch.setenv("BLOCKAUDIT_HUB_PATIENCE", "1.5" if "drip" in name else "30")


def drop_before(request: Request) -> None:
    request.close_connection = True


def drop_inside(request: Request) -> None:
    size = request.file.stat().st_size if not request.is_api else 1000
    first, last = request.span(size) if not request.is_api else (0, 999)
    request.send_response(200 if request.is_api else 206)
    request.send_header("Content-Length", str(last - first + 1))
    request.send_header("Content-Range", f"bytes {first}-{last}/{size}")
    request.end_headers()
    request.send(b"x" * ((last - first + 1) // 2))
    request.close_connection = True


def stall_before(request: Request) -> None:
    request.server.hub.done.wait(30)


def stall_inside(request: Request) -> None:
    drop_inside(request)
    request.server.hub.done.wait(30)


def drip(request: Request, first: bytes, more: bytes) -> None:
    request.wfile.write(first)
    while not request.server.hub.done.wait(0.05):
        request.wfile.write(more)
        request.wfile.flush()


def drip_body(request: Request) -> None:
    drip(request, b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" ")


def drip_headers(request: Request) -> None:
    drip(request, b"HTTP/1.1 200 OK\r\nX-Slow: ", b"y")


def garbage(request: Request) -> None:
    request.wfile.write(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    request.close_connection = True


PASSING = {
    "dropped": drop_before,
    "dropped inside": drop_inside,
    "stalled": stall_before,
    "garbage": garbage,
    "500": lambda r: r.answer(500, b"oops"),
    "503": lambda r: r.answer(503, b"later", {"Retry-After": "0"}),
    "429": lambda r: r.answer(429, b"slower", {"Retry-After": "0"}),
    "429 by date": lambda r: r.answer(429, b"", {"Retry-After": "Mon, 01 Jan 2024 00:00:00 GMT"}),
}
LASTING: dict[str, tuple[Callable[[Request], object], str]] = {
    "dropped": (drop_before, "dropped the connection"),
    "dropped inside": (drop_inside, "dropped the connection"),
    "garbage": (garbage, "dropped the connection"),
    "stalled": (stall_before, "silent for 0.5 seconds"),
    "stalled inside": (stall_inside, "silent for 0.5 seconds"),
    "headers drip": (drip_headers, "did not come in time"),
    "500": (lambda r: r.answer(500, b"oops"), "answers 500"),
    "502": (lambda r: r.answer(502, b"oops"), "answers 502"),
    "429": (lambda r: r.answer(429, b"slower"), "answers 429"),
    "429 for long": (lambda r: r.answer(429, b"", {"Retry-After": "3600"}), "asks to wait 3600 seconds"),
    "401": (lambda r: r.answer(401, b"no"), "there is no such repository, or it needs a token"),
    "403": (lambda r: r.answer(403, b"no", {"X-Error-Code": "GatedRepo"}), "ask for it on the repository's page"),
    "404": (lambda r: r.answer(404, b"no"), "there is no such repository, revision or file"),
    "418": (lambda r: r.answer(418, b"teapot"), "answers 418"),
    "204": (lambda r: r.answer(204, b""), "answers 204"),
    "redirect to itself": (lambda r: r.answer(302, b"", {"Location": r.path}), "no address"),
    "redirect nowhere": (lambda r: r.answer(302, b""), "no address"),
    "redirect to a file": (lambda r: r.answer(302, b"", {"Location": "file:///etc/passwd"}), "no address"),
    "redirect to nonsense": (lambda r: r.answer(302, b"", {"Location": "http://[::1"}), "no address"),
    "redirect to no port": (lambda r: r.answer(302, b"", {"Location": "http://host:99999/"}), "no address"),
    "redirects for ever": (
        lambda r: r.answer(307, b"", {"Location": f"{r.path.partition('&n')[0]}&n={len(r.server.hub.asked)}"}),
        "redirects more than 5 times",
    ),
}


@pytest.mark.parametrize("name", PASSING)
@pytest.mark.parametrize("on", [on_api, on_files])
def test_a_fault_that_passes_is_borne(
    on: Callable[..., Fault], name: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch, name)
    sound = inspect(SOURCE)
    hub.fault = once(on(PASSING[name]))
    again = inspect(SOURCE)
    assert (again.status, again.out) == (0, sound.out), again.err


@pytest.mark.parametrize("name", LASTING)
@pytest.mark.parametrize("on", [on_api, on_files])
def test_a_fault_that_lasts_is_one_line(
    on: Callable[..., Fault], name: str, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    impatient(monkeypatch, name)
    answer, words = LASTING[name]
    refused(hub, on(answer), words)


def test_a_body_that_drips_is_given_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    impatient(monkeypatch, "drips")
    refused(hub, on_api(drip_body), "did not come in time")


API = {
    "html": (b"<!DOCTYPE html><title>Log in</title>", "no JSON (it begins with '<!DOCTYPE html"),
    "empty": (b"", "no JSON"),
    "binary": (b"\xff\xfe\x00", "no JSON"),
    "escapes": (b"\x1b[2J\x1b[31m", "no JSON"),
    "a list": (b"[]", "not that of a model API"),
    "null": (b"null", "not that of a model API"),
    "no commit": (b'{"siblings": []}', "`sha`"),
    "commit is a path": (b'{"sha": "../../x", "siblings": []}', "sha"),
    "no files": (json.dumps({"sha": COMMIT}).encode(), "`siblings`"),
    "files by name": (json.dumps({"sha": COMMIT, "siblings": {"a": 1}}).encode(), "siblings"),
    "no size": (
        json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "model.safetensors", "size": None}]}).encode(),
        "model.safetensors: the hub gives no size of it",
    ),
    "size below 0": (json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": -1}]}).encode(), "size"),
    "size beyond": (json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 2**70}]}).encode(), "size"),
    "hash is none": (
        json.dumps({"sha": COMMIT, "siblings": [{"rfilename": "a", "size": 1, "lfs": {"sha256": "x"}}]}).encode(),
        "sha256",
    ),
    "deep": (b"[" * 100_000, "the hub's answer is"),
    "no weights": (json.dumps({"sha": COMMIT, "siblings": []}).encode(), "the folder is empty"),
    "odd names": (
        json.dumps(
            {"sha": COMMIT, "siblings": [{"rfilename": n, "size": 9} for n in ("../m.safetensors", "/etc/x", "a\0")]}
        ).encode(),
        "no weights",
    ),
}


@pytest.mark.parametrize("name", API)
def test_an_answer_of_the_api_that_is_none(name: str, hub: Hub) -> None:
    body, words = API[name]
    refused(hub, on_api(lambda r: r.answer(200, body)), words)


def test_a_name_with_half_a_character_is_no_crash(hub: Hub) -> None:
    body = f'{{"sha": "{COMMIT}", "siblings": [{{"rfilename": "\\ud800.safetensors", "size": 9}}]}}'.encode()
    refused(hub, on_api(lambda r: r.answer(200, body)))


def test_a_server_that_ignores_ranges_is_not_downloaded(connected: Callable[[Path], Hub], tmp_path: Path) -> None:
    hub = connected(sparse.llama(tmp_path / "large"))
    refused(hub, on_files(lambda r: r.send_whole(r.file)), "ignores range requests", "model.safetensors")
    # What was under way when the connection was closed.
    assert hub.sent < sparse.size_of(hub.folder) / 10


def test_a_small_file_may_come_whole(hub: Hub) -> None:
    def fault(request: Request) -> bool:
        small = request.file.name == "config.json"
        if small:
            request.send_whole(request.file)
        return small

    hub.fault = fault
    assert inspect(SOURCE).status == 0


LIES: dict[str, tuple[dict[str, str | None], str]] = {
    "another part": ({"Content_Range": "bytes 1-4/9999999"}, "says that it sends 'bytes 1-4/9999999'"),
    "no range": ({"Content_Range": None}, "says that it sends ''"),
    "nonsense": ({"Content_Range": "bytes \x01x-y/z"}, "says that it sends"),
    "far too long": ({"Content_Range": "bytes 0-" + "9" * 5000 + "/1"}, "says that it sends"),
    "short body": ({"Content_Length": "10"}, "announces '10'"),
    "long body": ({"Content_Length": "999999999"}, "announces '999999999'"),
    "length is none": ({"Content_Length": "many"}, "announces 'many'"),
    "encoded": ({"Content_Encoding": "gzip"}, "encoded as 'gzip'"),
}


@pytest.mark.parametrize("name", LIES)
def test_a_server_that_lies_is_found_out(name: str, hub: Hub) -> None:
    change, words = LIES[name]
    refused(hub, on_files(lambda r: r.send_file(r.file, **change)), words)


def test_a_file_of_another_length_than_listed(hub: Hub) -> None:
    def other_total(request: Request) -> None:
        first, last = request.span(request.file.stat().st_size)
        request.send_file(request.file, Content_Range=f"bytes {first}-{last}/123456789012")

    refused(hub, on_files(other_total), "the hub lists", "serves a file of 123,456,789,012")


def test_without_a_token_a_401_says_what_to_do(hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "none"))
    refused(hub, on_api(lambda r: r.answer(401, b"")), "set HF_TOKEN")
    assert all("Authorization" not in r.headers for r in hub.asked)


def test_a_revision_that_is_not_there(hub: Hub) -> None:
    done = inspect(f"{SOURCE}@v9")
    assert done.status == 2
    assert "the repository has no such revision" in done.err


def test_a_hub_that_is_not_there(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for endpoint, words in (("http://127.0.0.1:9", "cannot be reached"), ("http://x.invalid", "cannot be resolved")):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        refused(hub, lambda r: False, words)


def test_the_api_may_send_elsewhere_and_the_token_does_not_follow(hub: Hub) -> None:
    """As a hub does for a repository that was renamed, here to another host."""

    def fault(request: Request) -> bool:
        if request.is_api and not request.to_cdn:
            request.answer(307, b"", {"Location": request.server.hub.cdn_url + request.path})
            return True
        return False

    hub.fault = fault
    assert inspect(SOURCE).status == 0
    assert [r.headers.get("Authorization") for r in hub.asked if "/api/" in r.path] == [f"Bearer {TOKEN}", None]


def test_a_proxy_of_the_environment_is_used(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    monkeypatch.setenv("http_proxy", hub.url)
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    refused(hub, lambda r: r.answer(404, b"") is None, "answers 404")
    assert hub.asked[0].path.startswith("http://hub.invalid/api/models/org/name")
    hub.forget()
    monkeypatch.setenv("http_proxy", hub.url.removeprefix("http://"))
    refused(hub, lambda r: r.answer(404, b"") is None, "answers 404")
    assert hub.asked
    monkeypatch.setenv("http_proxy", "socks5://127.0.0.1:9")
    assert "expected http://host:port" in inspect(SOURCE).err
    monkeypatch.setenv("no_proxy", "hub.invalid")
    refused(hub, lambda r: False, "cannot be resolved")
