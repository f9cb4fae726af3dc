"""Dimension expressions (`n_heads * d_head`, `l >= first_dense`): parsed into a closed grammar, never run as code.

Python's own parser turns the text into a tree; only the node types listed here are accepted, and the tree is walked by
us. Values are integers, floats, booleans, strings and lists; powers and products are bounded so that no expression can
ask for unbounded work.
"""

from __future__ import annotations

import ast
import math
import operator
import warnings
from collections.abc import Callable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any, cast

MAX_LENGTH = 400
LARGEST = 2**63
# An expression as a function of its symbols.
_Program = Callable[[Mapping[str, Any]], Any]
_NO_VALUE = (TypeError, ValueError, ArithmeticError, LookupError)


class ExpressionError(ValueError):
    """The text is outside the grammar, or its value is not defined."""


class UnknownSymbol(ExpressionError):
    """A symbol has no value here: the expression is unknown, not wrong."""

    def __init__(self, symbol: str) -> None:
        super().__init__(f"symbol {symbol!r} has no value")
        self.symbol = symbol


class _Outside(ExpressionError):
    """A part of an expression with operands that it does not take: put into words only where somebody reads it."""

    def __init__(self, node: ast.expr, why: str, *operands: Any) -> None:
        super().__init__(why)
        self._said = (node, why, operands)

    def __str__(self) -> str:
        node, why, operands = self._said
        return f"{ast.unparse(node)}: {why}" + (f" {' and '.join(map(repr, operands))}" if operands else "")


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b, ast.Sub: lambda a, b: a - b, ast.Mult: lambda a, b: a * b,
    ast.Div: lambda a, b: a / b, ast.FloorDiv: lambda a, b: a // b, ast.Mod: lambda a, b: a % b,
    ast.Pow: lambda a, b: a**b,
}  # fmt: skip
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge, ast.In: lambda a, b: a in b, ast.NotIn: lambda a, b: a not in b, ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
}  # fmt: skip
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min, "max": max, "len": len, "sqrt": math.sqrt, "ceil": math.ceil,
}  # fmt: skip


@cache
def parse(text: str) -> ast.expr:
    """The tree of `text`, checked against the grammar. Raises ExpressionError."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"expression of {len(text)} characters; at most {MAX_LENGTH}")
    try:
        with warnings.catch_warnings():
            # Python remarks on odd literals; the text is not the user's program.
            warnings.simplefilter("ignore")
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text!r} is not an expression") from error
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ExpressionError(f"{text!r}: {type(node).__name__} is not part of the grammar")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            raise ExpressionError(f"{text!r}: only {', '.join(sorted(_FUNCTIONS))} can be called")
        if isinstance(node, ast.Constant) and not isinstance(node.value, int | float | str | None):
            raise ExpressionError(f"{text!r}: {node.value!r} is not part of the grammar")
    return tree


_ALLOWED = (
    ast.BinOp, ast.UnaryOp, ast.BoolOp, ast.Compare, ast.Call, ast.Name, ast.Constant, ast.Subscript, ast.List,
    ast.Load, ast.operator, ast.unaryop, ast.boolop, ast.cmpop, ast.IfExp,
)  # fmt: skip


@cache
def symbols(text: str) -> tuple[str, ...]:
    """Names that `text` reads, in order of appearance, function names left out."""
    called = {id(n.func) for n in ast.walk(parse(text)) if isinstance(n, ast.Call)}
    names = [n.id for n in ast.walk(parse(text)) if isinstance(n, ast.Name) and id(n) not in called]
    return tuple(dict.fromkeys(names))


def evaluate(text: str, env: Mapping[str, Any]) -> Any:
    """The value of `text` where `env` gives each symbol. Raises UnknownSymbol, ExpressionError."""
    return _valued(text, _program(text), env)


def function_of(symbol: str, text: str, env: Mapping[str, Any]) -> Callable[[Any], Any]:
    """`text` as a function of one symbol, where `env` gives all others: what they decide is worked out here, once.

    The function gives what `evaluate` gives, and raises what it raises.
    """
    others = {name: value for name, value in env.items() if name != symbol}
    program = _compiled(_Folding(others).visit(deepcopy(parse(text))))
    return lambda value: _valued(text, program, {**others, symbol: value})


class _Folding(ast.NodeTransformer):
    """Puts values in the place of the largest parts of a tree that have one under `env`."""

    def __init__(self, env: Mapping[str, Any]) -> None:
        self._env = env

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.expr):
            return node
        try:
            return ast.Constant(_compiled(node)(self._env))
        except (ExpressionError, *_NO_VALUE):
            pass  # it reads the free symbol, or fails wherever it is reached
        folded = self.generic_visit(node)
        if isinstance(folded, ast.Compare) and isinstance(folded.ops[0], ast.In | ast.NotIn) and len(folded.ops) == 1:
            folded.comparators = [_members(c) for c in folded.comparators]
        return folded


def _members(node: ast.expr) -> ast.expr:
    """A list whose members are asked for again and again."""
    held: Any = node.value if isinstance(node, ast.Constant) else None
    if not isinstance(held, list):
        return node
    return ast.Constant(cast(Any, _Members(cast("list[Any]", held))))


class _Members:
    """The members of a list of config.json, found without going through it: a hostile one is long."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self._scalars = frozenset(i for i in items if not isinstance(i, list | dict))

    def __contains__(self, item: Any) -> bool:
        # A list or an object equals no scalar.
        return item in (self._items if isinstance(item, list | dict) else self._scalars)


