"""The report: one self-contained HTML file about runs in any state."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from polyfed.comparison.table import AUTO
from polyfed.errors import InputError
from polyfed.report.page_figures import FigureRenderer
from polyfed.report.page_sections import Section, figure_sections, results_section
from polyfed.report.page_summary import facts, heading, summary
from polyfed.report.run_record import RunRecord, read_all
from polyfed.report.run_tables import common_settings, runs_table, sections_of, table_of, unique_names
from polyfed.report.styles import page_colours
from polyfed.runs.atomic_files import write_atomically

if TYPE_CHECKING:
    from markupsafe import Markup


def write_report(
    folders: Iterable[str | Path], out: str | Path, *, by: Sequence[str] = (), baseline: str = AUTO
) -> tuple[int, list[str]]:
    """Write the report on all runs in some folders. Return their number, and a message for each broken run."""
    path = Path(out)
    if path.suffix.lower() not in {".html", ".htm"}:
        raise InputError(f"the report's file is '{path}'; expected a name that ends in .html")
    records, broken = read_all(Path(folder) for folder in folders)
    if not path.parent.is_dir():
        raise InputError(f"the report cannot be written: there is no folder {path.parent}")
    page = render(records, broken, by=by, baseline=baseline)
    write_atomically(path, page.encode("utf-8", errors="replace"), durable=False)
    return len(records), list(broken.values())


def render(
    records: Sequence[RunRecord],
    broken: dict[Path, str],
    *,
    by: Sequence[str] = (),
    baseline: str = AUTO,
) -> str:
    """Return the page as HTML."""
    import jinja2

    import polyfed

    results, comparison = results_section(records, by, baseline)
    renderer = FigureRenderer(records, tuple(by), comparison.baseline if comparison is not None else None)
    results.figures = renderer.results()
    sections = [results] if results.figures or results.tables else []
    sections += figure_sections(renderer)
    if records and not renderer.measures:
        results.text.append("No round has been evaluated yet, so there are no figures of accuracy.")
        sections = sections if results in sections else [results, *sections]
    sections.append(_runs_section(records, broken))
    if len(records) > 1:
        shared = common_settings(records)
        settings = table_of(["key", "value"], sorted(shared.items()), names=2, label="Common settings")
        text = ["Settings that all runs have in common. Other settings are listed with each run."]
        sections.append(Section("settings", "Settings", text, tables=[settings]))
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=False)
    environment.filters["code"] = _with_code
    template = environment.from_string((Path(__file__).parent / "page.html.j2").read_text(encoding="utf-8"))
    style = (Path(__file__).parent / "page.css").read_text(encoding="utf-8")
    title, lead = heading(records, broken)
    return template.render(
        title=title,
        lead=lead,
        summary=summary(records, comparison),
        facts=facts(records),
        sections=sections,
        warnings=renderer.notes,
        version=polyfed.__version__,
        style=style,
        colours=page_colours(),
    )


def _with_code(text: str) -> Markup:
    """Escape text for HTML and show commands in backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def _runs_section(records: Sequence[RunRecord], broken: dict[Path, str]) -> Section:
    several = len(records) + len(broken) > 1
    section = Section("runs", "Runs" if several else "Run")
    if several or broken or any(record.state != "finished" for record in records):
        section.tables.append(runs_table(records, broken))
    shared = common_settings(records)
    section.runs = [
        {"name": name, "state": r.state, "sections": sections_of(r, shared)}
        for name, r in zip(unique_names(records), records, strict=True)
    ]
    if several and records:
        section.notes.append("Uploads, failures and settings of each run:")
    return section
