"""Read the data files of papers, and write their tuned values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from polyfed.config.loading import preset_hint, preset_names, read_file
from polyfed.config.validation_message import validation_message
from polyfed.errors import InputError, nearest
from polyfed.papers.paper_file import SCALES, Paper
from polyfed.runs.atomic_files import write_atomically

FOLDER = Path(__file__).parent
TUNED = "tuned:"


def paper_names() -> list[str]:
    """Return the names of all papers."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_paper(name: str) -> Paper:
    """Load a paper by its name. Raise `InputError` if there is none, or if its file is wrong."""
    if name not in paper_names():
        raise InputError(f"there is no paper '{name}'; {nearest(name, paper_names())}")
    return read_paper(FOLDER / f"{name}.yaml")


def read_paper(path: Path) -> Paper:
    """Read and check the data file of a paper."""
    return parse_paper(read_file(path), str(path))


def parse_paper(raw: Mapping[str, Any], where: str) -> Paper:
    """Validate the content of a data file. `where` names it in messages."""
    try:
        paper = Paper.model_validate(raw)
    except ValidationError as error:
        raise InputError(f"{where}: {validation_message(error, Paper)}") from None
    try:
        _check_names(paper)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    return paper


def _check_names(paper: Paper) -> None:
    """Raise `InputError` if an entry names a preset, setting, row or table that does not exist."""
    _known("method", [paper.method], paper.rows, "row")
    presets = set(preset_names())
    for name, setting in paper.settings.items():
        _known(f"settings.{name}.tuned_as", [setting.tuned_as] if setting.tuned_as else [], paper.settings, "setting")
        for scale in SCALES:
            scaled = setting.at(scale)
            if scaled is not None and scaled.preset not in presets:
                where = f"settings.{name}.{scale}.preset"
                raise InputError(f"{where} is '{scaled.preset}'; {preset_hint(scaled.preset)}")
    for name, row in paper.rows.items():
        _known(f"rows.{name}.not_in", row.not_in, paper.settings, "setting")
        _known(f"rows.{name}.paper_in", row.paper_in, paper.settings, "setting")
        seen = [name]
        while (parent := paper.rows[seen[-1]].variant_of) is not None:
            _known(f"rows.{seen[-1]}.variant_of", [parent], paper.rows, "row")
            if parent in seen:
                raise InputError(f"rows.{name}.variant_of leads back to the row '{parent}'")
            seen.append(parent)
    for name, table in paper.tables.items():
        _known(f"tables.{name}.settings", table.settings, paper.settings, "setting")
        _known(f"tables.{name}.rows", table.rows, paper.rows, "row")
        if table.baseline is not None:
            _known(f"tables.{name}.baseline", [table.baseline], table.rows, "row of the table")
        _known(f"tables.{name}.published", table.published, table.settings, "setting of the table")
        for setting_name, numbers in table.published.items():
            _known(f"tables.{name}.published.{setting_name}", numbers, table.rows, "row of the table")
    for number, claim in enumerate(paper.claims):
        _known(f"claims.{number}.table", [claim.table], paper.tables, "table")
        claimed = paper.tables[claim.table]
        _known(f"claims.{number}.better", [claim.better], claimed.rows, "row of the table")
        _known(f"claims.{number}.than", claim.than, claimed.rows, "row of the table")
        _known(f"claims.{number}.settings", claim.settings or (), claimed.settings, "setting of the table")
    _known("tuned", paper.tuned, paper.settings, "setting")
    for setting_name, tuned in paper.tuned.items():
        _known(f"tuned.{setting_name}", tuned, paper.rows, "row")


def _known(key: str, names: Iterable[str], options: Iterable[str], kind: str) -> None:
    known = list(options)
    for name in names:
        if name not in known:
            raise InputError(f"{key} names '{name}', but there is no such {kind}; {nearest(name, known)}")


def write_tuned(path: Path, tuned: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> None:
    """Replace the `tuned` block of a data file, by setting and row. The rest of the file, with comments, is kept.

    The block must be the last one of the file. Raise `InputError` and leave the file as it is if the result is wrong.
    """
    kept = path.read_text(encoding="utf-8").partition(f"\n{TUNED}")[0].rstrip("\n")
    block = yaml.safe_dump({"tuned": {s: {r: dict(o) for r, o in rows.items()} for s, rows in tuned.items()}})
    text = f"{kept}\n\n{block}"
    parse_paper(yaml.safe_load(text), str(path))
    write_atomically(path, text.encode())
