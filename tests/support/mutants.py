"""Slips that tests should notice: `candidates` finds them in a source file, and `plant` puts one into the running process.

A slip is a small change of a function or of a constant: another comparison, a condition left out of an `and` or of the SQL, a call,
a filter or a keyword argument left out, a number off by one. Only the code of one function or the value of one constant is replaced.
"""

from __future__ import annotations

import ast
import gc
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import CodeType, FunctionType, ModuleType

from checkout import HOME

OPPOSITES: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
TWINS = {"min": "max", "max": "min", "any": "all", "all": "any"}
WRITES_LOG_LINE = re.compile(r"log_event|(log|logger|warnings)\..*|.*\.(debug|info|warning|exception)")

IS_SQL = re.compile(r"\b(select|update|insert into|delete from|where|case when)\b|\w = [:?']")
_VALUE = r"(?:\([^()]*\)|:\w+|\?|'[^']*'|[\w.]+(?:\([^()]*\))?)"
SQL_SLIPS: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(rf"(^|\bwhere|\band|\bon|\bwhen)(\s*)\b([\w.]+ (?:=|<>|<=|>=|<|>|is not|is|in) {_VALUE})"), r"\1\2(\3 or 1 = 1)"),
    (re.compile(rf"\b(or)(\s+)([\w.]+ (?:=|<>|<=|>=|<|>|is not|is|in) {_VALUE})"), r"\1\2(\3 and 1 = 0)"),
    (re.compile(r" < "), " <= "), (re.compile(r" > "), " >= "), (re.compile(r" <= "), " < "), (re.compile(r" >= "), " > "),
    (re.compile(r"\bmax\("), "min("), (re.compile(r"\bmin\("), "max("), (re.compile(r" desc\b"), ""), (re.compile(r"\bnot exists\b"), "exists"),
    (re.compile(r"\bis not null\b"), "is null"), (re.compile(r"(\w+) = \1 \+ "), r"\1 = "),
)  # fmt: skip


class NotLoaded(Exception):
    """The function to change is not found, or the slip changes its closure."""


@dataclass(frozen=True)
class Mutant:
    """One slip: where it is, what it changes, and by which number `candidates` finds it again."""

    file: str  # from the checkout
    line: int
    last_line: int
    function: str  # the outermost function, as Class.name; empty: a constant of the module
    says: str
    number: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function or 'constant'}: {self.says}"


@dataclass(frozen=True)
class _Change:
    node: ast.AST
    says: str
    apply: Callable[[], None]


def candidates(file: str, source: str) -> list[Mutant]:
    return [mutant for mutant, _ in _find(file, ast.parse(source))]


def _find(file: str, tree: ast.Module) -> Iterator[tuple[Mutant, _Change]]:
    number = 0
    for name, owner in _owners(tree, ""):
        for change in _changes(owner):
            line = getattr(change.node, "lineno", owner.lineno)
            yield Mutant(file, line, getattr(change.node, "end_lineno", None) or line, name, change.says, number), change
            number += 1


def _owners(parent: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, ast.stmt]]:
    """The functions and methods by their qualified names, and the constants of a module under an empty name."""
    for node in parent.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _owners(node, f"{prefix}{node.name}.")
        elif not prefix and isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None and not _is_type(node):
            yield "", node


def _is_type(node: ast.Assign | ast.AnnAssign) -> bool:
    """Whether an assignment names a type, as `Start = tuple[int, str]`. A slip in it cannot be planted after the import."""
    target = node.targets[0] if isinstance(node, ast.Assign) else node.target
    return isinstance(target, ast.Name) and re.fullmatch(r"_?[A-Z]\w*[a-z]\w*", target.id) is not None


def _changes(owner: ast.stmt) -> Iterator[_Change]:
    is_function = isinstance(owner, ast.FunctionDef | ast.AsyncFunctionDef)
    for root in owner.body if is_function else [owner.value]:  # type: ignore[attr-defined]
        for parent in [owner, *_walk(root)]:
            for field, value in ast.iter_fields(parent):
                if field in ("annotation", "returns", "decorator_list") or isinstance(parent, ast.Assert | ast.Raise):
                    continue
                if parent is owner and (field not in ("body", "value") or (is_function and root is not owner.body[0])):  # type: ignore[attr-defined]
                    continue
                for index, node in enumerate(value if isinstance(value, list) else [value]):
                    if (
                        not isinstance(node, ast.AST)
                        or _is_log_call(node)
                        or (parent is owner and is_function and _is_docstring(node))
                    ):
                        continue
                    yield from _of_node(parent, field, index if isinstance(value, list) else None, node)


def _walk(node: ast.AST) -> Iterator[ast.AST]:
    """A node and the nodes in it, without the calls that write a log line: tests do not compare them."""
    if not _is_log_call(node):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _walk(child)


