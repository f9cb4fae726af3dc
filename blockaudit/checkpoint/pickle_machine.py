"""A pickle, read and not run: it makes plain values, and what it would call becomes an inert description.

`pickle.Unpickler` is not used: it imports and calls what the file names, and allocates for any memo index the file
asks for. Here every opcode comes from `pickletools.genops`, the memo is a dictionary, and the only names that are
accepted are those that `Vocabulary` knows.
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, cast

from blockaudit.checkpoint.refusal import RefusedError, malformed, unsafe

# A state dict of 90,000 tensors takes three million steps and leaves a few thousand values on the stack. Every step
# may make an object of 60 bytes from one byte of the file: these two bound the memory that a hostile file can take.
MAX_STEPS = 3_500_000
MAX_STACK = 200_000


class Source(Protocol):
    """What genops reads from."""

    def read(self, n: int, /) -> bytes: ...
    def readline(self) -> bytes: ...
    def tell(self) -> int: ...


class Vocabulary(Protocol):
    """The names that a pickle may use, and what they mean."""

    def find(self, module: str, name: str) -> Any:
        """An inert stand-in for a global; raises RefusedError."""
        ...

    def call(self, function: Any, args: tuple[Any, ...]) -> Any:
        """The inert result of a call; raises RefusedError."""
        ...

    def persistent(self, pid: Any) -> Any:
        """What a persistent id stands for; raises RefusedError."""
        ...

    def build(self, target: Any, state: Any) -> None:
        """Give an inert object the state that the pickle has for it, or drop that; raises RefusedError."""
        ...


_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
# Opcodes that push their argument.
_ARGUMENT = frozenset((
    "INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT", "STRING", "BINSTRING",
    "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES",
    "BINBYTES8", "BYTEARRAY8",
))  # fmt: skip
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_LIST": list, "EMPTY_DICT": dict, "EMPTY_SET": list, "EMPTY_TUPLE": tuple}


@dataclass(eq=False, slots=True)
class Described:
    """An object that was not made: the name of its class, what it would be made of, and the state it was given."""

    name: str
    args: tuple[Any, ...] = ()
    state: Any = None

    def get(self, field: str) -> Any:
        """A field of its state, None where there is none of that name."""
        state: Any = self.state
        return cast("dict[Any, Any]", state).get(field) if isinstance(state, dict) else None


_KEYS = (str, int, float, bytes, type(None), Described)


class Machine:
    """One pickle's stack and memo. Its values are Python's plain ones and containers, and the vocabulary's."""

    def __init__(self, words: Vocabulary) -> None:
        self.words = words
        self.stack: list[Any] = []
        self.below: list[list[Any]] = []
        self.memo: dict[Any, Any] = {}

    def run(self, source: Source) -> Any:
        """The value of the pickle that starts at the source's position; leaves the source behind its last byte."""
        steps = 0
        try:
            for opcode, arg, _ in pickletools.genops(cast("Any", source)):
                steps += 1
                if steps > MAX_STEPS or len(self.stack) + len(self.below) > MAX_STACK:
                    raise RefusedError("unreadable-file", "its pickle takes more steps or stack than a state dict has")
                self._step(opcode.name, arg)
            return self.stack.pop()
        except (ValueError, IndexError, KeyError, TypeError, OverflowError, Warning) as error:
            raise malformed(str(error)[:120] or type(error).__name__) from error

    def _step(self, name: str, arg: Any) -> None:
        stack = self.stack
        if name in _ARGUMENT:
            stack.append(arg)
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(self.memo[arg])
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            self.memo[arg] = stack[-1]
        elif name == "MEMOIZE":
            self.memo[len(self.memo)] = stack[-1]
        elif name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "MARK":
            self.below.append(stack)
            self.stack = []
        elif name not in ("PROTO", "FRAME", "STOP"):
            handler = _HANDLERS.get(name)
            if handler is None:
                raise unsafe(f"the opcode {name}")
            handler(self, arg)

    def to_mark(self) -> list[Any]:
        items = self.stack
        self.stack = self.below.pop()
        return items


def _tuple(count: int) -> Callable[[Machine, Any], None]:
    def make(m: Machine, _: Any) -> None:
        if len(m.stack) < count:
            raise IndexError("the stack is too short")
        m.stack[-count:] = [tuple(m.stack[-count:])]

    return make


