"""Dimension expressions (`n_heads * d_head`, `l >= first_dense`): parsed into a closed grammar, never evaluated as code.

Python's own parser turns the text into a tree; only the node types listed here are accepted, and the tree is walked by
us. Values are integers, floats, booleans, strings and lists; powers and products are bounded so that no expression can
ask for unbounded work.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

MAX_LENGTH = 400
LARGEST = 2**63


class ExpressionError(ValueError):
    """The text is outside the grammar, or its value is not defined."""


class UnknownSymbol(ExpressionError):
    """A symbol has no value here: the expression is unknown, not wrong."""

    def __init__(self, symbol: str) -> None:
        super().__init__(f"symbol {symbol!r} has no value")
        self.symbol = symbol


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow,
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
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ExpressionError(f"{text!r} is not an expression") from error
    for node in ast.walk(tree):
        if not isinstance(node, _ALLOWED):
            raise ExpressionError(f"{text!r}: {type(node).__name__} is not part of the grammar")
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS):
            raise ExpressionError(f"{text!r}: only {', '.join(sorted(_FUNCTIONS))} can be called")
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
    try:
        value = _walk(parse(text), env)
    except ExpressionError:
        raise
    except (TypeError, ValueError, ArithmeticError, LookupError) as error:
        raise ExpressionError(f"{text!r} has no value: {error}") from error
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise ExpressionError(f"{text!r} is larger than 2**63")
    return value


def _walk(node: ast.expr, env: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=value):
            return value
        case ast.Name(id=name):
            if name not in env:
                raise UnknownSymbol(name)
            return env[name]
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _walk(left, env), _walk(right, env)
            # Numbers only: a string or list times a number would be an allocation that the manifest chooses.
            if not all(isinstance(x, int | float) and abs(x) <= LARGEST for x in (a, b)):
                raise ExpressionError(f"{ast.unparse(node)}: arithmetic on {a!r} and {b!r}")
            if isinstance(op, ast.Pow) and (abs(b) > 64 or abs(a) > 2**32):
                raise ExpressionError(f"{ast.unparse(node)}: power out of range")
            return _BINARY[type(op)](a, b)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _walk(operand, env)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_walk(operand, env)
        case ast.BoolOp(op=ast.And(), values=values):
            return all(_walk(v, env) for v in values)
        case ast.BoolOp(values=values):
            return any(_walk(v, env) for v in values)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            a = _walk(left, env)
            for op, right in zip(ops, comparators, strict=True):
                b = _walk(right, env)
                if not _COMPARE[type(op)](a, b):
                    return False
                a = b
            return True
        case ast.Call(func=ast.Name(id=name), args=args):
            return _FUNCTIONS[name](*(_walk(a, env) for a in args))
        case ast.Subscript(value=value, slice=index):
            return _walk(value, env)[_walk(index, env)]
        case ast.List(elts=elts):
            return [_walk(e, env) for e in elts]
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return _walk(body if _walk(test, env) else orelse, env)
        case _:
            raise ExpressionError(f"{ast.unparse(node)} is not part of the grammar")
