"""What a site answers: who it is and what it brings, and the calls of a run. Its memory is a folder of its own.

`STATE/<run>/` is a run folder for `polyfed inspect`: config.yaml, events.jsonl (what left, in words and bytes), and
clients/ (the site's states). The newest reply is kept too: a message that comes again gets the same bytes.
"""

from __future__ import annotations

import json
import logging
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyfed.config import Config, parse, size_in_bytes
from polyfed.core.codec import announce
from polyfed.core.engine import Answer, Call, Failure, Task
from polyfed.core.host import ClientMaker, Host
from polyfed.core.looks import LOOKS
from polyfed.core.step import combined
from polyfed.engines import wire
from polyfed.engines.flower import Parcel
from polyfed.errors import InputError, PayloadError, PolyfedError, StateError
from polyfed.runs.files import write_whole
from polyfed.runs.folder import SITE_FILE, RunFolder
from polyfed.runs.secret import secret_in
from polyfed.runs.store import FolderStore
from polyfed.sites import Offer, SiteFederation

MEASURED, LOSS = "evaluation", "loss"  # words of --allow for what is no field of a method
CLIENTS, REPLY = "clients", "last-reply.polyfed"


Bring = Callable[[Config], tuple[ClientMaker, Offer]]


@dataclass
class _Run:
    """A run that this site takes part in."""

    folder: RunFolder
    maker: ClientMaker
    host: Host
    offer: dict[str, Any]


class SecuredStore(FolderStore):
    """A site's states: on the disk before the answer leaves, since the coordinator counts on them from then on."""

    def write(self, client: str, version: int, frame: bytes) -> None:
        write_whole(self.path(client, version), frame)


