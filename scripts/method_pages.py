"""Sections of the method pages that the documentation site makes from the code, in place of markers such as `<!-- options -->`.

| marker | section |
|---|---|
| `<!-- summary -->` | requirements, uploads and downloads in words, source file |
| `<!-- algorithm -->` | the code of a round and of the client steps |
| `<!-- messages -->` | every field of every message, with its size |
| `<!-- options -->` | every option with its default, bounds and meaning |
| `<!-- measured -->` | the rows of the leaderboard that have the method, with the gain over local training |
| `<!-- methods -->` | the list of all methods |
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from markdown.extensions.toc import slugify

from polyfed.catalogue import MethodInfo, Option, load, methods
from polyfed.core.method import Method
from polyfed.core.schema import Dim, Field, FromMethod, ScalarField, TableField, TensorField, TreeField, WeightsField
from polyfed.core.step import Messages
from polyfed.leaderboard.page import MIB
from polyfed.leaderboard.records import Leaderboard, Row, read_leaderboard
from polyfed.leaderboard.scenarios import SCENARIOS

ROOT = Path(__file__).resolve().parents[1]
MARKER = re.compile(r"^<!-- (summary|algorithm|messages|options|measured) -->$", re.MULTILINE)
REQUIREMENTS = {
    "same_architecture": "one architecture for all clients",
    "same_head": "heads of equal shape",
    "same_features": "one feature width",
    "same_classes": "one label space",
    "sub_models": "models that are slices of the largest one",
    "images": "pictures as samples",
    "numbers": "samples of numbers, not of tokens",
}
SYMBOLS = {"classes": "C", "features": "d"}
WEIGHTS = {"model": "|θ|", "head": "|head|", "statistics": "|BatchNorm|"}


def fill(markdown: str, name: str) -> str:
    """Replace the markers of a page in `docs/methods`. A section without a marker is put at the end of the page."""
    if name == "index":
        return markdown.replace("<!-- methods -->", method_list())
    info = methods().get(name)
    if info is None:
        raise ValueError(f"docs/methods/{name}.md describes no method; `polyfed list methods` shows their names")
    for marker in SECTIONS.keys() - set(MARKER.findall(markdown)):
        markdown += f"\n## {marker.capitalize()}\n\n<!-- {marker} -->\n"
    return MARKER.sub(lambda match: SECTIONS[match.group(1)](info), markdown)


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows])


def summary(info: MethodInfo) -> str:
    """Return the method at a glance."""
    needs = [REQUIREMENTS[need] for need in info.requires]
    path = source_file(info)
    rows = [
        ["**Config**", f"`method: {{name: {info.name}}}`" + "".join(f", alias `{alias}`" for alias in info.aliases)],
        ["**Verdict**", escape(info.verdict) or "not measured"],
        ["**Requirements**", ", ".join(needs) or "none"],
        ["**Client uploads**", info.sends_up],
        ["**Client downloads**", info.sends_down],
        ["**Code**", f"[`{path}`](../../{path})"],
    ]
    if info.paper:
        rows.insert(0, ["**Paper**", info.paper])
    return table(*rows[:1], rows[1:])


def source_file(info: MethodInfo) -> str:
    return "src/" + info.module.replace(".", "/") + ".py"


def options(info: MethodInfo) -> str:
    """Return the table of options."""
    if not info.options:
        return "None."
    rows = []
    for option in info.options:
        choices = re.findall(r"'([^']*)'", option.type) if "Literal" in option.type else []
        rows.append([f"`{option.name}`", shown(option.default), allowed(option, choices), escape(option.help)])
    return table(["option", "default", "allowed", "meaning"], rows)


def shown(value: Any) -> str:
    words = {None: "none", True: "true", False: "false"}
    return f"`{words[value] if value is None or isinstance(value, bool) else value}`"


def allowed(option: Option, choices: list[str]) -> str:
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    bounds = [f"{signs[kind]} {bound:g}" for kind, bound in option.bounds.items() if kind in signs]
    if "degenerate" in option.bounds:
        bounds.append(f"{option.bounds['degenerate']:g} only with `allow_degenerate`")
    return ", ".join(bounds) or option.type.replace(" | None", " or none")


def escape(text: str) -> str:
    """Return a text for a cell of a table."""
    return text.replace("|", "\\|")


def steps(method: type[Method]) -> dict[str, Messages]:
    """Return the messages of a method's steps by name, in the order of their definition."""
    found: dict[str, Messages] = {}
    for cls in reversed(method.__mro__):
        for name, value in vars(cls).items():
            if isinstance(declared := getattr(value, "messages", None), Messages):
                found[name] = declared
    return found


def messages(info: MethodInfo) -> str:
    """Return the table of all messages, from the schemas that both sides check."""
    method = load(info.name)
    rows = []
    for name, declared in steps(method).items():
        for direction, schema in (("upload", declared.up), ("download", declared.down)):
            for field_name, field in schema.items():
                content, size = describe(field)
                optional = "; may be left out" if field.optional else ""
                rows.append(
                    [
                        f"`{name}`",
                        direction,
                        f"`{field_name}`",
                        content + optional,
                        size,
                        protection(field, direction),
                    ]
                )
    if not rows:
        return "Clients send and receive nothing."
    header = ["step", "direction", "field", "content", "bytes", "`privacy` protects"]
    used = " ".join(row[4] for row in rows)
    legend = [
        text
        for symbol, text in {
            "C": "`C` classes",
            "d": "`d` features",
            "m": "`m` classes with samples in the table (at most `C`)",
            "θ": "`|θ|` values of the client's model",
            "head": "`|head|` values of its head",
            "BatchNorm": "`|BatchNorm|` running statistics",
        }.items()
        if re.search(rf"\b{symbol}\b" if symbol.isascii() else symbol, used)
    ]
    note = f"\n\nSizes: {'; '.join(legend)}. Scalars and headers count as message overhead." if legend else ""
    return table(header, rows) + note


