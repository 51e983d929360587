"""MLflow: a store of files beside the run folders, or whatever `MLFLOW_TRACKING_URI` names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from polyfed.runs.atomic_files import write_atomically
from polyfed.runs.config_text import flatten

# set before MLflow is imported, unless the user has set them: nothing calls home, files are allowed as a store, and
# a server that does not answer delays a run by seconds
QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
ENDINGS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
LONGEST = 500  # characters of a parameter that MLflow takes


class MLflow:
    """One MLflow run per run folder; it is found again after a resume."""

    needs: ClassVar[tuple[str, ...]] = ("mlflow",)

    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        for key, value in QUIET.items():
            os.environ.setdefault(key, value)
        from mlflow import MlflowClient

        store = os.environ.get("MLFLOW_TRACKING_URI") or (folder.resolve().parent / "mlruns").as_uri()
        self._client = MlflowClient(store)
        remembered = folder / "tracking" / "mlflow-run"
        if done and remembered.exists():
            self._run = remembered.read_text()
            self._client.update_run(self._run, status="RUNNING")
            return
        found = self._client.get_experiment_by_name("polyfed")
        experiment = found.experiment_id if found is not None else self._client.create_experiment("polyfed")
        self._run = self._client.create_run(experiment, run_name=name).info.run_id
        for key, setting in flatten(config):
            self._client.log_param(self._run, key, str(setting)[:LONGEST])
        remembered.parent.mkdir(exist_ok=True)
        write_atomically(remembered, self._run.encode(), durable=False)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=number)

    def finish(self, state: str) -> None:
        self._client.set_terminated(self._run, ENDINGS[state])