class Site:
    """One site. `bring` makes its client for a config; `allow` are the fields it gives away, None: all asked for."""

    def __init__(self, name: str, folder: Path, bring: Bring, allow: Sequence[str] | None = None) -> None:
        self.name = name
        self.folder = folder
        self._bring = bring
        self._allow = None if allow is None else frozenset(allow)
        self._runs: dict[str, _Run] = {}
        self._one_at_a_time = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)  # what is in it is nobody else's
        write_whole(folder / SITE_FILE, json.dumps({"name": name}).encode())

    def handle(self, parcel: Parcel) -> Parcel:
        """The answer to one message of the coordinator."""
        with self._one_at_a_time:
            to = parcel.digest()
            try:
                return self._dispatched(parcel, to)
            except PolyfedError as error:
                why = str(error)
            except Exception as error:  # of a user's model or data, or of a message that is none
                logging.getLogger("polyfed").warning("a message could not be answered", exc_info=error)
                why = f"the site met a {type(error).__name__}, which its own log tells of"
            return Parcel({"to": to, "name": self.name, "refused": why})

    def _dispatched(self, parcel: Parcel, to: str) -> Parcel:
        asked, settings = parcel.head.get("do"), parcel.head.get("config")
        if asked == "hello" and isinstance(settings, Mapping):
            offer = self._begin(_run_name(parcel.head), settings).offer
            return Parcel({"to": to, "name": self.name, "offer": offer})
        if asked == "call":
            try:
                call = wire.call_from_json(parcel.head["call"])
                task = wire.task_from_json(parcel.head["task"], parcel.blocks.get("own", b""))
            except (KeyError, TypeError, AttributeError) as error:
                raise PayloadError(f"the message is malformed: {type(error).__name__} {error}") from None
            return self._answer(_run_name(parcel.head), call, task, parcel.blocks.get("shared", b""), to)
        raise PayloadError("the message asks for nothing that a site does")

    # runs

    def _begin(self, run: str, settings: Mapping[str, Any]) -> _Run:
        """Take part in a run; one that is known goes on, if it is the same."""
        config = received(settings)
        folder = RunFolder(self.folder / run)
        known = folder.exists()
        if known and parse(folder.config(), str(folder.config_file)).hash() != config.hash():
            raise InputError(f"run {run} is known here with another config")
        if run not in self._runs:
            maker, offer = self._bring(config)
            if isinstance(maker, SiteFederation):
                maker.secret = secret_in(self.folder)  # else whoever knows the run's seed could take its noise off
            engine = config.engine
            host = Host(
                maker,
                SecuredStore(folder.path / CLIENTS),
                size_in_bytes(engine.memory_budget),
                size_in_bytes(engine.message_limit),
            )
            self._runs = {run: _Run(folder, maker, host, offer.to_json())}  # one at a time in memory
        if not known:
            folder.create({**config.to_dict(), "name": config.run_name})
            folder.event("started", rounds=config.rounds, clients=config.clients, client=self.name)
        return self._runs[run]

    def _known(self, run: str) -> _Run:
        """A run that said hello, before or after this process began."""
        if run not in self._runs:
            folder = RunFolder(self.folder / run)
            if not folder.exists():
                raise StateError(f"site {self.name} knows nothing of this run; its state was lost")
            self._begin(run, folder.config())
        return self._runs[run]

    # calls

    def _answer(self, name: str, call: Call, task: Task, shared: bytes, to: str) -> Parcel:
        try:
            run = self._known(name)
            again = self._repeated(run, to)
            if again is not None:
                run.folder.event("repeated", round=call.round, call=call.number)
                return again
            self._check_allowed(run, call, task)
            answer = run.host.handle(call, task, shared)
        except StateError as error:
            return self._reply(Answer(task.client, failure=Failure("unavailable", str(error))), to)
        except PayloadError as error:
            answer = Answer(task.client, failure=Failure("refused", str(error)))
        self._record(run, call, answer)
        reply = self._reply(self._told(answer), to)
        if answer.failure is None and call.steps:
            write_whole(run.folder.path / REPLY, packed(reply))
        return reply

    def _check_allowed(self, run: _Run, call: Call, task: Task) -> None:
        """Refuse what this site does not give away, before anything is computed."""
        if task.client != self.name:
            raise PayloadError(f"this is site {self.name}, not {task.client}")
        if self._allow is None:
            return
        looked = [measure for measure in call.measures if measure in LOOKS]
        asked = list(combined(run.maker.method, call.steps).up) if call.steps else looked or [MEASURED]
        for field in asked:
            if field not in self._allow:
                raise PayloadError(
                    f"site {self.name} does not give away '{field}'; it allows {', '.join(sorted(self._allow))}"
                )

    def _told(self, answer: Answer) -> Answer:
        """What the coordinator learns besides the fields: no words of a user's code, no loss if it is barred."""
        failure, trained = answer.failure, answer.trained
        if failure is not None:
            words = failure.message
            if failure.kind == "raised":
                words = "its step raised an error, which the site's own events.jsonl tells"
            kind = "unavailable" if failure.kind == "storage" else failure.kind
            failure = Failure(kind, words)
        if self._allow is not None and LOSS not in self._allow:
            trained = ()
        return replace(answer, failure=failure, trained=trained)

    def _reply(self, answer: Answer, to: str) -> Parcel:
        head = {"to": to, "name": self.name, "answer": wire.answer_to_json(answer)}
        return Parcel(head, {"frame": answer.frame} if answer.frame else {})

    def _repeated(self, run: _Run, to: str) -> Parcel | None:
        """The reply that was given to the same message before, if it was the last."""
        try:
            kept = unpacked((run.folder.path / REPLY).read_bytes())
        except (OSError, ValueError):
            return None
        return kept if kept.head.get("to") == to else None

    def _record(self, run: _Run, call: Call, answer: Answer) -> None:
        """What leaves, in words and bytes, as a run folder tells it."""
        step = "+".join(call.steps) or MEASURED
        if answer.failure is not None:
            why = answer.failure
            run.folder.event(
                "failure",
                round=call.round,
                client=self.name,
                call=call.number,
                steps=list(call.steps or ("evaluate",)),
                kind=why.kind,
                message=why.message,
                detail=why.detail,
            )
            return
        seen = announce(answer.frame)
        run.folder.event(
            "left", round=call.round, client=self.name, step=step, fields=seen.sizes(), shapes=seen.shapes()
        )


def public(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what belongs to one machine: what it imports, whom it reports to, and where its files are."""
    shown = {key: value for key, value in settings.items() if key not in ("imports", "track", "versions")}
    return {**shown, "data": {**shown.get("data", {}), "root": None}}


def received(settings: Mapping[str, Any]) -> Config:
    """A config from a coordinator. It is data: nothing in it makes this machine import or open anything."""
    config = parse(public(settings), "the coordinator's config")
    if "path" in config.data.partition:
        raise InputError("the config names a partition file, which a site does not open on a coordinator's word")
    return config


def _run_name(head: Mapping[str, Any]) -> str:
    """The run's name, which becomes a folder."""
    run = head.get("run")
    if not isinstance(run, str) or not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", run):
        raise InputError("the message names no run")
    return run


def packed(parcel: Parcel) -> bytes:
    """A parcel as one block of bytes."""
    text = json.dumps({"head": parcel.head, "sizes": {name: len(b) for name, b in parcel.blocks.items()}}).encode()
    return b"".join((len(text).to_bytes(8, "little"), text, *parcel.blocks.values()))


def unpacked(data: bytes) -> Parcel:
    end = 8 + int.from_bytes(data[:8], "little")
    about = json.loads(data[8:end])
    blocks = {}
    for name, size in about["sizes"].items():
        blocks[name] = data[end : end + size]
        end += size
    return Parcel(about["head"], blocks)
