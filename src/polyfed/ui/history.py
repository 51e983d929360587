"""The rounds of one run, read from its events as they are appended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from polyfed.ui.run_summary import number, parse_line, whole

CHUNK = 1 << 22
NOTES = 200  # of the newest


class History:
    """Follows one `events.jsonl`: each look reads only what was added since the last."""

    def __init__(self, events: Path) -> None:
        self._file = events
        self._offset = 0
        self._rest = b""
        self.generation = 0  # counts up whenever rounds that were given out no longer hold
        self.rounds: list[dict[str, Any]] = []
        self.notes: list[dict[str, Any]] = []
        self.clients: dict[str, list[float | None]] = {}

    def look(self) -> None:
        """Take in what is new."""
        try:
            if self._file.stat().st_size < self._offset:  # another run in the same place
                self._offset, self._rest, self.notes, self.clients = 0, b"", [], {}
                self._drop(0)
            with self._file.open("rb") as file:
                file.seek(self._offset)
                while chunk := file.read(CHUNK):
                    self._offset += len(chunk)
                    lines = (self._rest + chunk).split(b"\n")
                    self._rest = lines.pop()  # a line that is still being written
                    for line in lines:
                        event = parse_line(line)
                        if event is not None:
                            self._take(event)
        except OSError:  # it was removed: what is known stays
            return

    def since(self, generation: int, count: int) -> dict[str, Any]:
        """What somebody who has `count` rounds of a generation does not know yet."""
        known = count if generation == self.generation and count <= len(self.rounds) else 0
        return {
            "generation": self.generation,
            "from": known,
            "rounds": self.rounds[known:],
            "notes": self.notes,
            "clients": self.clients,
        }

    def sums(self) -> dict[str, Any]:
        """What a list shows of all rounds together."""
        best = {
            name: max((r[kind] for r in self.rounds if r[kind] is not None), default=None)
            for name, kind in (("personal_best", "personal"), ("global_best", "global"))
        }
        sums = {name: sum(r[name] or 0 for r in self.rounds) for name in ("up", "down", "seconds", "failures")}
        return {**best, **sums}

    def _take(self, event: dict[str, Any]) -> None:
        match event.get("event"):
            case "round":
                at = whole(event.get("round"))
                if at is not None and at <= len(self.rounds):
                    self._drop(max(0, at - 1))  # done again after a resume
                self.rounds.append(_brief(event))
                accuracy = event.get("accuracy")
                if isinstance(accuracy, dict) and accuracy:
                    self.clients = {kind: _by_client(accuracy.get(kind)) for kind in ("personal", "global")}
            case "resumed":
                at = whole(event.get("round")) or 0
                if at < len(self.rounds):
                    self._drop(at)
                self._note(event, f"resumed after round {at}")
            case "note" | "failed":
                self._note(event, str(event.get("message", "")))
            case "stopped":
                self._note(event, f"stopped after round {event.get('round')}")
            case "failure":
                steps = event.get("steps")
                doing = f" in {', '.join(map(str, steps))}" if isinstance(steps, list) and steps else ""
                who = f"client {event.get('client')}{doing}, round {event.get('round')}"
                self._note(event, f"{who}: {event.get('message', '')}")
            case "started" | "finished" as kind:
                self._note(event, kind)

    def _note(self, event: dict[str, Any], text: str) -> None:
        self.notes = [*self.notes[1 - NOTES :], {"time": number(event.get("time")), "text": text[:1000]}]

    def _drop(self, keep: int) -> None:
        self.rounds = self.rounds[:keep]
        self.generation += 1


def _brief(event: dict[str, Any]) -> dict[str, Any]:
    """What is drawn of a round."""
    accuracy = event.get("accuracy")
    values = {
        kind: _value(accuracy.get(kind)) if isinstance(accuracy, dict) else None for kind in ("personal", "global")
    }
    seconds, failures = event.get("seconds"), event.get("failures")
    return {
        "round": whole(event.get("round")),
        **values,
        "loss": number(event.get("loss")),
        "up": _total(event.get("up")),
        "down": _total(event.get("down")),
        "seconds": number(seconds.get("total")) if isinstance(seconds, dict) else None,
        "failures": len(failures) if isinstance(failures, list) else 0,
    }


def _value(measured: Any) -> float | None:
    return number(measured.get("value")) if isinstance(measured, dict) else None


def _total(fields: Any) -> int:
    return sum(whole(size) or 0 for size in fields.values()) if isinstance(fields, dict) else 0


def _by_client(measured: Any) -> list[float | None]:
    values = measured.get("by_client") if isinstance(measured, dict) else None
    return [number(value) for value in values] if isinstance(values, list) else []
