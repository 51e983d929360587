"""Damaged run folders: every file of a run, in every way in which it can be wrong."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

FILES = ("config.yaml", "result.json", "events.jsonl", "clients.json", ".lock", "partition.npz")
HUGE = int("9" * 400)
ALIAS_BOMB = "\n".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]" for n in range(12))
WRONG: dict[str, Any] = {"null": None, "list": [[]], "text": "x", "huge": HUGE, "negative": -1, "mapping": {"x": {}}}
Damage = Callable[[Path], None]


@dataclass(frozen=True)
class Case:
    """One kind of damage to a run folder."""

    name: str
    file: str
    damage: Damage

    def make(self, sound: Path, target: Path) -> Path:
        """Copy a sound run folder and damage the copy."""
        shutil.copytree(sound, target)
        path = target / self.file
        if path.exists():
            self.damage(path)
        return target


def cases(sound: Path, outside: Path) -> Iterator[Case]:
    """Yield all cases for a run folder. `outside` is a file that no reader may show."""
    numbered = random.Random(0)
    files = [*FILES, *(str(path.relative_to(sound)) for path in _deeper(sound))]
    for file in files:
        for name, damage in _whole_file(outside, numbered.randrange(1 << 30)).items():
            yield Case(f"{file}: {name}", file, damage)
    for file in ("config.yaml", "result.json", "clients.json"):
        if (sound / file).exists():
            yield from _wrong_values(file, _load(sound / file))
    yield from _wrong_events(sound)


def _deeper(sound: Path) -> list[Path]:
    """Return one file of each folder of the run folder."""
    folders = [path for path in sorted(sound.rglob("*")) if path.is_dir()]
    first = [next((path for path in sorted(folder.iterdir()) if path.is_file()), None) for folder in folders]
    return [path for path in first if path is not None]


def _whole_file(outside: Path, seed: int) -> dict[str, Damage]:
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        chosen = random.Random(seed)
        for _ in range(max(1, len(data) // 50) if data else 0):
            data[chosen.randrange(len(data))] ^= 1 << chosen.randrange(8)
        path.write_bytes(data)

    def replace(make: Callable[[Path], object]) -> Damage:
        def damage(path: Path) -> None:
            path.unlink()
            make(path)

        return damage

    def cut(share: float) -> Damage:
        return lambda path: os.truncate(path, int(share * path.stat().st_size))

    def write(data: bytes) -> Damage:
        return lambda path: void(path.write_bytes(data))

    def bad_byte(path: Path) -> None:
        data = path.read_bytes()
        path.write_bytes(data[: len(data) // 2] + b"\xff\xfe" + data[len(data) // 2 :])

    return {
        "missing": Path.unlink,
        "empty": write(b""),
        "cut to 10 %": cut(0.1),
        "cut to 50 %": cut(0.5),
        "cut to 90 %": cut(0.9),
        "flipped bits": flip,
        "a bad byte": bad_byte,
        "binary": write(random.Random(seed).randbytes(3000)),
        "zeros": write(b"\0" * 1000),
        "1,000 brackets": write(b"[" * 1000),
        "100,000 brackets": write(b"[" * 100_000),
        "nested mappings": write(b'{"a":' * 20_000),
        "nested list items": write(b"- " * 20_000),
        "alias bomb": write(ALIAS_BOMB.encode()),
        "a list": write(b"[1, 2]\n"),
        "a number": write(b"7\n"),
        "a number of 5,000 digits": write(b"9" * 5000),
        "a folder": replace(Path.mkdir),
        "a link to a file outside": replace(lambda path: path.symlink_to(outside)),
        "a link to itself": replace(lambda path: path.symlink_to(path.name)),
        "a pipe": replace(os.mkfifo),
    }


def _load(path: Path) -> dict[str, Any]:
    text = path.read_text()
    loaded: dict[str, Any] = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    return loaded


def _wrong_values(file: str, content: dict[str, Any]) -> Iterator[Case]:
    """Yield cases in which one key of a file has a value of another type, or is missing."""
    places: list[tuple[str, ...]] = [(key,) for key in content]
    places += [(key, inner) for key, value in content.items() if isinstance(value, dict) for inner in value]
    for place in places:
        for name, value in {**WRONG, "missing": None}.items():

            def damage(
                path: Path, place: tuple[str, ...] = place, value: Any = value, missing: bool = name == "missing"
            ) -> None:
                tree = content_of(path)
                parent = tree if len(place) == 1 else tree[place[0]]
                if missing:
                    del parent[place[-1]]
                else:
                    parent[place[-1]] = value
                path.write_text(json.dumps(tree) if path.suffix == ".json" else yaml.safe_dump(tree))

            yield Case(f"{file}: {'.'.join(place)} {name}", file, damage)


def content_of(path: Path) -> dict[str, Any]:
    return _load(path)


def _wrong_events(sound: Path) -> Iterator[Case]:
    """Yield cases in which one event of each kind is damaged."""
    file = "events.jsonl"
    lines = (sound / file).read_text().splitlines()
    kinds = {json.loads(line)["event"]: number for number, line in enumerate(lines)}
    for kind, number in kinds.items():
        event = json.loads(lines[number])

        def rewrite(path: Path, line: str, number: int = number) -> None:
            every = path.read_text().splitlines()
            every[number] = line
            path.write_text("\n".join(every) + "\n")

        for key in event:
            for name, value in WRONG.items():
                line = json.dumps({**event, key: value})
                yield Case(f"{kind} event: {key} {name}", file, lambda path, line=line: rewrite(path, line))  # type: ignore[misc]
        cut = lines[number][: len(lines[number]) // 2]
        yield Case(f"{kind} event: cut", file, lambda path, cut=cut: rewrite(path, cut))  # type: ignore[misc]
        deep = '{"event": ' + "[" * 100_000
        yield Case(f"{kind} event: deep", file, lambda path, deep=deep: rewrite(path, deep))  # type: ignore[misc]


def void(_: object) -> None:
    """Ignore a value, for functions that return None."""
