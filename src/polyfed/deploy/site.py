"""What a site answers: who it is and what it brings, and the calls of a run. Its memory is a folder of its own.

`STATE/<run>/` is a run folder for `polyfed inspect`: config.yaml, events.jsonl (what left, in words and bytes), and
clients/ (the site's states). The newest reply is kept too: a message that comes again gets the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyfed.config import Config, parse, size_in_bytes
from polyfed.core.codec import read_header
from polyfed.core.engine import Answer, Call, Failure, Task, TrainingStats
from polyfed.core.host import ClientMaker, Host
from polyfed.core.probes import PROBES
from polyfed.core.step import combined
from polyfed.deploy.offers import Offer
from polyfed.deploy.site_federation import SiteFederation
from polyfed.engines import framing
from polyfed.engines.flower import Parcel
from polyfed.errors import InputError, PayloadError, PolyfedError, StateError
from polyfed.runs.atomic_files import write_atomically
from polyfed.runs.folder import SITE_FILE, RunFolder
from polyfed.runs.secret import load_secret
from polyfed.runs.state_store import FolderStore

MEASURED, LOSS = "evaluation", "loss"  # words of --allow for what is no field of a method
CLIENTS, REPLY, OFFER = "clients", "last-reply.polyfed", "offer.json"
LARGEST = 4 << 30  # bytes of a message that a site takes, unless its owner says otherwise
MOST_PIXELS = 3 * 1024 * 1024  # numbers in one picture that a site brings its own to on a coordinator's word

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
        write_atomically(self.path(client, version), frame)


class Site:
    """One site. `bring` makes its client for a config; `allow` are the fields it gives away, None: all asked for.

    `limit` is the most bytes that it takes in one message, whatever the config says. `places` are folders and files
    whose names stay here.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        bring: Bring,
        allow: Sequence[str] | None = None,
        *,
        limit: int = LARGEST,
        places: Sequence[Path] = (),
    ) -> None:
        self.name = name
        self.folder = folder
        self._bring = bring
        self._allow = None if allow is None else frozenset(allow)
        self._limit = limit
        self._places = (folder, *places)
        self._runs: dict[str, _Run] = {}
        self._one_at_a_time = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)  # what is in it is nobody else's
        write_atomically(folder / SITE_FILE, json.dumps({"name": name}).encode())

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
            return Parcel({"to": to, "name": self.name, "refused": self._without_places(why)})

    def _without_places(self, words: str) -> str:
        """A sentence that leaves, without the names of folders and files of this machine."""
        names = {str(form) for place in self._places for form in (place, place.expanduser().resolve())}
        for name in sorted(names - {"", ".", "/"}, key=len, reverse=True):
            words = re.sub(re.escape(name) + r"[^\s'\",;:]*", "a folder of this site", words)
        return re.sub(r"(?<![\w/.:])(~|[A-Za-z]:\\|/)[^\s'\",;:]*/[^\s'\",;:]*", "a file of this site", words)

    def _dispatched(self, parcel: Parcel, to: str) -> Parcel:
        asked, settings = parcel.head.get("do"), parcel.head.get("config")
        if asked == "hello" and isinstance(settings, Mapping):
            run = self._begin(_run_name(parcel.head), settings)
            said = {"offer": len(json.dumps(run.offer))}
            about = {"offer": "shapes of the model, samples by class"}
            run.folder.event("left", round=0, client=self.name, step="hello", fields=said, shapes=about)
            return Parcel({"to": to, "name": self.name, "offer": run.offer})
        if asked == "call":
            try:
                call = framing.call_from_json(parcel.head["call"])
                task = framing.task_from_json(parcel.head["task"], parcel.blocks.get("own", b""))
                _check_types(call, task)
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
            self._check_same(folder.path / OFFER, run, maker, offer)
            if isinstance(maker, SiteFederation):
                maker.secret = load_secret(self.folder)  # else whoever knows the run's seed could take its noise off
            engine = config.engine
            host = Host(
                maker,
                SecuredStore(folder.path / CLIENTS),
                size_in_bytes(engine.memory_budget),
                min(size_in_bytes(engine.message_limit), self._limit),
            )
            self._runs = {run: _Run(folder, maker, host, offer.to_json())}  # one at a time in memory
        if not known:
            folder.create({**config.to_dict(), "name": config.run_name})
            write_atomically(folder.path / OFFER, _identity(self._runs[run].maker, self._runs[run].offer))
            folder.event("started", rounds=config.rounds, clients=config.clients, client=self.name)
        return self._runs[run]

    def _check_same(self, file: Path, run: str, maker: ClientMaker, offer: Offer) -> None:
        """A run goes on with the model and the data that it began with."""
        if file.exists() and file.read_bytes() != _identity(maker, offer.to_json()):
            raise InputError(f"site {self.name} came back with another model or other data than it began {run} with")

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
            why = self._without_places(str(error))
            return self._reply(Answer(task.client, failure=Failure("unavailable", why)), to)
        except PayloadError as error:
            answer = Answer(task.client, failure=Failure("refused", str(error)))
        told = self._told(answer)
        self._record(run, call, answer, told.trained)
        reply = self._reply(told, to)
        if answer.failure is None and call.steps:
            write_atomically(run.folder.path / REPLY, packed(reply))
        return reply

    def _check_allowed(self, run: _Run, call: Call, task: Task) -> None:
        """Refuse what this site does not give away, before anything is computed."""
        if task.client != self.name:
            raise PayloadError(f"this is site {self.name}, not {task.client}")
        if self._allow is None:
            return
        measured = [measure if measure in PROBES else MEASURED for measure in call.measures or (MEASURED,)]
        asked = [*combined(run.maker.method, call.steps).up] if call.steps else measured
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
            failure = Failure(kind, self._without_places(words))
        if self._allow is not None and LOSS not in self._allow:
            trained = ()
        return replace(answer, failure=failure, trained=trained)

    def _reply(self, answer: Answer, to: str) -> Parcel:
        head = {"to": to, "name": self.name, "answer": framing.answer_to_json(answer)}
        return Parcel(head, {"frame": answer.frame} if answer.frame else {})

    def _repeated(self, run: _Run, to: str) -> Parcel | None:
        """The reply that was given to the same message before, if it was the last."""
        try:
            with (run.folder.path / REPLY).open("rb") as file:  # its head first: the rest may be large
                start = file.read(8)
                text = file.read(int.from_bytes(start, "little"))
                if json.loads(text)["head"]["to"] != to:
                    return None
                return unpacked(b"".join((start, text, file.read())))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _record(self, run: _Run, call: Call, answer: Answer, trained: Sequence[TrainingStats]) -> None:
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
        seen = read_header(answer.frame)
        fields, shapes = seen.sizes(), seen.shapes()
        if trained:
            fields[LOSS], shapes[LOSS] = 24 * len(trained), "mean loss, samples and steps of training"
        run.folder.event("left", round=call.round, client=self.name, step=step, fields=fields, shapes=shapes)


