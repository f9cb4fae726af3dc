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
from typing import Any

MAX_LENGTH = 400
LARGEST = 2**63
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
    return _valued(text, parse(text), env)


def function_of(symbol: str, text: str, env: Mapping[str, Any]) -> Callable[[Any], Any]:
    """`text` as a function of one symbol, where `env` gives all others: what they decide is worked out here, once.

    The function gives what `evaluate` gives, and raises what it raises.
    """
    others = {name: value for name, value in env.items() if name != symbol}
    tree = _Folding(others).visit(deepcopy(parse(text)))
    return lambda value: _valued(text, tree, {**others, symbol: value})


class _Folding(ast.NodeTransformer):
    """Puts values in the place of the largest parts of a tree that have one under `env`."""

    def __init__(self, env: Mapping[str, Any]) -> None:
        self._env = env

    def visit(self, node: ast.AST) -> Any:
        if not isinstance(node, ast.expr):
            return node
        try:
            return ast.Constant(_walk(node, self._env))
        except (ExpressionError, *_NO_VALUE):
            pass  # it reads the free symbol, or fails wherever it is reached
        folded = self.generic_visit(node)
        if isinstance(folded, ast.Compare) and isinstance(folded.ops[0], ast.In | ast.NotIn) and len(folded.ops) == 1:
            folded.comparators = [_members(c) for c in folded.comparators]
        return folded


def _members(node: ast.expr) -> ast.expr:
    """A list whose members are asked for again and again."""
    held: Any = node.value if isinstance(node, ast.Constant) else None
    return ast.Constant(_Members(held)) if isinstance(held, list) else node  # pyright: ignore[reportArgumentType]


class _Members:
    """The members of a list of config.json, found without going through it: a hostile one is long."""

    def __init__(self, items: list[Any]) -> None:
        self._items = items
        self._scalars = frozenset(i for i in items if not isinstance(i, list | dict))

    def __contains__(self, item: Any) -> bool:
        # A list or an object equals no scalar.
        return item in (self._items if isinstance(item, list | dict) else self._scalars)


def _valued(text: str, tree: ast.expr, env: Mapping[str, Any]) -> Any:
    try:
        value = _walk(tree, env)
    except ExpressionError:
        raise
    except _NO_VALUE as error:
        raise ExpressionError(f"{text!r} has no value: {error}") from error
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise ExpressionError(f"{text!r} is larger than 2**63")
    return value


def _walk(node: ast.expr, env: Mapping[str, Any]) -> Any:
    evaluator = _EVALUATORS.get(type(node))
    if evaluator is None:
        raise ExpressionError(f"{ast.unparse(node)} is not part of the grammar")
    return evaluator(node, env)


def _name(node: ast.Name, env: Mapping[str, Any]) -> Any:
    if node.id not in env:
        raise UnknownSymbol(node.id)
    return env[node.id]


def _arithmetic(node: ast.BinOp, env: Mapping[str, Any]) -> Any:
    a, b = _walk(node.left, env), _walk(node.right, env)
    # Numbers only: a string or list times a number would be an allocation that the manifest chooses.
    if not all(isinstance(x, int | float) and abs(x) <= LARGEST for x in (a, b)):
        raise _Outside(node, "arithmetic on", a, b)
    if isinstance(node.op, ast.Pow) and (abs(b) > 64 or abs(a) > 2**32):
        raise _Outside(node, "power out of range")
    operation = _BINARY.get(type(node.op))
    if operation is None:
        raise ExpressionError(f"{ast.unparse(node)}: {type(node.op).__name__} is not part of the grammar")
    value = operation(a, b)
    if isinstance(value, complex):
        raise _Outside(node, "a root of a negative number")
    return value


def _unary(node: ast.UnaryOp, env: Mapping[str, Any]) -> Any:
    value = _walk(node.operand, env)
    if isinstance(node.op, ast.Not):
        return not value
    if isinstance(node.op, ast.USub) and isinstance(value, int | float):
        return -value
    raise ExpressionError(f"{ast.unparse(node)} is not part of the grammar")


def _connective(node: ast.BoolOp, env: Mapping[str, Any]) -> bool:
    joined = all if isinstance(node.op, ast.And) else any
    return joined(_walk(v, env) for v in node.values)


def _comparison(node: ast.Compare, env: Mapping[str, Any]) -> bool:
    a = _walk(node.left, env)
    for op, right in zip(node.ops, node.comparators, strict=True):
        b = _walk(right, env)
        if not _COMPARE[type(op)](a, b):
            return False
        a = b
    return True


def _call(node: ast.Call, env: Mapping[str, Any]) -> Any:
    # parse() has seen to it that the function is one of ours.
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    return _FUNCTIONS[name](*(_walk(a, env) for a in node.args))


_EVALUATORS: dict[type[ast.expr], Callable[[Any, Mapping[str, Any]], Any]] = {
    ast.Constant: lambda node, env: node.value,
    ast.Name: _name,
    ast.BinOp: _arithmetic,
    ast.UnaryOp: _unary,
    ast.BoolOp: _connective,
    ast.Compare: _comparison,
    ast.Call: _call,
    ast.Subscript: lambda node, env: _walk(node.value, env)[_walk(node.slice, env)],
    ast.List: lambda node, env: [_walk(e, env) for e in node.elts],
    ast.IfExp: lambda node, env: _walk(node.body if _walk(node.test, env) else node.orelse, env),
}
