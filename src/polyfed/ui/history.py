"""Rounds of one run, read incrementally from its events."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from polyfed.runs.records import KINDS, RoundRecord, finite, integer
from polyfed.runs.safe_files import open_regular
from polyfed.ui.run_summary import parse_line

CHUNK = 1 << 22
MAX_NOTES = 200  # the newest are kept


class History:
    """Incremental reader of `events.jsonl`. Each `update` reads the events appended since the previous one."""

    def __init__(self, events: Path) -> None:
        self._file = events
        self._offset = 0
        self._rest = b""
        self.generation = 0  # increases whenever rounds that were sent to a page become invalid
        self.rounds: list[dict[str, Any]] = []
        self._bytes: list[dict[str, Mapping[str, int]]] = []  # of each round: up and down by field, and overhead
        self.notes: list[dict[str, Any]] = []
        self.clients: dict[str, list[float | None]] = {}
        self.evaluated: RoundRecord | None = None  # the last round with metrics

    def update(self) -> None:
        """Read the events that were appended."""
        try:
            if self._file.stat().st_size < self._offset:  # another run in the same folder
                self._offset, self._rest, self.notes, self.clients, self.evaluated = 0, b"", [], {}, None
                self._truncate(0)
            with open_regular(self._file) as file:
                file.seek(self._offset)
                while chunk := file.read(CHUNK):
                    self._offset += len(chunk)
                    lines = (self._rest + chunk).split(b"\n")
                    self._rest = lines.pop()  # a line that is still being written
                    for line in lines:
                        event = parse_line(line)
                        if event is not None:
                            self._add(event)
        except OSError:  # the file was removed: keep what was read
            return

    def since(self, generation: int, count: int) -> dict[str, Any]:
        """Return what is new for a page that has `count` rounds of a generation."""
        known = count if generation == self.generation and count <= len(self.rounds) else 0
        return {
            "generation": self.generation,
            "from": known,
            "rounds": self.rounds[known:],
            "notes": self.notes,
            "clients": self.clients,
            "fields": self.bytes_by_field(),
        }

    def bytes_by_field(self) -> dict[str, dict[str, int]]:
        """Return the sum over all rounds of the bytes of each field, up and down, and of the message encoding."""
        totals: dict[str, dict[str, int]] = {"up": {}, "down": {}, "overhead": {}}
        for one in self._bytes:
            for way, counts in one.items():
                for name, count in counts.items():
                    totals[way][name] = totals[way].get(name, 0) + count
        return totals

    def metrics(self) -> dict[str, Any]:
        """Return the metrics of the clients and the confusion matrices of the last round that has them."""
        last = self.evaluated
        if last is None:
            return {"round": None, "kinds": {}, "confusion": {}}
        kinds = {
            kind: {name: {"value": one.value, "by_client": list(one.by_client)} for name, one in by_name.items()}
            for kind, by_name in last.metrics.items()
        }
        return {"round": last.round, "kinds": kinds, "confusion": dict(last.confusion)}

    def totals(self) -> dict[str, Any]:
        """Return the best accuracies and the sums over all rounds, for the list of runs."""
        best = {
            name: max((r[kind] for r in self.rounds if r[kind] is not None), default=None)
            for name, kind in (("personal_best", "personal"), ("global_best", "global"))
        }
        sums = {name: sum(r[name] or 0 for r in self.rounds) for name in ("up", "down", "seconds", "failures")}
        return {**best, **sums}

    def _add(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "round":
                record = RoundRecord.from_damaged(event)
                if record is not None:
                    self._add_round(record)
            case "resumed":
                last = integer(event.get("round")) or 0
                if last < len(self.rounds):
                    self._truncate(last)
                self._note(event, f"resumed after round {last}")
            case "note" | "failed":
                self._note(event, str(event.get("message", "")))
            case "stopped":
                self._note(event, f"stopped after round {event.get('round')}")
            case "failure":
                steps = event.get("steps")
                during = f" in {', '.join(map(str, steps))}" if isinstance(steps, list) and steps else ""
                where = f"client {event.get('client')}{during}, round {event.get('round')}"
                self._note(event, f"{where}: {event.get('message', '')}")
            case "started" | "finished" as kind:
                self._note(event, kind)

    def _add_round(self, record: RoundRecord) -> None:
        if record.round <= len(self.rounds):
            self._truncate(max(0, record.round - 1))  # repeated after a resume
        self.rounds.append(_plotted(record))
        self._bytes.append({"up": record.up, "down": record.down, "overhead": record.overhead})
        if record.accuracy:
            by_client = {kind: list(one.by_client) for kind, one in record.accuracy.items()}
            self.clients = {kind: by_client.get(kind, []) for kind in KINDS}
        if record.metrics:
            self.evaluated = record

    def _note(self, event: dict[str, Any], text: str) -> None:
        self.notes = [*self.notes[1 - MAX_NOTES :], {"time": finite(event.get("time")), "text": text[:1000]}]

    def _truncate(self, count: int) -> None:
        """Keep the first `count` rounds."""
        self.rounds = self.rounds[:count]
        self._bytes = self._bytes[:count]
        self.generation += 1


def _plotted(record: RoundRecord) -> dict[str, Any]:
    """Return the values of a round that the page plots."""
    return {
        "round": record.round,
        "personal": record.accuracy_value("personal"),
        "global": record.accuracy_value("global"),
        "loss": record.loss,
        "up": record.upload_bytes,
        "down": record.download_bytes,
        "seconds": record.seconds.get("total"),
        **{part: record.seconds.get(part) for part in ("train", "evaluate", "server")},
        "failures": len(record.failures),
        "metrics": {kind: {name: one.value for name, one in by.items()} for kind, by in record.metrics.items()},
    }