def _collect(kind: Callable[[list[Any]], Any]) -> Callable[[Machine, Any], None]:
    def make(m: Machine, _: Any) -> None:
        items = m.to_mark()
        m.stack.append(kind(items))

    return make


def put(target: Any, key: Any, value: Any) -> None:
    """Store where the key is a plain value or a description, which hashes by what it is and not by what it holds.

    Others are dropped: hashing a nested tuple may take for ever.
    """
    if not isinstance(target, dict):
        raise TypeError("an item is set on what is no dictionary")
    if isinstance(key, _KEYS):
        target[key] = value


def _pairs(items: list[Any]) -> dict[Any, Any]:
    made: dict[Any, Any] = {}
    for i in range(0, len(items) - 1, 2):
        put(made, items[i], items[i + 1])
    return made


def _setitems(m: Machine, _: Any) -> None:
    items = m.to_mark()
    target = m.stack[-1]
    for i in range(0, len(items) - 1, 2):
        put(target, items[i], items[i + 1])


def _setitem(m: Machine, _: Any) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    put(m.stack[-1], key, value)


def _extend(target: Any, items: list[Any]) -> None:
    if not isinstance(target, list):
        raise TypeError("an item is appended to what is no list")
    cast("list[Any]", target).extend(items)


def _appends(m: Machine, _: Any) -> None:
    items = m.to_mark()
    _extend(m.stack[-1], items)


def _append(m: Machine, _: Any) -> None:
    value = m.stack.pop()
    _extend(m.stack[-1], [value])


def _pop(m: Machine, _: Any) -> None:
    if m.stack:
        m.stack.pop()
    else:
        m.to_mark()


def _pop_mark(m: Machine, _: Any) -> None:
    m.to_mark()


def _dup(m: Machine, _: Any) -> None:
    m.stack.append(m.stack[-1])


def _global(m: Machine, arg: Any) -> None:
    module, _, name = str(arg).partition(" ")
    m.stack.append(m.words.find(module, name))


def _stack_global(m: Machine, _: Any) -> None:
    name, module = m.stack.pop(), m.stack.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise TypeError("a global is named by something that is no string")
    m.stack.append(m.words.find(module, name))


def _apply(m: Machine, function: Any, args: Any) -> None:
    if not isinstance(args, tuple):
        raise TypeError("a call's arguments are no tuple")
    m.stack.append(m.words.call(function, cast("tuple[Any, ...]", args)))


def _reduce(m: Machine, _: Any) -> None:
    args, function = m.stack.pop(), m.stack.pop()
    _apply(m, function, args)


def _newobj_ex(m: Machine, _: Any) -> None:
    keywords, args, function = m.stack.pop(), m.stack.pop(), m.stack.pop()
    if keywords:
        raise TypeError("a call has keyword arguments")
    _apply(m, function, args)


def _inst(m: Machine, arg: Any) -> None:
    items = m.to_mark()
    module, _, name = str(arg).partition(" ")
    _apply(m, m.words.find(module, name), tuple(items))


def _obj(m: Machine, _: Any) -> None:
    items = m.to_mark()
    _apply(m, items[0], tuple(items[1:]))


def _binpersid(m: Machine, _: Any) -> None:
    m.stack.append(m.words.persistent(m.stack.pop()))


def _persid(m: Machine, arg: Any) -> None:
    m.stack.append(m.words.persistent(arg))


def _build(m: Machine, _: Any) -> None:
    state = m.stack.pop()
    m.words.build(m.stack[-1], state)


_HANDLERS: dict[str, Callable[[Machine, Any], None]] = {
    "TUPLE1": _tuple(1), "TUPLE2": _tuple(2), "TUPLE3": _tuple(3), "TUPLE": _collect(tuple),
    "LIST": _collect(list), "DICT": _collect(_pairs), "FROZENSET": _collect(list),
    "SETITEM": _setitem, "SETITEMS": _setitems, "APPEND": _append, "APPENDS": _appends, "ADDITEMS": _appends,
    "POP": _pop, "POP_MARK": _pop_mark, "DUP": _dup, "GLOBAL": _global, "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce, "NEWOBJ": _reduce, "NEWOBJ_EX": _newobj_ex, "INST": _inst, "OBJ": _obj,
    "BINPERSID": _binpersid, "PERSID": _persid, "BUILD": _build,
}  # fmt: skip
