"""The privacy ledger of a site: what it released and evaluated, by data, over all runs and restarts.

It is one JSON file in the state folder. An entry is on disk before the reply that it counts is sent.
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from polyfed.deploy.site_demands import DELTA
from polyfed.errors import StateError
from polyfed.guards import accountant
from polyfed.runs import safe_files
from polyfed.runs.atomic_files import write_atomically

FILE = "privacy-ledger.json"


@dataclass
class Release:
    """Uploads of one field in one run. Sending the same bytes again does not add an id."""

    run: str
    field: str
    multiplier: float | None  # of the noise; None: the field has no guarantee
    exposed: bool = False  # it depends on single samples and has no guarantee
    ids: list[str] = dataclasses.field(default_factory=list)


class PrivacyLedger:
    """Releases and evaluations on one dataset, identified by the digest of its files.

    Another dataset has entries of its own. A dataset with changed files counts as another one.
    """

    def __init__(self, folder: Path, data: str) -> None:
        self._file = folder / FILE
        self._data = data
        entry = _read(self._file).get(data, {})
        self.releases: list[Release] = entry.get("releases", [])
        self.evaluations: list[str] = entry.get("evaluations", [])

    def save(self) -> None:
        """Write the entries of this dataset to disk. Those of other datasets stay."""
        entry = {"releases": self.releases, "evaluations": self.evaluations}
        content = {**_read(self._file), self._data: entry}
        write_atomically(self._file, json.dumps(content, default=dataclasses.asdict).encode())

    def release(self, run: str, field: str, multiplier: float | None, exposed: bool) -> Release:
        """Return the entry of a field in a run, a new one if there is none yet."""
        for one in self.releases:
            if (one.run, one.field, one.multiplier, one.exposed) == (run, field, multiplier, exposed):
                return one
        self.releases.append(Release(run, field, multiplier, exposed))
        return self.releases[-1]

    def count(self, field: str) -> int:
        """Return how often a field was uploaded, in all runs."""
        return sum(len(one.ids) for one in self.releases if one.field == field)

    def spent(self, delta: float = DELTA, *, field: str | None = None, run: str | None = None) -> float:
        """Return the composed epsilon of all protected uploads, or of those of one field or one run."""
        return accountant.epsilon(
            [
                (one.multiplier, len(one.ids))
                for one in self.releases
                if one.multiplier is not None and field in (None, one.field) and run in (None, one.run)
            ],
            delta,
        )

    @property
    def exposed(self) -> Release | None:
        """An upload without protection that depends on single samples. With one, the data has no epsilon."""
        return next((one for one in self.releases if one.exposed and one.ids), None)


def describe_ledger(folder: Path) -> list[str]:
    """Describe what a site has released, one sentence for each of its datasets."""
    sentences = []
    for data in _read(folder / FILE):
        ledger = PrivacyLedger(folder, data)
        runs = len({one.run for one in ledger.releases if one.ids})
        start = f"Privacy ledger: in all {runs} runs" if runs > 1 else "Privacy ledger: in its run"
        if ledger.exposed is not None:
            cost = f"no epsilon, because '{ledger.exposed.field}' was uploaded without protection"
        else:
            cost = f"epsilon {ledger.spent():.4g} at delta {DELTA:g}"
        others = f" It evaluated {len(ledger.evaluations)} models that are not its own." if ledger.evaluations else ""
        sentences.append(f"{start} on data {data[:8]}, this site has {cost}.{others}")
    return sentences


def _read(file: Path) -> dict[str, dict[str, Any]]:
    """Return the entries by dataset. Raise `StateError` if the file is damaged, so that no cost is forgotten."""
    if not file.exists():
        return {}
    try:
        content = json.loads(safe_files.read_bytes(file))
        return {
            data: {
                "releases": [Release(**one) for one in entry["releases"]],
                "evaluations": [str(one) for one in entry["evaluations"]],
            }
            for data, entry in content.items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(f"{file} is damaged ({type(error).__name__}); restore it or move it away") from None
