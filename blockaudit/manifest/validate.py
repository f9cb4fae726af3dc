"""Validate a manifest file against its schema, and say what is wrong in one line with its place.

`path:LINE: stacks[0].branches[1].norms.norm_in.epsilon: expected a number ..., found '1e-6'; write ...`
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Sized
from typing import Any, TypeVar, cast

import msgspec

from blockaudit import resources
from blockaudit.errors import RequestError
from blockaudit.manifest import core, document
from blockaudit.records.checkpoint_manifest import CheckpointManifest
from blockaudit.records.manifest import Manifest
from blockaudit.records.runtime_manifest import RuntimeManifest
from blockaudit.records.tensor_manifest import TensorManifest
from blockaudit.records.training_manifest import TrainingManifest

_Record = TypeVar("_Record")
AnyManifest = Manifest | TensorManifest | CheckpointManifest | TrainingManifest | RuntimeManifest
# Kind (the schema's name) to the record that it is read into.
KINDS: dict[str, type[AnyManifest]] = {
    "block_manifest": Manifest,
    "tensor_manifest": TensorManifest,
    "checkpoint_manifest": CheckpointManifest,
    "training_manifest": TrainingManifest,
    "runtime_manifest": RuntimeManifest,
}


def block_manifest(data: bytes, path: str) -> Manifest:
    """The block manifest in `data`, JSON or YAML. Raises RequestError, one line, with the place at fault."""
    found = _object(data, path)
    kind = _kind(found, data, path)
    if kind != "block_manifest":
        raise RequestError(
            f"{_place(data, path, ('schema',))}: expected a block manifest, found a {kind.replace('_', ' ')}"
        )
    return _block(found, data, path)


def any_manifest(data: bytes, path: str) -> tuple[str, AnyManifest]:
    """A manifest of any kind, told by its `schema`, and the kind."""
    found = _object(data, path)
    kind = _kind(found, data, path)
    if kind == "block_manifest":
        return kind, _block(found, data, path)
    _validate(found, kind, data, path)
    return kind, _record(found, KINDS[kind], path)


def document_of(kind: str, record: type[_Record], data: bytes, path: str) -> _Record:
    """A document that is no manifest (a tolerance policy), held to the schema `kind` and read into its record."""
    found = _object(data, path, kind.replace("_", " "))
    _validate(found, kind, data, path)
    return _record(found, record, path)


def _object(data: bytes, path: str, what: str = "manifest") -> dict[str, Any]:
    found = document.parse(data, path)
    if not isinstance(found, dict):
        raise RequestError(f"{path}:1: expected a {what} (an object), found {_shown(found)}")
    return found  # pyright: ignore[reportUnknownVariableType]


def _kind(found: dict[str, Any], data: bytes, path: str) -> str:
    """Which of the schemas a document says that it follows; none said: a block manifest."""
    named = {_const(kind): kind for kind in KINDS}
    given = found.get("schema")
    if given is None:
        return "block_manifest"
    if not isinstance(given, str) or given not in named:
        place = _place(data, path, ("schema",))
        raise RequestError(f"{place}: schema: expected one of {', '.join(named)}, found {_shown(given)}")
    return named[given]


def _const(kind: str) -> str:
    return resources.schema(kind)["properties"]["schema"]["const"]


def _block(found: dict[str, Any], data: bytes, path: str) -> Manifest:
    _validate(found, "block_manifest", data, path)
    whole = core.expand_dropout(found)
    return _record(whole if "stacks" in whole else core.expand(whole), Manifest, path)


def _record(found: dict[str, Any], kind: type[_Record], path: str) -> _Record:
    try:
        return msgspec.convert(found, kind)
    except msgspec.ValidationError as error:
        raise RequestError(f"{path}: {error}") from error


def _validate(found: dict[str, Any], kind: str, data: bytes, path: str) -> None:
    from jsonschema import Draft202012Validator

    errors = list(Draft202012Validator(resources.schema(kind)).iter_errors(found))  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType, reportUnknownArgumentType]
    if not errors:
        return
    # The first in reading order: a person mends a file from its top.
    lines = document.Lines(data)
    faults = [_innermost(error) for error in errors]
    faults.sort(key=lambda e: (lines.of(_where(e)) or 0, _dotted(e.absolute_path)))
    fault = faults[0]
    where = _where(fault)
    more = f" (and {len(faults) - 1} more)" if len(faults) > 1 else ""
    number = lines.of(where)
    place = path if number is None else f"{path}:{number}"
    raise RequestError(f"{place}: {_dotted(where) or 'the manifest'}: {_said(fault)}{more}")


def _place(data: bytes, path: str, where: document.Where) -> str:
    number = document.Lines(data).of(where)
    return path if number is None else f"{path}:{number}"


def _where(error: Any) -> document.Where:
    """The path to what is wrong: an unknown field itself, not the object that holds it."""
    named = _unknown(error)[:1] or ([error.instance] if _is_name(error) else [])
    return (*error.absolute_path, *named)


def _is_name(error: Any) -> bool:
    """Whether it is the name of a field that is wrong."""
    return "propertyNames" in list(error.absolute_schema_path)[-2:]


def _dotted(where: Any) -> str:
    text = ""
    for step in where:
        if isinstance(step, int):
            text += f"[{step}]"
        else:
            text += f".{step}" if step.isidentifier() else f"[{json.dumps(step)}]"
    return text.lstrip(".")


def _innermost(error: Any) -> Any:
    """Of a choice (`anyOf`), the fault in the alternative that was meant: the one of the right type."""
    while error.validator in ("anyOf", "oneOf") and error.context and not _is_one_field_of(error):
        meant = [e for alternative in _alternatives(error) if _is_meant(alternative, error) for e in alternative]
        # Every alternative of another type: the choice itself is the fault.
        if not meant:
            return error
        error = max(meant, key=lambda e: len(e.absolute_path))
    return error


def _is_one_field_of(error: Any) -> bool:
    """Whether a choice is between fields that an object may have."""
    return error.validator == "oneOf" and all(set(choice) == {"required"} for choice in error.validator_value)


def _alternatives(error: Any) -> list[list[Any]]:
    """The faults of a choice, alternative by alternative."""
    found: dict[Any, list[Any]] = {}
    for inner in error.context:
        found.setdefault(inner.schema_path[0], []).append(inner)
    return list(found.values())


def _is_meant(alternative: list[Any], outer: Any) -> bool:
    """Whether an alternative was meant: its type is right, and it is no list of words where an object stands."""
    here = [e for e in alternative if len(e.absolute_path) == len(outer.absolute_path)]
    return not any(e.validator == "type" or (e.validator == "enum" and isinstance(e.instance, dict)) for e in here)


def _said(error: Any) -> str:
    """What was expected, what was found, what to do."""
    found = _shown(error.instance)
    match error.validator:
        case "additionalProperties":
            return _unknown_said(error)
        case "required":
            missing = next(n for n in error.validator_value if n not in error.instance)
            return f"expected field {missing!r}, found none; add it ({_about(error, missing)})"
        case "dependentRequired":
            name, missing = _lonely(error)
            return f"field {name!r} expects {missing!r} beside it, found none; add it or take {name!r} out"
        case "enum" | "const":
            allowed = error.validator_value if error.validator == "enum" else [error.validator_value]
            return f"expected {_listed(allowed)}, found {found}{_nearest(error.instance, allowed)}"
        case "oneOf":
            one = " | ".join(n for s in error.validator_value for n in s.get("required", ()))
            return f"expected exactly one of {one}, found {found}; keep one"
        case "anyOf":
            return f"expected {_choice(error)}, found {found}; {_description(error)}"
        case "type":
            return f"expected {_listed_types(error.validator_value)}, found {found}; {_description(error)}"
        case "pattern":
            return f"expected text that matches {error.validator_value}, found {found}; {_description(error)}"
        case "uniqueItems":
            return f"expected every entry once, found {found}; keep one of each"
        case _:
            return f"expected {error.validator} {error.validator_value}, found {found}; {_description(error)}"


def _unknown(error: Any) -> list[str]:
    if error.validator != "additionalProperties" or error.validator_value is not False:
        return []
    return [name for name in error.instance if name not in error.schema.get("properties", {})]


def _unknown_said(error: Any) -> str:
    name, known = _unknown(error)[0], list(error.schema.get("properties", {}))
    close = difflib.get_close_matches(name, known, 1, 0.6)
    hint = f"did you mean {close[0]!r}?" if close else "take it out"
    return f"expected one of {', '.join(known)}, found {name!r}; {hint}"


def _lonely(error: Any) -> tuple[str, str]:
    return next(
        (name, need)
        for name, needs in error.validator_value.items()
        for need in needs
        if name in error.instance and need not in error.instance
    )


def _about(error: Any, field: str) -> str:
    text = error.schema.get("properties", {}).get(field, {}).get("description", "it is required")
    return text.rstrip(".")


def _description(error: Any) -> str:
    """What the field is, in the schema's words."""
    text = error.schema.get("description") or (error.parent is not None and error.parent.schema.get("description"))
    return text.rstrip(".") if text else "see the schema"


