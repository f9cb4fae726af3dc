"""Which fields of a config a class reads while it is built and run."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from threading import Lock
from typing import Any, cast

_LOCK = Lock()


@contextmanager
def watched(config: Any) -> Generator[set[str]]:
    """The names of attributes that are read of any config of this class meanwhile."""
    cls = cast("Any", type(config))
    own, read = cls.__dict__.get("__getattribute__"), cls.__getattribute__
    seen: set[str] = set()

    def look(self: Any, name: str) -> Any:
        seen.add(name)
        return read(self, name)

    with _LOCK:  # the class is everybody's
        cls.__getattribute__ = look
        try:
            yield seen
        finally:
            if own is None:
                del cls.__getattribute__
            else:
                cls.__getattribute__ = own


def unread(config: Any, data: Mapping[str, Any], seen: set[str]) -> tuple[str, ...]:
    """Fields of config.json that no attribute that was read stands for, by any of its names."""
    spelled = cast("dict[str, str]", getattr(config, "attribute_map", {}))
    real = {spelled.get(name, name) for name in seen}
    return tuple(k for k in data if spelled.get(k, k) not in real)


def consumed(config: Any, data: Mapping[str, Any], key: str) -> bool:
    """Whether the config class itself makes another field of this one: with it changed, some other field differs."""
    cls = cast("Any", type(config))
    name = cast("dict[str, str]", getattr(config, "attribute_map", {})).get(key, key)

    def others(fields: Mapping[str, Any]) -> dict[str, Any]:
        made = cast("dict[str, Any]", vars(cls.from_dict(dict(fields))))
        return {k: v for k, v in made.items() if k not in (key, name) and not k.startswith("_")}

    without = {k: v for k, v in data.items() if k != key}
    try:
        return any(others(data) != others(changed) for changed in (without, {**data, key: _another(data[key])}))
    except Exception:  # a config class may raise anything where it lacks what it reads
        return True


def _another(value: Any) -> Any:
    """A value that a config class would tell from this one."""
    if isinstance(value, bool):
        return not value
    return value * 2 + 1 if isinstance(value, int | float) else value
