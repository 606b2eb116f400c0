"""Shell arithmetic on whole numbers, as far as its values are known."""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

_NAME = re.compile(r"\$?\{?([A-Za-z_]\w*)\}?")
_OPERATORS = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
MOST = 10**12


def computed(text: str, value_of: Callable[[str], str]) -> str:
    """
    The value of an expression, a single unknown value unchanged; "" if it cannot be computed.

    >>> computed("N * 8 + ${A}", {"N": "2", "A": "1"}.get)
    '17'
    """
    text = text.strip()
    if single := _NAME.fullmatch(text):
        return value_of(single[1])
    if len(text) > 200:
        return ""
    values = _NAME.sub(lambda m: f"({value_of(m[1])})", text)
    if not re.fullmatch(r"[\d\s()+*/%-]*", values) or not values:
        return ""
    try:
        return str(_value(ast.parse(values.replace("/", "//"), mode="eval").body))
    except (SyntaxError, ValueError, ZeroDivisionError, RecursionError, MemoryError):
        return ""


def _value(node: ast.expr) -> int:
    if isinstance(node, ast.Constant) and isinstance(node.value, int) and abs(node.value) < MOST:
        return node.value
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -_value(node.operand)
    if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        made = int(_OPERATORS[type(node.op)](_value(node.left), _value(node.right)))
        if abs(made) < MOST:
            return made
    raise ValueError("not a sum")
