"""Random one-line faults of today's product: how many of them do the tests catch?

A fault changes one operator, bound, condition, `await`, returned value or constant, or removes a statement. Log lines
are left out, since no test makes claims about them, and so are docstrings and annotations.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.mutants import ROOT, Mutant

PRODUCT = ROOT / "src" / "asr_server"
_COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.BitOr: "&"}


@dataclass(frozen=True, slots=True)
class _Change:
    node: ast.expr | ast.stmt  # on one line
    new: str
    what: str


def draw(count: int, seed: int) -> list[Mutant]:
    """Return this many faults, each in another place, every place equally likely."""
    paths = [path for path in sorted(PRODUCT.rglob("*.py")) if not path.name.endswith(("_test.py", "conftest.py"))]
    places = [(path, change) for path in paths for change in _changes(path.read_text(encoding="utf-8"))]
    drawn = random.Random(seed).sample(places, count)
    return [_mutant(number, path, change) for number, (path, change) in enumerate(drawn, start=1)]


def stages(mutant: Mutant) -> list[list[str]]:
    """Return the tests to run in stages until one catches the fault: the tests of the module, of its folder, and the
    contract."""
    module = ROOT / mutant.file
    folder = module.parent if any(module.parent.glob("*_test.py")) else module.parent.parent
    beside = sorted(folder.rglob("*_test.py"))
    own = [path for path in beside if path.name.startswith(module.stem)]
    contract = sorted((ROOT / "E2Etest" / "contract").glob("test_*.py"))
    return [_named(tests) for tests in (own, [path for path in beside if path not in own], contract) if tests]


def _named(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def _mutant(number: int, path: Path, change: _Change) -> Mutant:
    source = path.read_text(encoding="utf-8")
    lines = source.splitlines(keepends=True)
    at = change.node.lineno - 1
    begin, end = (len(lines[at].encode()[:column].decode()) for column in _columns(change.node))
    changed = lines[at][:begin] + change.new + lines[at][end:]
    first, last = at, at + 1  # grown until the text occurs once
    while source.count("".join(lines[first:last])) > 1:
        first, last = max(0, first - 1), last + 1
    old, new = "".join(lines[first:last]), "".join([*lines[first:at], changed, *lines[at + 1 : last]])
    name = str(path.relative_to(ROOT))
    what = f"{change.what} at line {at + 1}: {lines[at].strip()}"
    return Mutant(f"drawn-{number}", what, name, [(old, new)], [])


def _columns(node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_col_offset is not None
    return node.col_offset, node.end_col_offset


def _changes(source: str) -> Iterator[_Change]:
    for node in _code(ast.parse(source)):
        if isinstance(node, ast.expr | ast.stmt) and node.lineno == node.end_lineno:
            yield from _of(node)


def _code(node: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below, except annotations, decorators, lines of the log and code for type checkers."""
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not _is_left_out(child):
                yield child
                yield from _code(child)


def _is_left_out(node: ast.AST) -> bool:
    match node:
        case ast.Expr(ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.JoinedStr():
            return True
        case ast.If(ast.Name("TYPE_CHECKING")):
            return True
        case ast.Expr(ast.Call()):
            return ast.unparse(node).startswith("logger.")
    return False


def _of(node: ast.expr | ast.stmt) -> Iterator[_Change]:
    match node:
        case ast.Compare(left, [operator], [right]):
            yield _Change(
                node, f"{ast.unparse(left)} {_COMPARISONS[type(operator)]} {ast.unparse(right)}", "comparison"
            )
        case ast.BinOp(left, operator, right) if type(operator) in _OPERATORS:
            yield _Change(node, f"({ast.unparse(left)} {_OPERATORS[type(operator)]} {ast.unparse(right)})", "operator")
        case ast.BoolOp(operator, values):
            other = " or " if isinstance(operator, ast.And) else " and "
            yield _Change(node, f"({other.join(f'({ast.unparse(value)})' for value in values)})", "condition")
        case ast.UnaryOp(ast.Not(), operand):
            yield _Change(node, f"bool({ast.unparse(operand)})", "condition")
        case ast.IfExp(test, body, orelse):
            yield _Change(node, f"({ast.unparse(orelse)} if {ast.unparse(test)} else {ast.unparse(body)})", "condition")
        case ast.Constant(int(value) | float(value)) if not isinstance(value, bool):
            yield _Change(node, f"{value + 1}", "constant")
        case ast.Constant(bool(value)):
            yield _Change(node, f"{not value}", "constant")
        case ast.Expr(ast.Await(value)):
            yield _Change(node, ast.unparse(value), "no await")
            yield _Change(node, "pass", "removed")
        case ast.Expr() | ast.AugAssign() | ast.Delete() | ast.Raise():
            yield _Change(node, "pass", "removed")
        case ast.Return(ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield _Change(node, "return None", "returned value")
        case ast.Continue() | ast.Break():
            yield _Change(node, "pass", "removed")
