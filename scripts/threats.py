"""Write the table of methods in docs/threats.md, from the declared messages of every method.

Run `python scripts/threats.py` after a change of a method's messages; `tests/docs/test_threats.py` compares the page.
"""

from __future__ import annotations

from pathlib import Path

from polyfed import catalogue
from polyfed.core.method import Method
from polyfed.core.schema import Field, TableField, TensorField, TreeField, WeightsField
from polyfed.guards.protections import steps_by_field

PAGE = Path(__file__).parents[1] / "docs" / "threats.md"
START, END = "<!-- methods: written by scripts/threats.py -->", "<!-- end of methods -->"
# fedktl needs a generator of the user's; its messages do not depend on it
REQUIRED = {"fedktl": {"source": "g.py", "checkpoint": "g.pt", "sha256": "0" * 64, "pretraining": "images"}}


def table() -> str:
    """Return a row for each method: what noise can protect by row, by message or not at all, and the evaluations."""
    lines = [
        "| method | noise for each row | noise for the whole field | never noised | evaluates models that are not its own |",
        "|---|---|---|---|---|",
    ]
    for name, info in sorted(catalogue.methods().items()):
        method = catalogue.make({"name": name, **REQUIRED.get(name, {})})
        columns: dict[str, list[str]] = {"row": [], "message": [], "never": []}
        for field, steps in steps_by_field(method).items():
            kinds = [getattr(type(method), step).messages.up[field] for step in steps]
            columns[_protection(kinds, method)].append(f"`{field}`")
        adopts = "yes" if type(method).adopt is not Method.adopt else "no"
        cells = [", ".join(columns[column]) or "-" for column in ("row", "message", "never")]
        lines.append(f"| [{info.name}](methods/{name}.md) | {' | '.join(cells)} | {adopts} |")
    return "\n".join(lines)


def _protection(kinds: list[Field], method: Method) -> str:
    if not all(isinstance(kind, TensorField | TableField | WeightsField | TreeField) for kind in kinds):
        return "never"  # numbers, or fields that hold numbers and texts besides tensors
    if any(isinstance(kind, TensorField | TableField) and not kind.dtype.is_floating_point for kind in kinds):
        return "never"
    return "row" if all(kind.has_own_rows(method) for kind in kinds) else "message"


def page() -> str:
    """Return the page with the current table."""
    before, rest = PAGE.read_text().split(START)
    return f"{before}{START}\n{table()}\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(page())
