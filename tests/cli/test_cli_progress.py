"""Progress: lines elsewhere, bars in a terminal, and text that stays text."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyfed.cli.progress import Board, Watcher, bytes_of_rounds
from polyfed.cli.show import duration, size
from polyfed.config import parse


def record(number: int, personal: float | None = None) -> dict[str, Any]:
    accuracy = {} if personal is None else {"personal": {"value": personal}}
    return {"round": number, "accuracy": accuracy, "up": {"a": 1000, "b": 24}, "down": {"a": 1024}}


def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Board() as board:
        watcher = Watcher(board, "[red]x\x1b[2J")
        watcher.started(parse({"rounds": 3}), tmp_path, 0)
        watcher.round_done(record(1, 0.5))
        watcher.round_done(record(2))  # not evaluated: the last value stays
        watcher.note("a [bold]note")
        watcher.round_done(record(3, 0.0))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and "\x1b" not in err
    assert lines[0].startswith("[red]x [2J round 1/3 personal 50.00 % 2.0 KiB") and lines[0].endswith("left")
    assert "round 2/3 personal 50.00 % 4.0 KiB" in lines[1]
    assert lines[2] == "a [bold]note"
    assert lines[3].endswith("round 3/3 personal 0.00 % 6.0 KiB done")


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with Board(quiet=True) as board:
        watcher = Watcher(board, "x")
        watcher.started(parse({}), tmp_path, 0)
        watcher.round_done(record(1, 0.5))
        watcher.note("nothing")
    assert capsys.readouterr() == ("", "")


def test_bytes_before_a_checkpoint_count_each_round_once(tmp_path: Path) -> None:
    events = [{"event": "round", **record(k)} for k in (1, 2, 2, 3)] + [{"event": "note", "message": "x"}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    assert bytes_of_rounds(tmp_path, 2) == 2 * 2048
    assert bytes_of_rounds(tmp_path, 0) == 0


BARS = """
from pathlib import Path
from polyfed.cli.progress import Board, Watcher
from polyfed.config import parse
with Board() as board:
    watcher = Watcher(board, "[red]name")
    watcher.started(parse({"rounds": 2}), Path("nowhere"), 0)
    watcher.note("[bold]a note")
    for k in (1, 2):
        watcher.round_done({"round": k, "accuracy": {"personal": {"value": k / 4}}, "up": {"a": 1024}, "down": {}})
"""


def test_a_bar_in_a_terminal() -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "COLUMNS": "140", "TERM": "xterm"}
    with subprocess.Popen([sys.executable, "-c", BARS], stderr=theirs, stdout=theirs, env=environment) as child:
        os.close(theirs)
        seen = b""
        while True:
            try:
                part = os.read(ours, 4096)
            except OSError:  # how Linux says that the other end of a terminal was closed
                break
            if not part:
                break
            seen += part
    os.close(ours)
    text = seen.decode()
    assert child.returncode == 0, text
    for words in ("[red]name", "[bold]a note", "round 2/2", "personal 50.00 %", "2.0 KiB", "━"):
        assert words in text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (1 << 42, "4.0 TiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (75, "1 min 15 s"), (7380, "2 h 03 min")])
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


INTERRUPTED = """
import signal, sys
from polyfed.cli.cells import Channel
from polyfed.cli.show import say
tell = say if sys.argv[1] == "say" else lambda word: Channel(2).tell(word)
signal.signal(signal.SIGALRM, lambda *_: tell("note " + "n" * 60))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(5000):
    tell("line " + "x" * 60)
signal.setitimer(signal.ITIMER_REAL, 0)
"""


@pytest.mark.parametrize("how", ["say", "channel"])
def test_a_signal_handler_may_speak_while_a_line_is_written(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, how], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    texts = lines if how == "say" else [json.loads(line)["event"] for line in lines]
    assert texts.count("line " + "x" * 60) == 5000
    assert set(texts) == {"line " + "x" * 60, "note " + "n" * 60}
