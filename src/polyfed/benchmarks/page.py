"""Sections of a Markdown page with the figures of benchmarks, between markers."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import torch

from polyfed.machine import available_cores


def write_section(page: Path, result: dict[str, Any]) -> None:
    """Write the figures of a benchmark into its section of a page. Append the section if the page has none."""
    start, end = f"<!-- bench {result['name']}: written by polyfed -->", f"<!-- end of bench {result['name']} -->"
    section = f"{start}\n{_section(result)}\n{end}"
    text = page.read_text(encoding="utf-8") if page.exists() else "# Benchmarks\n"
    before, marker, rest = text.partition(start)
    replaced = before + section + rest.partition(end)[2]
    appended = f"{text.rstrip()}\n\n{section}\n"
    page.write_text(replaced if marker and end in rest else appended, encoding="utf-8")


def _section(result: dict[str, Any]) -> str:
    """Return the heading, the machine, the settings and the table of figures."""
    machine = f"{platform.system()} {platform.machine()}, {available_cores()} cores, torch {torch.__version__}"
    settings = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in result["settings"].items())
    rows = [f"| {name.replace('_', ' ')} | {_text(value)} |" for name, value in result["figures"].items()]
    heading = [f"## Figures of `polyfed bench {result['name']}`", "", f"{machine}; {settings}.", ""]
    return "\n".join([*heading, "| figure | value |", "|---|---|", *rows])


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, int | float) else str(value)
