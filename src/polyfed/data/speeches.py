"""Reader of plays as plain text, for next-character prediction with one natural client per speaker.

The file has blocks of a speaker's name with a colon, followed by the lines of the speech. A sample is a window of 80
characters, its label the character that follows, and the column `speaker` names the speaker.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from polyfed.data.arrays import checked_part
from polyfed.data.assemble import SplitFiles, Splits
from polyfed.data.catalogue import KnownDataset
from polyfed.errors import InputError

WINDOW, STRIDE = 80, 20
_SPEECH = re.compile(r"^([A-Z][^\n:]{0,40}):\n((?:.+\n?)*)", re.MULTILINE)


def find_speeches(folder: Path, known: KnownDataset) -> SplitFiles | None:
    """Return the only text file of the folder."""
    files = sorted(folder.glob("*.txt")) if known.name == "shakespeare" else []
    return {"train": files} if len(files) == 1 else None


def read_speeches(folder: Path, split_files: SplitFiles, known: KnownDataset) -> Splits:
    """Cut the speeches of every speaker into windows. Tokens are characters; 0 is padding."""
    (file,) = split_files["train"]
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file} is not a readable text file ({error})") from error
    characters = {character: number for number, character in enumerate(sorted(set(text)))}
    windows, labels, speakers = [], [], []
    for speaker, speech in _SPEECH.findall(text):
        codes = [characters[character] for character in speech]
        for end in range(WINDOW, len(codes), STRIDE):
            windows.append([1 + code for code in codes[end - WINDOW : end]])
            labels.append(codes[end])
            speakers.append(speaker)
    if not windows:
        raise InputError(f"{file} has no speech of more than {WINDOW} characters")
    splits = Splits("text file", vocabulary=1 + len(characters))
    splits.class_names = tuple(repr(character)[1:-1] for character in characters)
    inputs, numbers = np.array(windows, dtype=np.int64), np.array(labels, dtype=np.int64)
    splits.add("train", checked_part(inputs, numbers, str(file), {"speaker": tuple(speakers)}), str(file))
    return splits