def _is_log_call(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and WRITES_LOG_LINE.fullmatch(ast.unparse(node.func)) is not None


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _of_node(parent: ast.AST, field: str, index: int | None, node: ast.AST) -> Iterator[_Change]:
    def replaced(by: ast.AST, says: str = "") -> _Change:
        ast.copy_location(by, node)

        def apply() -> None:
            if index is None:
                setattr(parent, field, by)
            else:
                getattr(parent, field)[index] = by

        return _Change(node, says or f"`{_short(node)}` -> `{_short(by)}`", apply)

    match node:
        case ast.Compare(left, ops, comparators):
            for at, operator in enumerate(ops):
                other = [*ops[:at], OPPOSITES[type(operator)](), *ops[at + 1 :]]
                yield replaced(ast.Compare(left, other, comparators))
        case ast.BoolOp(op, values):
            yield replaced(ast.BoolOp(ast.And() if isinstance(op, ast.Or) else ast.Or(), values))
            for at in range(len(values)):
                rest = [*values[:at], *values[at + 1 :]]
                yield replaced(rest[0] if len(rest) == 1 else ast.BoolOp(op, rest))
        case ast.UnaryOp(ast.Not(), operand):
            yield replaced(operand)
        case ast.IfExp(test, body, orelse):
            yield replaced(ast.IfExp(test, orelse, body))
        case ast.BinOp(left, ast.Add() | ast.Sub() as op, right) if not isinstance(left, ast.Constant | ast.JoinedStr):
            yield replaced(ast.BinOp(left, ast.Sub() if isinstance(op, ast.Add) else ast.Add(), right))
        case ast.BinOp(left, ast.BitOr() | ast.BitAnd(), right):
            yield replaced(left)
            yield replaced(right)
        case ast.Call(func, args, keywords):
            if isinstance(func, ast.Name) and func.id in TWINS:
                yield replaced(ast.Call(ast.Name(TWINS[func.id], ast.Load()), args, keywords))
            for at, keyword in enumerate(keywords):
                if keyword.arg:
                    rest = ast.Call(func, args, [*keywords[:at], *keywords[at + 1 :]])
                    yield replaced(rest, f"`{_short(func)}(...)` without `{keyword.arg}={_short(keyword.value)}`")
        case ast.comprehension(target, iterated, ifs, is_async):
            for at in range(len(ifs)):
                rest = ast.comprehension(target, iterated, [*ifs[:at], *ifs[at + 1 :]], is_async)
                change = replaced(rest, f"without the filter `{_short(ifs[at])}`")
                yield _Change(ifs[at], change.says, change.apply)
        case ast.Expr(ast.Call() | ast.Await() | ast.Yield()) | ast.AugAssign():
            if not _is_log_call(node.value):
                yield replaced(ast.Pass(), f"without `{_short(node)}`")
        case ast.Constant(bool() as value):
            yield replaced(ast.Constant(not value))
        case ast.Constant(int() | float() as value):
            yield replaced(ast.Constant(value + 1))
        case ast.Constant(str() as text) if IS_SQL.search(text):
            for pattern, by in SQL_SLIPS:
                for found in pattern.finditer(text):
                    slip = found.expand(by)
                    before, after = text[: found.start()].split()[-3:], text[found.end() :].split()[:2]
                    says = f"SQL `{found[0].strip()}` -> `{slip.strip()}` in `{' '.join([*before, '...', *after])}`"
                    yield replaced(ast.Constant(text[: found.start()] + slip + text[found.end() :]), says)


def _short(node: ast.AST) -> str:
    return re.sub(r"\s+", " ", ast.unparse(node))[:90]


def plant(mutant: Mutant) -> None:
    """Put a slip into the modules of this process. Raises NotLoaded."""
    path = HOME / mutant.file
    module = import_module(mutant.file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))
    tree = ast.parse(path.read_text("utf-8"))
    found, change = next(each for each in _find(mutant.file, tree) if each[0].number == mutant.number)
    assert found == mutant
    change.apply()
    ast.fix_missing_locations(tree)
    if mutant.function:
        _replace_code(compile(tree, str(path), "exec", dont_inherit=True), str(path), mutant.function)
    else:
        _replace_constants(module, tree, mutant.line)


def _replace_code(module: CodeType, path: str, function: str) -> None:
    codes = {code.co_qualname: code for code in _codes(module)}
    gc.unfreeze()  # what the daemon has frozen in this process is not listed
    functions = [
        each
        for each in gc.get_objects()
        if isinstance(each, FunctionType) and each.__code__.co_filename == path and each.__code__.co_qualname == function
    ]
    if not functions or len(functions[0].__code__.co_freevars) != len(codes[function].co_freevars):
        raise NotLoaded(function)
    for each in functions:
        each.__code__ = codes[function]


def _codes(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _codes(each)


def _replace_constants(module: ModuleType, tree: ast.Module, line: int) -> None:
    """Compute a constant again, and those made from it, and put them wherever their old values were imported."""
    namespace = dict(vars(module))
    changed: set[str] = set()
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        read = {each.id for each in ast.walk(node.value) if isinstance(each, ast.Name)}
        if node.lineno <= line <= (node.end_lineno or 0) or read & changed:
            exec(compile(ast.Module([node], []), module.__file__ or "", "exec", dont_inherit=True), namespace)
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            changed |= {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    for name in changed:
        old, new = getattr(module, name), namespace[name]
        for other in list(sys.modules.values()):
            if getattr(other, "__dict__", {}).get(name) is old:
                setattr(other, name, new)


def sources(*packages: str) -> dict[str, str]:
    """The texts of the Python files in packages, or of single files, by their paths from the checkout."""
    found: dict[str, str] = {}
    for package in packages:
        place = HOME / package
        paths = sorted(place.rglob("*.py")) if place.is_dir() else [place]
        found |= {str(Path(path).relative_to(HOME)): path.read_text("utf-8") for path in paths}
    return found
