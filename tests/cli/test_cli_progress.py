"""Progress output: bars in a terminal, lines elsewhere, and labels that are never interpreted as markup."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from polyfed.cli.output import format_bytes, format_duration, print_result
from polyfed.config import parse
from polyfed.progress import ProgressBoard, ProgressObserver, ProgressSnapshot, snapshot_until
from polyfed.runs.records import Accuracy, RoundRecord


def record(number: int, personal: float | None = None, loss: float | None = None, failed: int = 0) -> RoundRecord:
    return RoundRecord(
        round=number,
        accuracy={} if personal is None else {"personal": Accuracy(personal)},
        loss=loss,
        up={"a": 1000, "b": 24},
        down={"a": 2048},
        overhead={},
        seconds={},
        failures=[{"client": "0"}] * failed,
    )


def test_lines_without_a_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ProgressBoard() as board:
        observer = ProgressObserver(board, "[red]x\x1b[2J")
        observer.started(parse({"rounds": 3}), tmp_path, 0)
        observer.round_done(record(1, 0.5, loss=1.25))
        observer.round_done(record(2, failed=2))  # not evaluated: the last value stays
        observer.note("a [bold]note")
        observer.round_done(record(3, 0.25))
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert out == "" and "\x1b" not in err
    first = "[red]x [2J round 1/3 personal 50.00 %, best 50.00 %; loss 1.25; bytes 1.0 KiB up, 2.0 KiB down; time "
    assert lines[0].startswith(first) and "s per round" in lines[0] and lines[0].endswith("left")
    assert "failures" not in lines[0]
    assert "round 2/3 personal 50.00 %, best 50.00 %" in lines[1] and "failures 2" in lines[1]
    assert "bytes 2.0 KiB up, 4.0 KiB down" in lines[1]
    assert lines[2] == "a [bold]note"
    assert "round 3/3 personal 25.00 %, best 50.00 %" in lines[3] and lines[3].endswith("done")


def test_quiet_is_quiet(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with ProgressBoard(quiet=True) as board:
        observer = ProgressObserver(board, "x")
        observer.started(parse({}), tmp_path, 0)
        observer.round_done(record(1, 0.5))
        observer.note("nothing")
    assert capsys.readouterr() == ("", "")


def test_numbers_before_a_checkpoint_count_each_round_once(tmp_path: Path) -> None:
    rounds = [record(1, 0.5, 2.0), record(2, 0.9), record(2, 0.4, failed=1), record(3, 0.8)]
    events = [{"event": "round", **one.to_dict()} for one in rounds] + [{"event": "note", "message": "x"}]
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    # of round 2 the later line counts, and round 3 comes after the checkpoint
    expected = ProgressSnapshot(2, {"personal": 0.4}, {"personal": 0.5}, 2.0, up=2 * 1024, down=2 * 2048, failures=1)
    assert snapshot_until(tmp_path, 2) == expected
    assert snapshot_until(tmp_path, 0) == ProgressSnapshot()


BARS = """
from pathlib import Path
from polyfed.progress import ProgressBoard, ProgressObserver
from polyfed.config import parse
from polyfed.runs.records import Accuracy, RoundRecord
with ProgressBoard() as board:
    observer = ProgressObserver(board, "[red]name")
    observer.started(parse({"rounds": 2}), Path("nowhere"), 0)
    observer.note("[bold]a note")
    for k in (1, 2):
        observer.round_done(RoundRecord(k, {"personal": Accuracy(k / 4)}, 0.5, {"a": 1024}, {}, {}, {}, [{}]))
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
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)
    for words in ("[red]name", "[bold]a note", "round 2/2", "50.00 %, best 50.00 %", "2.0 KiB up, 0 B down", "━"):
        assert words in plain
    for words in ("loss", "s per round", "failures"):
        assert words in text


def test_the_best_round_is_marked_after_a_run(capsys: pytest.CaptureFixture[str]) -> None:
    by_round = [k / 100 for k in range(1, 38)] + [0.2, 0.1, 0.3]
    measured = {"by_round": by_round, "final": 0.3, "best": 0.37, "best_round": 37}
    zeros = [0] * 40
    print_result(
        {
            "method": "m",
            "accuracy": {"personal": measured, "global": None},
            "loss": {"by_round": [None, *[1.0] * 39]},
            "bytes": {"up": 0, "down": 0, "up_by_round": zeros, "down_by_round": zeros},
            "seconds": {"total": 0.0, "by_round": zeros},
        }
    )
    out = capsys.readouterr().out
    rows = [line.split() for line in out.splitlines()]
    assert ["37", "*", "37.00", "%", "1.0000", "0", "B", "0", "B", "0.00"] in rows
    assert out.count("*") == 1 and "global" not in out.splitlines()[1]
    shown = [int(row[0]) for row in rows if row and row[0].isdigit()]
    assert shown == [1, 4, 8, 12, 16, 20, 24, 28, 32, 36, 37, 40]


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 20, "5.0 MiB"), (1 << 42, "4.0 TiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0 s"), (59, "59 s"), (75, "1 min 15 s"), (7380, "2 h 03 min")])
def test_durations(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


INTERRUPTED = """
import signal, sys
from polyfed.cli.sweep_process import EventWriter
from polyfed.cli.output import print_message
tell = print_message if sys.argv[1] == "message" else lambda word: EventWriter(2).write(word)
signal.signal(signal.SIGALRM, lambda *_: tell("note " + "n" * 60))
signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
for _ in range(5000):
    tell("line " + "x" * 60)
signal.setitimer(signal.ITIMER_REAL, 0)
"""


@pytest.mark.parametrize("how", ["message", "event"])
def test_a_signal_handler_may_write_while_a_line_is_written(how: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED, how], capture_output=True, text=True, check=True)
    lines = done.stderr.splitlines()
    texts = lines if how == "message" else [json.loads(line)["event"] for line in lines]
    assert texts.count("line " + "x" * 60) == 5000
    assert set(texts) == {"line " + "x" * 60, "note " + "n" * 60}
