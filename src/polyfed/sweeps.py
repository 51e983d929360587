"""`polyfed.sweep`: a grid of settings and seeds, run one after the other in this process.

The command `polyfed sweep` plans the same runs, and runs several at a time in processes of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from polyfed import api
from polyfed.comparison import Comparison, compare
from polyfed.config import Config
from polyfed.config.loading import value_text
from polyfed.config.sweep import plan_sweep
from polyfed.config.trust import check_source_trusted
from polyfed.errors import InputError
from polyfed.federation.run_arguments import raw_config
from polyfed.federation.session_code import with_user_code
from polyfed.runs.records import Result


class Sweep(list[Result]):
    """The results of a sweep, in the order of its grid. It prints as the comparison of its runs."""

    def __init__(self, results: Sequence[Result], by: Sequence[str]) -> None:
        super().__init__(results)
        self._by = tuple(by)

    def compare(self, **options: Any) -> Comparison:
        """Compare the runs over seeds, by the axes of the sweep."""
        return compare(list(self), **{"by": self._by, **options})

    def __repr__(self) -> str:
        return str(self.compare()) if self else "no runs"

    def _repr_html_(self) -> str | None:
        return self.compare().to("html") if self else None


def sweep(
    config: str | Path | Mapping[str, Any] | Config | None = None,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: Sequence[int] = (0,),
    out: str | Path,
    data: Any = None,
    models: Any = None,
    method: Any = None,
    progress: bool | None = None,
    trust: bool = False,
    **settings: Any,
) -> Sweep:
    """Run every combination of settings and seeds, and return the results.

    Finished runs are skipped and unfinished runs are resumed, so you can stop a sweep and call it again.

    Args:
        config: Name of a preset, path of a config file, mapping or `Config`, as for `polyfed.run`.
        axes: Config keys and their values, such as `{"method": ["local", "fedproto"], "train.lr": [0.01, 0.1]}`.
        seeds: Random seeds.
        out: Folder of the run folders.
        data, models, method, settings: As for `polyfed.run`, the same for all runs.
        progress: Show progress bars. None: in a terminal or a notebook.
        trust: Import the code that a config of another user names.

    Examples:
        >>> small = {"clients": 2, "rounds": 1, "data": {"limit": 100}, "engine": {"name": "serial"}}
        >>> runs = polyfed.sweep("quickstart", {"method": ["local", "fedproto"]}, out="runs/methods", **small)
        >>> [result.method for result in runs]
        ['local', 'fedproto']
    """
    raw, dataset = raw_config(config, data=data, models=models, method=method, settings=settings)
    axes = axes or {}
    for key, values in axes.items():
        if isinstance(values, str) or not isinstance(values, Sequence) or not values:
            raise InputError(f"the values of '{key}' are {values!r}; expected a list of values")
    texts = [f"{key}={','.join(value_text(value) for value in values)}" for key, values in axes.items()]
    runs = plan_sweep(raw, texts, list(dict.fromkeys(seeds)), Path(out))
    for run in runs:
        check_source_trusted(run.config, config, trust=trust)
    results = [
        api.run_with_progress(with_user_code(run.config), out=run.folder, data=dataset, progress=progress)
        for run in runs
    ]
    varied = [key for key, values in axes.items() if len(values) > 1 and key not in {"method", "method.name"}]
    return Sweep(results, varied)
