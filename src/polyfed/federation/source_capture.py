"""Source code of functions and classes that no file holds: those of notebook cells and interactive sessions.

`SourceModule` collects the source of an object and of everything that it uses, as the text of a module.
"""

from __future__ import annotations
import __future__

import ast
import builtins
import contextlib
import linecache
import symtable
import sys
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from polyfed.errors import InputError

REMEDY = "put the code into a file and name the file in imports, or set engine.name: serial"


class SourceModule:
    """The text of a module that defines objects of a session without a file."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._defined: dict[str, Any] = {}
        self._future = False

    @property
    def text(self) -> str:
        return "".join(["from __future__ import annotations\n" * (self._future and bool(self._parts)), *self._parts])

    def define(self, value: Any, owner: str) -> str:
        """Add a function or class with all that it uses. Return the name that it has in the module.

        Raise `InputError` if its source is not known; `owner` says in the message what needs it.
        """
        if "<locals>" in value.__qualname__ and value.__name__ != "<lambda>":
            raise InputError(f"{owner} is defined inside of a function, where no other process finds it; {REMEDY}")
        found = find_source(value)
        if found is None or value.__module__ not in sys.modules or getattr(value, "__closure__", None):
            raise InputError(f"the source of {owner} cannot be read, so it cannot be sent to workers; {REMEDY}")
        node, text, flags = found
        name = value.__name__
        if isinstance(node, ast.Lambda):
            name = f"lambda_{len(self._parts)}"
            text = f"{name} = ({text})"
        if name in self._defined:
            if self._defined[name] is value:
                return str(name)
            raise InputError(f"{owner} needs two different objects called '{name}'; {REMEDY}")
        self._defined[name] = value
        self._future |= bool(flags & __future__.annotations.compiler_flag)
        names = sys.modules[value.__module__].__dict__
        for used in sorted(_global_names(node, text)):
            if used in names and not hasattr(builtins, used) and used != value.__name__:
                self._add(used, names[used], owner)
        self._parts.append(f"{text}\n")
        return str(name)

    def _add(self, name: str, value: Any, owner: str) -> None:
        """Add a global variable that a captured object uses."""
        if name in self._defined:
            if self._defined[name] is not value:
                raise InputError(f"{owner} needs two different objects called '{name}'; {REMEDY}")
            return
        if isinstance(value, ModuleType):
            line = f"import {value.__name__} as {name}"
        elif (imported := _import_line(name, value)) is not None:
            line = imported
        elif isinstance(value, FunctionType | type) and value.__name__ == name:
            self.define(value, f"'{name}', which {owner} uses,")
            return
        elif _is_literal(value):
            line = f"{name} = {value!r}"
        else:
            raise InputError(
                f"{owner} uses the variable '{name}', a {type(value).__name__}, which cannot be sent to workers; "
                f"{REMEDY}"
            )
        self._defined[name] = value
        self._parts.append(f"{line}\n")


def _global_names(node: ast.AST, text: str) -> set[str]:
    """Return the global variables that a definition uses, without its parameters and local variables.

    Names in annotations count, even if they are not evaluated: they may give the types of options.
    """
    names: set[str] = set()
    scopes = [symtable.symtable(textwrap.dedent(text), "<captured>", "exec")]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        outermost = scope.get_type() == "module"
        names |= {s.get_name() for s in scope.get_symbols() if s.is_referenced() and (outermost or s.is_global())}
    for part in ast.walk(node):
        annotations = (getattr(part, "annotation", None), getattr(part, "returns", None))
        names |= {n.id for a in annotations if a is not None for n in ast.walk(a) if isinstance(n, ast.Name)}
    return names


def _import_line(name: str, value: Any) -> str | None:
    """Return the statement that imports an object of another module, or None if there is none."""
    module = getattr(value, "__module__", None)
    if not isinstance(module, str) or not has_file(module):
        return None
    for attribute in (getattr(value, "__qualname__", None), getattr(value, "_name", None), name):
        if isinstance(attribute, str) and attribute.isidentifier():
            with contextlib.suppress(AttributeError):
                if getattr(sys.modules[module], attribute) is value:
                    return f"from {module} import {attribute} as {name}"
    return None


def has_file(module: str) -> bool:
    """Return whether other processes can import a loaded module by its name."""
    loaded = sys.modules.get(module)
    return loaded is not None and module != "__main__" and getattr(loaded, "__spec__", None) is not None


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return False


def find_source(value: Any) -> tuple[ast.AST, str, int] | None:
    """Return the syntax tree, the text and the compiler flags of a function's or class's definition.

    `inspect.getsource` finds no classes of notebooks, because their module has no file. Their methods know the cell.
    """
    for code in _code_objects(value):
        text = "".join(linecache.getlines(code.co_filename))
        with contextlib.suppress(SyntaxError):
            nodes = [node for node in ast.walk(ast.parse(text)) if _defines(node, value, code)]
            if len(nodes) == 1:
                return nodes[0], _text_of(nodes[0], text), code.co_flags
    return None


def _code_objects(value: Any) -> Iterator[CodeType]:
    if isinstance(value, FunctionType):
        yield value.__code__
    elif isinstance(value, type):
        for member in vars(value).values():
            function = getattr(member, "__func__", getattr(member, "fget", member))
            function = getattr(function, "__wrapped__", function)
            if isinstance(function, FunctionType):
                yield function.__code__


def _defines(node: ast.AST, value: Any, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return value.__name__ == "<lambda>" and node.lineno == code.co_firstlineno
    if isinstance(node, ast.FunctionDef) and isinstance(value, FunctionType):
        return node.name == value.__name__ and _first_line(node) == code.co_firstlineno
    if isinstance(node, ast.ClassDef) and isinstance(value, type):
        inside = node.lineno <= code.co_firstlineno <= (node.end_lineno or node.lineno)
        return node.name == value.__name__ and inside
    return False


def _first_line(node: ast.FunctionDef | ast.ClassDef) -> int:
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _text_of(node: ast.AST, text: str) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return "\n".join(text.splitlines()[_first_line(node) - 1 : node.end_lineno])
    return ast.get_source_segment(text, node) or ""