@cache
def _program(text: str) -> _Program:
    return _compiled(parse(text))


def _valued(text: str, program: _Program, env: Mapping[str, Any]) -> Any:
    try:
        value = program(env)
    except ExpressionError:
        raise
    except _NO_VALUE as error:
        raise ExpressionError(f"{text!r} has no value: {error}") from error
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise ExpressionError(f"{text!r} is larger than 2**63")
    return value


def _compiled(node: ast.expr) -> _Program:
    """A tree as a function: its shape is looked at once, however often it is evaluated."""
    return _COMPILERS[type(node)](node)


def _constant(node: ast.Constant) -> _Program:
    held: Any = node.value
    return lambda env: held


def _name(node: ast.Name) -> _Program:
    name = node.id

    def value(env: Mapping[str, Any]) -> Any:
        if name not in env:
            raise UnknownSymbol(name)
        return env[name]

    return value


def _arithmetic(node: ast.BinOp) -> _Program:
    left, right, operation = _compiled(node.left), _compiled(node.right), _BINARY.get(type(node.op))
    power = isinstance(node.op, ast.Pow)

    def value(env: Mapping[str, Any]) -> Any:
        a, b = left(env), right(env)
        # Numbers only: a string or list times a number would be an allocation that the manifest chooses.
        if not (_is_number(a) and _is_number(b)):
            raise _Outside(node, "arithmetic on", a, b)
        if power and (abs(b) > 64 or abs(a) > 2**32):
            raise _Outside(node, "power out of range")
        if operation is None:
            raise _Outside(node, f"{type(node.op).__name__} is not part of the grammar")
        found = operation(a, b)
        if isinstance(found, complex):
            raise _Outside(node, "a root of a negative number")
        return found

    return value


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and -LARGEST <= value <= LARGEST


def _unary(node: ast.UnaryOp) -> _Program:
    operand, denied, negated = _compiled(node.operand), isinstance(node.op, ast.Not), isinstance(node.op, ast.USub)

    def value(env: Mapping[str, Any]) -> Any:
        found = operand(env)
        if denied:
            return not found
        if negated and isinstance(found, int | float):
            return -found
        raise ExpressionError(f"{ast.unparse(node)} is not part of the grammar")

    return value


def _connective(node: ast.BoolOp) -> _Program:
    parts, decides = [_compiled(v) for v in node.values], isinstance(node.op, ast.Or)

    def value(env: Mapping[str, Any]) -> bool:
        for part in parts:
            if bool(part(env)) is decides:
                return decides
        return not decides

    return value


def _comparison(node: ast.Compare) -> _Program:
    first = _compiled(node.left)
    rest = [(_COMPARE[type(op)], _compiled(right)) for op, right in zip(node.ops, node.comparators, strict=True)]

    def value(env: Mapping[str, Any]) -> bool:
        a = first(env)
        for holds, right in rest:
            b = right(env)
            if not holds(a, b):
                return False
            a = b
        return True

    return value


def _call(node: ast.Call) -> _Program:
    # parse() has seen to it that the function is one of ours.
    function = _FUNCTIONS[node.func.id if isinstance(node.func, ast.Name) else ""]
    arguments = [_compiled(a) for a in node.args]
    return lambda env: function(*(a(env) for a in arguments))


def _subscript(node: ast.Subscript) -> _Program:
    of, index = _compiled(node.value), _compiled(node.slice)
    return lambda env: of(env)[index(env)]


def _list(node: ast.List) -> _Program:
    parts = [_compiled(e) for e in node.elts]
    return lambda env: [part(env) for part in parts]


def _choice(node: ast.IfExp) -> _Program:
    test, then, other = _compiled(node.test), _compiled(node.body), _compiled(node.orelse)
    return lambda env: then(env) if test(env) else other(env)


_COMPILERS: dict[type[ast.expr], Callable[[Any], _Program]] = {
    ast.Constant: _constant, ast.Name: _name, ast.BinOp: _arithmetic, ast.UnaryOp: _unary, ast.BoolOp: _connective,
    ast.Compare: _comparison, ast.Call: _call, ast.Subscript: _subscript, ast.List: _list, ast.IfExp: _choice,
}  # fmt: skip
