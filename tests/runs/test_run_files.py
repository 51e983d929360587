"""Files of run folders that cannot be written or read: one sentence, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from polyfed.errors import InputError, StateError
from polyfed.runs.atomic_files import check_file_writable, check_folder_creatable, sync_file, write_atomically
from polyfed.runs.folder import RunFolder


def test_a_file_that_cannot_be_replaced_leaves_no_temporary_one(tmp_path: Path) -> None:
    target = tmp_path / "result.json"
    target.mkdir()
    with pytest.raises(StateError, match=r"result.json could not be written: Is a directory"):
        write_atomically(target, b"{}")
    assert list(tmp_path.iterdir()) == [target]
    with pytest.raises(StateError, match="could not be written: No such file or directory"):
        write_atomically(tmp_path / "missing" / "file", b"")
    with pytest.raises(StateError, match="could not be flushed to disk: No such file"):
        sync_file(tmp_path / "missing")


def test_paths_are_checked_before_anything_is_written(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match="is a folder; name a file in it"):
        check_file_writable(tmp_path)
    with pytest.raises(InputError, match="there is no folder"):
        check_file_writable(tmp_path / "none" / "report.html")
    with pytest.raises(InputError, match="is not a folder"):
        check_folder_creatable(file / "deeper" / "run")
    with pytest.raises(InputError, match=r"cannot be written: /proc: "):
        check_folder_creatable(Path("/proc/run"))
    check_file_writable(tmp_path / "report.html")
    check_folder_creatable(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == [file]


def test_files_of_a_run_folder_that_cannot_be_read(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert not folder.exists() and folder.result() is None and folder.user_code() == ""
    with pytest.raises(InputError, match=r"is not a run folder: it has no config.yaml"):
        folder.config()
    folder.config_file.write_text("- a list\n")
    with pytest.raises(InputError, match=r"config.yaml does not hold a config"):
        folder.config()
    folder.result_file.write_text("[1]")
    with pytest.raises(InputError, match=r"result.json holds a list, expected a mapping"):
        folder.result()
    folder.user_code_file.mkdir()
    with pytest.raises(InputError, match=r"user_code.py cannot be read"):
        folder.user_code()
    with pytest.raises(InputError, match="cannot be a run folder: File name too long"):
        RunFolder(tmp_path / ("x" * 300)).exists()
