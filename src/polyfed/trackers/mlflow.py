"""MLflow tracker: writes to `mlruns` next to the run folder, or to `MLFLOW_TRACKING_URI`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from polyfed.runs.atomic_files import write_atomically
from polyfed.runs.config_text import flatten

# defaults, set before MLflow is imported: no telemetry, file stores allowed, and short timeouts so that a server that
# does not answer delays a run by seconds only
DEFAULTS = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "10",
}
STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
MAX_LENGTH = 500  # characters of a parameter in MLflow


class MLflow:
    """One MLflow run per run folder. A resumed run continues the same MLflow run."""

    needs: ClassVar[tuple[str, ...]] = ("mlflow",)

    def start(self, name: str, folder: Path, config: Mapping[str, Any], done: int) -> None:
        for key, value in DEFAULTS.items():
            os.environ.setdefault(key, value)
        from mlflow import MlflowClient

        store = os.environ.get("MLFLOW_TRACKING_URI") or (folder.resolve().parent / "mlruns").as_uri()
        self._client = MlflowClient(store)
        id_file = folder / "tracking" / "mlflow-run"
        if done and id_file.exists():
            self._run = id_file.read_text()
            self._client.update_run(self._run, status="RUNNING")
            return
        experiment = self._client.get_experiment_by_name("polyfed")
        experiment_id = experiment.experiment_id if experiment else self._client.create_experiment("polyfed")
        self._run = self._client.create_run(experiment_id, run_name=name).info.run_id
        for key, setting in flatten(config):
            self._client.log_param(self._run, key, str(setting)[:MAX_LENGTH])
        id_file.parent.mkdir(exist_ok=True)
        write_atomically(id_file, self._run.encode(), durable=False)

    def log(self, number: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._client.log_metric(self._run, name, value, step=number)

    def finish(self, state: str) -> None:
        self._client.set_terminated(self._run, STATUS[state])
