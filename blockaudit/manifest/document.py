"""A manifest file as plain data: JSON, or the part of YAML that means the same to everybody.

PyYAML by itself reads `1e-6` as a string, `no` as false and `12:30` as a number; expands aliases without bound, and
lets a key that is given twice win silently. Here plain words are what JSON would make of them, and anchors, tags and
twice-given keys are refused.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn, cast

from blockaudit.errors import RequestError

# PyYAML is slow (half a megabyte takes a second or two), so a YAML file has a bound of its own.
MAX_YAML = 512 * 1024
MAX_DEPTH = 60

Where = tuple[str | int, ...]


def parse(data: bytes, path: str) -> Any:
    """The document in `data`. Raises RequestError `path:LINE: ...`."""
    text = _decoded(data, path)
    if path.lower().endswith((".yaml", ".yml")) or not text.lstrip().startswith(("{", "[")):
        return _Yaml(path).document(text)
    return _json(text, path)


class Lines:
    """Where in a file a value stands. The file is read again, and only where something is wrong with it."""

    def __init__(self, data: bytes) -> None:
        text = data.decode("utf-8-sig", "replace")
        try:
            # A tab is white space to JSON and a fault to YAML; neither allows it raw in a string.
            self._root: Any = _Yaml("").compose(text.replace("\t", " ")) if len(text) <= MAX_YAML else None
        except RequestError:
            self._root = None

    def of(self, where: Where) -> int | None:
        """The line of the value at `where`, or of the nearest place above it that the document has."""
        return None if self._root is None else _mark(self._root, where)


def _decoded(data: bytes, path: str) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        number = data.count(b"\n", 0, error.start) + 1
        raise RequestError(f"{path}:{number}: expected UTF-8 text, found byte {data[error.start]:#04x}") from error


def _json(text: str, path: str) -> Any:
    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise RequestError(f"{path}:{_line_of_twice(text, key)}: key {key!r} is given twice; keep one of them")
            found[key] = value
        return found

    def constant(word: str) -> NoReturn:
        raise ValueError(f"{word} is not JSON")

    try:
        document = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=_finite)
    except json.JSONDecodeError as error:
        raise RequestError(f"{path}:{error.lineno}: not JSON: {error.msg} (column {error.colno})") from error
    except ValueError as error:
        raise RequestError(f"{path}: not JSON: {error}") from error
    except RecursionError as error:
        raise RequestError(f"{path}: nested deeper than {MAX_DEPTH} levels") from error
    if _too_deep(document):
        raise RequestError(f"{path}: nested deeper than {MAX_DEPTH} levels")
    return document


def _finite(word: str) -> float:
    value = float(word)
    if not math.isfinite(value):
        raise ValueError(f"{word} is larger than any float")
    return value


def _line_of_twice(text: str, key: str) -> int:
    """The line where a key stands for the second time, as far as text alone can say."""
    quoted = json.dumps(key, ensure_ascii=False)
    second = text.find(quoted, text.find(quoted) + 1)
    return text.count("\n", 0, max(second, 0)) + 1


def _too_deep(document: Any) -> bool:
    level: list[Any] = [document]
    for _ in range(MAX_DEPTH):
        level = [child for value in level for child in _children(value)]
        if not level:
            return False
    return True


def _children(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(cast("dict[str, Any]", value).values())
    return cast("list[Any]", value) if isinstance(value, list) else []


def _yaml() -> Any:
    """PyYAML, when there is something to read with it."""
    import yaml

    return yaml


def _loader() -> Any:
    """The parser written in C where PyYAML has it: forty times as fast, and the same tree."""
    yaml = _yaml()
    return getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Yaml:
    """One YAML text: composed by PyYAML, its words read by us."""

    def __init__(self, path: str) -> None:
        self._path = path

    def document(self, text: str) -> Any:
        if len(text) > MAX_YAML:
            raise RequestError(f"{self._path}: {len(text)} characters of YAML; at most {MAX_YAML} (JSON may be longer)")
        root = self.compose(text)
        return None if root is None else self._value(root, 0)

    def compose(self, text: str) -> Any:
        yaml = _yaml()
        self._refuse_anchors(text)
        try:
            return yaml.compose(text, Loader=_loader())
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark or error.context_mark
            place = f":{mark.line + 1}" if mark is not None else ""
            raise RequestError(f"{self._path}{place}: not YAML: {error.problem or error.context}") from error
        except yaml.YAMLError as error:
            raise RequestError(f"{self._path}: not YAML: {' '.join(str(error).split())}") from error
        except RecursionError as error:
            raise RequestError(f"{self._path}: nested deeper than {MAX_DEPTH} levels") from error

    def _refuse_anchors(self, text: str) -> None:
        """Before composing, which would follow them."""
        yaml = _yaml()
        depth = 0
        try:
            for event in yaml.parse(text, Loader=_loader()):
                if getattr(event, "anchor", None) is not None:
                    raise self._fault(event, "anchors and aliases are not read; write the value out")
                if isinstance(event, yaml.CollectionStartEvent):
                    depth += 1
                    if depth > MAX_DEPTH:
                        raise self._fault(event, f"nested deeper than {MAX_DEPTH} levels")
                elif isinstance(event, yaml.CollectionEndEvent):
                    depth -= 1
        except yaml.YAMLError:
            return  # said by `compose`, with its line

    def _value(self, node: Any, depth: int) -> Any:
        yaml = _yaml()
        if node.tag not in _TAGS:
            raise self._fault(node, f"tag {node.tag!r} is not read")
        if isinstance(node, yaml.MappingNode):
            found: dict[str, Any] = {}
            for name, child in node.value:
                key = name.value
                if not isinstance(name, yaml.ScalarNode) or not isinstance(key, str):
                    raise self._fault(name, "a key is a word, not a list or a mapping")
                if key in found:
                    raise self._fault(name, f"key {key!r} is given twice; keep one of them")
                found[key] = self._value(child, depth + 1)
            return found
        if isinstance(node, yaml.SequenceNode):
            return [self._value(child, depth + 1) for child in node.value]
        assert isinstance(node, yaml.ScalarNode)
        word: str = node.value
        return word if node.style in ("'", '"', "|", ">") else self._word(node, word)

    def _word(self, node: Any, word: str) -> Any:
        """A plain word as JSON (and YAML 1.2) would read it."""
        if word in _WORDS:
            return _WORDS[word]
        if word.lower().lstrip("+-") in (".inf", ".nan", "inf", "nan", "infinity"):
            raise self._fault(node, f"{word} is not a number that a manifest can hold")
        digits = word[1:] if word[:1] in ("+", "-") else word
        if not digits[:1].isascii() or not (digits[:1].isdigit() or digits[:1] == "."):
            return word
        if not set(digits) <= set("0123456789.eE+-"):
            return word
        try:
            return int(word) if digits.isdigit() else _finite(word)
        except ValueError as error:
            if digits.isdigit() or "larger" in str(error):
                raise self._fault(node, f"{word[:40]} is out of range") from error
            return word

    def _fault(self, at: Any, message: str) -> RequestError:
        return RequestError(f"{self._path}:{at.start_mark.line + 1}: {message}")


_WORDS: dict[str, Any] = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
}  # fmt: skip
# What PyYAML makes of words without a tag. The value is read from the word, not from the tag.
_TAGS = {
    f"tag:yaml.org,2002:{n}"
    for n in ("map", "seq", "str", "null", "bool", "int", "float", "timestamp", "value", "merge")
}


def _mark(node: Any, where: Where) -> int:
    """The line of the deepest node on the way to `where`: a field's is that of its name."""
    number: int = node.start_mark.line + 1
    for step in where:
        children: Any = node.value
        if node.id == "sequence" and isinstance(step, int) and step < len(children):
            node = children[step]
            number = node.start_mark.line + 1
            continue
        pairs: Any = children if node.id == "mapping" else ()
        pair: Any = next((p for p in pairs if p[0].value == step), None)
        if pair is None:
            break
        number, node = pair[0].start_mark.line + 1, pair[1]
    return number
