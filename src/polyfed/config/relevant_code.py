"""The part of a Python file that can affect a run: what happens before `polyfed.run`, without documentation."""

from __future__ import annotations

import ast
import copy

RUNS = frozenset({"run", "resume", "sweep"})  # functions of polyfed that run experiments

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def relevant_code(tree: ast.Module) -> ast.Module:
    """Return the code of a file without docstrings, unused imports, and what follows its last `polyfed.run`.

    The arguments of `polyfed.run` are left out too, because the config has them, except for modules in `models`.
    """
    tree = _WithoutDocstrings().visit(copy.deepcopy(tree))
    body = _Trimmer(tree).trim(tree.body)
    used = {
        node.id
        for statement in body
        if not isinstance(statement, ast.Import | ast.ImportFrom)
        for node in ast.walk(statement)
        if isinstance(node, ast.Name)
    }
    return ast.Module([statement for statement in body if _is_used(statement, used)], [])


def _is_used(statement: ast.stmt, names: set[str]) -> bool:
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return True
    bound = {(alias.asname or alias.name).partition(".")[0] for alias in statement.names}
    return "*" in bound or bool(bound & names)


class _WithoutDocstrings(ast.NodeTransformer):
    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            return None
        return self.generic_visit(node)


class _Trimmer:
    """Removes calls of `polyfed.run`, and what follows them."""

    def __init__(self, tree: ast.Module) -> None:
        self._modules: set[str] = set()  # names of polyfed in this file
        self._functions: set[str] = set()  # names of polyfed.run in this file
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._modules |= {a.asname or a.name for a in node.names if a.name == "polyfed"}
            elif isinstance(node, ast.ImportFrom) and node.module == "polyfed":
                self._functions |= {a.asname or a.name for a in node.names if a.name in RUNS}

    def trim(self, body: list[ast.stmt]) -> list[ast.stmt]:
        ends = [k for k, statement in enumerate(body, 1) if self._runs(statement)]
        # a guard such as if __name__ == "__main__" does not end a file: workers read on
        end = ends[-1] if ends and not isinstance(body[ends[-1] - 1], ast.If) else len(body)
        return [part for statement in body[:end] for part in self._trimmed(statement)]

    def _trimmed(self, statement: ast.stmt) -> list[ast.stmt]:
        if isinstance(statement, FUNCTIONS) and any(self._is_run(node) for node in ast.walk(statement)):
            statement.body = self.trim(statement.body) or [ast.Pass()]
        elif not self._runs(statement):
            pass
        elif isinstance(statement, ast.If | ast.With):
            statement.body = self.trim(statement.body) or [ast.Pass()]
        elif not isinstance(statement, ast.For | ast.While | ast.Try):  # in a loop, later code precedes the next run
            calls = [node for node in ast.walk(statement) if self._is_run(node) and isinstance(node, ast.Call)]
            return [ast.Expr(k.value) for call in calls for k in call.keywords if k.arg == "models"]
        return [statement]

    def _runs(self, node: ast.AST) -> bool:
        """Return whether a statement runs an experiment where it stands, not in a function that it defines."""
        if isinstance(node, (*FUNCTIONS, ast.Lambda)):
            return False
        return self._is_run(node) or any(self._runs(child) for child in ast.iter_child_nodes(node))

    def _is_run(self, node: ast.AST) -> bool:
        if not isinstance(node, ast.Call):
            return False
        function = node.func
        if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
            return function.value.id in self._modules and function.attr in RUNS
        return isinstance(function, ast.Name) and function.id in self._functions