def describe(field: Field) -> tuple[str, str]:
    """Return the content of a field in words, and its size in bytes."""
    if isinstance(field, WeightsField):
        words = {"model": "weights of the client's model", "head": "weights of the head"}
        return field.means or words.get(field.of, "BatchNorm statistics"), f"`4 {WEIGHTS[field.of]}`"
    if isinstance(field, TableField):
        row = f"{size_of(field.dtype)} {symbol(field.width)}"
        if field.counts:
            return field.means or "one row per class and its number of samples", f"`m ({row} + 4)`"
        return field.means or "one row per class", f"`m {row}`"
    if isinstance(field, TensorField):
        dims = [symbol(dim) for dim in field.dims]
        return field.means or f"tensor of shape ({', '.join(dims)})", f"`{size_of(field.dtype)} {' '.join(dims)}`"
    if isinstance(field, ScalarField):
        return field.means or f"one {field.kind}", "-"
    like = f" like `{field.like}`" if isinstance(field, TreeField) and field.like else ""
    return field.means or f"named tensors{like}", "see below"


def size_of(dtype: Any) -> int:
    return int(dtype.itemsize)


def symbol(dim: Dim) -> str:
    """Return a dimension as it is written in a formula."""
    if isinstance(dim, FromMethod):
        return dim.attribute
    return SYMBOLS.get(dim, str(dim)) if isinstance(dim, str) else (str(dim) if isinstance(dim, int) else "n")


def protection(field: Field, direction: str) -> str:
    if direction == "download" or isinstance(field, ScalarField):
        return "-"
    if isinstance(field, TensorField) and not field.dtype.is_floating_point:
        return "-"
    return "rows or the whole field" if field.by_sample else "the whole field"


def algorithm(info: MethodInfo) -> str:
    """Return the code of a round and of the client steps, folded."""
    method = load(info.name)
    parts, inherited = [], {}
    for name in ["round", *steps(method), "finish"]:
        owner = next(cls for cls in method.__mro__ if name in vars(cls))
        if owner is Method:
            continue
        if owner is not method and owner.name and owner.name != method.name:
            inherited[name] = owner.name
            continue
        parts.append(textwrap.dedent(inspect.getsource(vars(owner)[name])).strip())
    lines = []
    for origin in dict.fromkeys(inherited.values()):
        same = [f"`{name}`" for name, other in inherited.items() if other == origin]
        lines.append(
            f"{' and '.join(same)} {'are' if len(same) > 1 else 'is'} inherited from [`{origin}`]({origin}.md)."
        )
    if parts:
        block = "\n\n".join(parts)
        lines.append('??? example "Code of a round"\n\n' + textwrap.indent(f"```python\n{block}\n```", "    "))
    return "\n\n".join(lines)


# results


@cache
def leaderboard() -> Leaderboard:
    return read_leaderboard()


def measured(info: MethodInfo) -> str:
    """Return what the leaderboard measured for the method, with the gain over local training on the same models."""
    rows = []
    for name, record in leaderboard().scenarios.items():
        title = SCENARIOS[name].title
        link = f"[{escape(title)}](../leaderboard.md#{slugify(title, '-')})"
        for row in record.rows:
            if row.method == info.name:
                accuracies = [accuracy(row, "global"), accuracy(row, "personal")]
                sent = [f"{(row.mean(way) or 0) / MIB:.2f}" for way in ("up", "down")]
                rows.append([link, row.models or "as in the scenario", *accuracies, *sent])
    if not rows:
        return "The [leaderboard](../leaderboard.md) has no row of this method."
    header = ["scenario", "models", "common accuracy", "personal accuracy", "MiB up", "MiB down"]
    note = "" if info.name == "local" else " In brackets: points above or below local training on the same models."
    return table(header, rows) + f"\n\nMeans over seeds, last round, CPU-sized settings.{note}"


def accuracy(row: Row, kind: str) -> str:
    """Return a mean accuracy of a row with its gain over local training."""
    value = row.mean("global_" if kind == "global" else kind)
    gain = f" ({row.gains[kind].mean:+.1f})" if kind in row.gains else ""
    return "-" if value is None else f"{value:.1f} %{gain}"


def method_list() -> str:
    """Return the table of all methods."""
    rows = [
        [
            f"[`{info.name}`]({info.name}.md)",
            escape(info.title.partition(": ")[2] or info.title),
            escape(info.verdict) or "not measured",
            info.sends_up,
            ", ".join(REQUIREMENTS[need] for need in info.requires if need != "same_classes") or "-",
        ]
        for info in methods().values()
    ]
    return table(["method", "idea", "verdict", "client uploads", "requirements"], rows)


SECTIONS: dict[str, Callable[[MethodInfo], str]] = {
    "summary": summary,
    "algorithm": algorithm,
    "messages": messages,
    "options": options,
    "measured": measured,
}
