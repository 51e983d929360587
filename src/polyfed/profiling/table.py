"""The table of a profile: seconds and per cent by part."""

from __future__ import annotations

from polyfed.profiling.recorder import PARTS, Recorder


def format_table(recorder: Recorder) -> str:
    """Return the table of a finished profile as text. Every column adds up to the wall time of the run."""
    columns = columns_of(recorder)
    width = max(len(label) for label in PARTS.values())
    lines = [" " * width + "".join(f"{heading:>18}" for heading in columns)]
    for part, label in PARTS.items():
        if any(part in seconds for seconds in columns.values()):
            lines.append(
                f"{label:<{width}}" + "".join(_cell(seconds.get(part), recorder) for seconds in columns.values())
            )
    lines.append(f"{'total':<{width}}" + "".join(_cell(sum(s.values()), recorder) for s in columns.values()))
    if recorder.workers:
        lines.append(
            f"The column 'per worker' is the mean over {len(recorder.workers)} workers, which run in parallel."
        )
    if recorder.left_out:
        lines.append(f"The trace lacks {recorder.left_out} spans beyond its limit; the table counts them.")
    return "\n".join(lines)


def columns_of(recorder: Recorder) -> dict[str, dict[str, float]]:
    """Return the seconds by column and part: the main thread, and the mean over workers if there are any."""
    columns = {"main process": recorder.parts.get("main", {})}
    if recorder.workers:
        workers = [worker.parts for worker in recorder.workers.values()]
        used = [part for part in PARTS if any(part in parts for parts in workers)]
        columns["per worker"] = {part: sum(w.get(part, 0.0) for w in workers) / len(workers) for part in used}
    return columns


def _cell(seconds: float | None, recorder: Recorder) -> str:
    if seconds is None:
        return f"{'-':>18}"
    share = 100 * seconds / recorder.seconds if recorder.seconds else 0.0
    return f"{seconds:>10.2f} s{share:>4.0f} %"
