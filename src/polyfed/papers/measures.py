"""Read what a table of a paper measures from the result of a run."""

from __future__ import annotations

from polyfed.comparison.measures import CLIENT_MEAN, MIB
from polyfed.papers.paper_file import PaperMeasure
from polyfed.runs.records import Result

NAMES = {
    "personal": "Accuracy on the clients' own test data, in %",
    "global": "Accuracy on the common test set, in %, mean over clients",
    "traffic": "Uploads and downloads of all clients, in MiB; less is better",
}


def read_value(measure: PaperMeasure, moment: str | None, result: Result) -> float | None:
    """Return the value of a run in per cent or MiB, or None if the run did not measure it.

    `moment` is another prediction of the same models, such as `untuned`; None: the usual one.
    """
    if measure.of == "traffic":
        return (result.upload_bytes + result.download_bytes) / MIB
    if measure.of == "personal" and measure.over == "clients":
        kind = measure.of if moment is None else f"{measure.of} by {moment}"
        metric = result.metrics.get(kind, {}).get(CLIENT_MEAN)
        values = [] if metric is None else [metric.final, *metric.by_round]
    else:
        accuracy = result["accuracy"][measure.of]
        if accuracy is not None and moment is not None:
            accuracy = accuracy.get("also", {}).get(moment)
        values = [] if accuracy is None else [accuracy["final"], *accuracy["by_round"]]
    measured = [100.0 * float(value) for value in values if value is not None]
    if not measured:
        return None
    return max(measured) if measure.round == "best" else measured[0]


def measure_title(measure: PaperMeasure) -> str:
    """Return a measure in words."""
    parts = [NAMES[measure.of]]
    if measure.of == "personal":
        parts.append("weighted by test samples" if measure.over == "samples" else "mean over clients")
    if measure.moment is not None:
        parts.append(f"prediction '{measure.moment}'")
    if measure.of != "traffic":
        parts.append("after the last round" if measure.round == "last" else "best round, chosen on test data")
    return ", ".join(parts)
