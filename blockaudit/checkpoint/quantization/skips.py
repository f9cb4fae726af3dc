"""Modules that config.json leaves in plain numbers, by the lists and patterns of each scheme."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import translate
from typing import Any, cast

import msgspec

from blockaudit.checkpoint.quantization.declared import Declared

# Where a scheme lists modules that it leaves out. transformers' loader matches them from the start or at the end.
_LISTS = ("modules_to_not_convert", "llm_int8_skip_modules", "ignored_layers", "exclude_modules")
# A piece of a pattern -> the same as a glob. What has other regular expressions in it is not judged.
_PIECES = (
    (re.compile(r"\.\*|\.\+"), "*"),
    (re.compile(r"\\d\+"), "[0-9]*"),
    (re.compile(r"\\\."), "."),
    (re.compile(r"\."), "?"),
    (re.compile(r"[\w:-]+"), None),
)
_MOST = 2000  # patterns with wildcards: each is tried on every module


class Ends(msgspec.Struct, frozen=True):
    """Ends of names, looked up by their lengths: a hostile list is long, and every module is asked."""

    texts: frozenset[str]
    lengths: tuple[int, ...]

    def of(self, name: str) -> bool:
        """Whether a name ends in one of them."""
        return any(name[len(name) - n :] in self.texts for n in self.lengths if n <= len(name))


def _ends(texts: Iterable[str]) -> Ends:
    known = frozenset(texts)
    return Ends(known, tuple(sorted({len(text) for text in known})))


class Targets(msgspec.Struct, frozen=True):
    """Modules that config names as quantised, by their ends and by patterns."""

    ends: Ends
    patterns: tuple[re.Pattern[str], ...]
    unknown: bool

    def name(self, module: str) -> bool | None:
        """Whether a module is among them; None where a pattern is not understood."""
        if self.ends.of(module) or any(p.match(module) for p in self.patterns):
            return True
        return None if self.unknown else False


class Skips(msgspec.Struct, frozen=True):
    """`names` are modules, `inside` modules with all that is in them, `ends` last parts; `unknown`: and others."""

    names: frozenset[str]
    inside: frozenset[str]
    ends: Ends
    patterns: tuple[re.Pattern[str], ...]
    unknown: bool
    only: Targets | None = None  # where config names what is quantised, all else is left out

    def leaves_out(self, module: str) -> bool | None:
        """Whether this module is to be left in plain numbers; None where a pattern is not understood."""
        if module in self.names or self.ends.of(module):
            return True
        if self.inside and any(part in self.inside for part in _parts(module)):
            return True
        named = self.only.name(module) if self.only is not None else True
        if named is False or any(p.match(module) for p in self.patterns):
            return True
        return None if self.unknown or named is None else False


def skips(declared: Declared) -> Skips:
    """What a declaration leaves out."""
    lists = [text for name in _LISTS for text in declared.strings(name)]
    ignored = declared.strings("ignore")
    globs = [_inside(t) for t in lists if not _is_name(t)]
    globs += [_begins(t[3:]) for t in ignored if t.startswith("re:")]
    globs += [_begins(t[2:]) for t in declared.dynamic() if t.startswith("-:")]
    known = [re.compile(text) for text in globs[:_MOST] if text is not None]
    return Skips(
        frozenset(t for t in ignored if not t.startswith("re:")),
        frozenset(t for t in lists if _is_name(t)),
        _ends(t for t in lists if _is_name(t) and "." not in t),
        tuple(known),
        len(known) < len(globs),
        _targets(declared),
    )


def _targets(declared: Declared) -> Targets | None:
    """GPTQ's list of modules in a block, or compressed-tensors' targets where none of them is a class."""
    names = list(_texts(declared.raw.get("modules_in_block_to_quantize")))
    groups: Any = declared.raw.get("config_groups")
    for group in cast("dict[str, Any]", groups).values() if isinstance(groups, dict) else ():
        names += _texts(cast("dict[str, Any]", group).get("targets")) if isinstance(group, dict) else ()
    if not names or any(is_class(name) for name in names):
        return None
    globs = [_begins(name[3:]) for name in names if name.startswith("re:")]
    known = [re.compile(text) for text in globs[:_MOST] if text is not None]
    return Targets(_ends(n for n in names if not n.startswith("re:")), tuple(known), len(known) < len(globs))


def _texts(given: Any) -> Iterator[str]:
    """The texts of a list, and of lists in it."""
    for item in cast("list[Any]", given) if isinstance(given, list) else ():
        if isinstance(item, str):
            yield item
        elif isinstance(item, list):
            yield from (text for text in cast("list[Any]", item) if isinstance(text, str))


def is_class(target: str) -> bool:
    """Whether a target is the name of a class (`Linear`), which keys do not show."""
    return "." not in target and target[:1].isupper()


def matches(pattern: str, module: str) -> bool | None:
    """Whether a regular expression matches from the start; None where it has more in it than wildcards."""
    text = _begins(pattern)
    return None if text is None else re.compile(text).match(module) is not None


def _parts(module: str) -> Iterator[str]:
    """A module and all that it lies in; and the same from behind, for names that are given without their root."""
    words = module.split(".")
    yield from (".".join(words[:i]) for i in range(1, len(words) + 1))
    yield from (".".join(words[i:]) for i in range(1, len(words)))


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[\w.-]+", text) is not None


def _glob(pattern: str) -> str | None:
    """A regular expression of wildcards and letters alone as a glob: a hostile one is never compiled."""
    at, made = 0, ""
    while at < len(pattern):
        hits = ((piece.match(pattern, at), glob) for piece, glob in _PIECES)
        piece, glob = next(((hit[0], glob) for hit, glob in hits if hit), ("", None))
        if not piece:
            return None
        made += piece if glob is None else glob
        at += len(piece)
    return made


def _begins(pattern: str) -> str | None:
    """As `re.match`: from the start, to anywhere, or to the end behind `$`."""
    glob = _glob(pattern.removeprefix("^").removesuffix("$"))
    return None if glob is None else translate(glob if pattern.endswith("$") else f"{glob}*")


def _inside(pattern: str) -> str | None:
    """A pattern up to the end of a name's part, as transformers' should_convert_module."""
    glob = _glob(pattern.removeprefix("^").removesuffix("$"))
    return None if glob is None else f"{translate(glob)}|{translate(f'{glob}.*')}"