FILES = ("source", "checkpoint")  # fields of methods that name files, which only the server opens
AT_COORDINATOR = "at-the-coordinator"


def public(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A config without what belongs to one machine: what it imports, whom it reports to, and where its files are."""
    shown = {key: value for key, value in settings.items() if key not in ("imports", "track", "versions")}
    if isinstance(method := shown.get("method"), Mapping):
        shown["method"] = {key: AT_COORDINATOR if key in FILES and value else value for key, value in method.items()}
    return {**shown, "data": {**shown.get("data", {}), "root": None}}


def received(settings: Mapping[str, Any]) -> Config:
    """A config from a coordinator. It is data: nothing in it makes this machine import or open anything."""
    config = parse(public(settings), "the coordinator's config")
    if "path" in config.data.partition:
        raise InputError("the config names a partition file, which a site does not open on a coordinator's word")
    if config.data.shape is not None and math.prod(config.data.shape) > MOST_PIXELS:
        raise InputError(f"data.shape is {config.data.shape}; a site makes no pictures of over {MOST_PIXELS} numbers")
    return config


def _check_types(call: Call, task: Task) -> None:
    """Numbers are numbers and names are texts: they become parts of file names, among other things."""
    numbers = (call.number, call.round, task.base, *task.discard)
    texts = (task.client, *call.steps, *call.labels, *call.measures)
    if not all(type(number) is int and abs(number) < 1 << 53 for number in numbers):
        raise TypeError("a number of a call or of a state is none")
    if not all(isinstance(text, str) for text in texts) or not (call.steps or call.measures):
        raise TypeError("steps and measures must be names")


def _identity(maker: ClientMaker, offer: Mapping[str, Any]) -> bytes:
    """What a site is like in a run: what it tells of itself, and a digest of some of its data, which stays here."""
    seen = hashlib.sha256()
    if isinstance(maker, SiteFederation):
        images, labels = maker.train.images, maker.train.labels
        seen.update(labels.numpy().tobytes())
        seen.update(images[:: max(1, len(images) // 64)].contiguous().numpy().tobytes())
    return json.dumps({"offer": offer, "data": seen.hexdigest()}, sort_keys=True).encode()


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