def _nearest(value: Any, allowed: list[Any]) -> str:
    words = [a for a in allowed if isinstance(a, str)]
    close = difflib.get_close_matches(value, words, 1, 0.6) if isinstance(value, str) else []
    return f"; did you mean {close[0]!r}?" if close else "; use one of them"


_TYPES = {
    "object": "an object", "array": "a list", "string": "text", "number": "a number", "integer": "a whole number",
    "boolean": "true or false", "null": "null",
}  # fmt: skip


def _listed_types(types: Any) -> str:
    return " or ".join(_TYPES[t] for t in ([types] if isinstance(types, str) else types))


def _listed(values: list[Any]) -> str:
    words = [json.dumps(v) if not isinstance(v, str) else v for v in values]
    return words[0] if len(words) == 1 else f"one of {', '.join(words)}"


def _choice(error: Any) -> str:
    """The alternatives of a choice, each in a word or two."""
    words: list[str] = []
    for inner in error.context:
        if inner.validator == "type":
            bound = inner.validator_value == "object" and inner.schema.get("title") == "bound value"
            words.append('{"config": KEY} or {"expr": ...}' if bound else _listed_types(inner.validator_value))
        elif inner.validator in ("enum", "const"):
            words.append(_listed(inner.validator_value if inner.validator == "enum" else [inner.validator_value]))
    return " or ".join(dict.fromkeys(words)) or "another value"


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        kind = "an object" if isinstance(value, dict) else "a list"
        inside = cast("Sized", value)
        return f"{kind} of {len(inside)}" if inside else f"an empty {'object' if kind == 'an object' else 'list'}"
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
