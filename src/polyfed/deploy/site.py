"""A site: answers the coordinator's messages, and stores its state in a folder of its own.

`STATE/<run>/` is a run folder for `polyfed inspect`: config.yaml, events.jsonl (a record of every upload), clients/
(the states of the site's client), and after the last round model/ (its trained model).
"""

from __future__ import annotations

import hashlib
import json
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from polyfed import catalogue
from polyfed.config import Config, parse
from polyfed.core.client_host import ClientMaker, Host
from polyfed.core.engine import Answer, Call, Failure, FrameBytes, Task, TrainingStats
from polyfed.core.message_header import read_header
from polyfed.core.model_probes import PROBES
from polyfed.core.place import Place
from polyfed.core.step import combined
from polyfed.deploy.offers import Offer
from polyfed.deploy.privacy_ledger import PrivacyLedger
from polyfed.deploy.release_control import ReleaseControl
from polyfed.deploy.reply_cache import ReplyCache
from polyfed.deploy.site_config import parse_received_config
from polyfed.deploy.site_demands import Demands
from polyfed.deploy.site_errors import SETUP_FAILED, SITE_FAILED, SiteRefusalError, log_error, public_failure
from polyfed.deploy.site_federation import SiteFederation
from polyfed.deploy.site_models import is_last_evaluation, write_final_model
from polyfed.deploy.site_requests import read_call, run_name
from polyfed.deploy.site_setup import SiteSetup, setup_fingerprint
from polyfed.engines import framing
from polyfed.engines.flower import SiteMessage
from polyfed.errors import InputError, PolyfedError, StateError
from polyfed.federation.placement import host_at
from polyfed.runs.atomic_files import write_atomically, write_parts_atomically
from polyfed.runs.folder import SITE_FILE, RunFolder
from polyfed.runs.secret import load_secret
from polyfed.runs.state_store import FolderStore
from polyfed.training.metrics import CONFUSION

EVALUATION, LOSS = "evaluation", "loss"  # values of --allow that are not fields of a method
CLIENTS, OFFER = "clients", "offer.json"
REHEARSAL = "rehearsal"  # key of the privacy ledger in place of a digest of data
MAX_MESSAGE_BYTES = 4 << 30  # that a site accepts by default


class UnknownRunError(StateError):
    """A run that this site has not started, or whose folder was deleted."""


@dataclass
class _Run:
    """A run in which this site takes part."""

    folder: RunFolder
    maker: ClientMaker
    host: Host
    offer: dict[str, Any]
    replies: ReplyCache
    config: Config
    control: ReleaseControl


class DurableStore(FolderStore):
    """States of a site's client. A state is on disk before its reply is sent: the coordinator relies on it then."""

    def write(self, client: str, version: int, frame: FrameBytes, discard: Sequence[int] = ()) -> None:
        write_parts_atomically(self.path(client, version), frame)
        self.delete(client, discard)


class Site:
    """One site. `setup` prepares it for the run of a config.

    `allow` are the fields that it may upload, or None to allow all. `limit` is the largest message in bytes that it
    accepts, whatever the config says. `demands` are conditions that every run must meet. `imports` are modules and
    files that register its models and methods. `notify` receives messages for the site's user. `place` is the device
    that it trains on; by default the CPU.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        setup: SiteSetup,
        allow: Sequence[str] | None = None,
        *,
        limit: int = MAX_MESSAGE_BYTES,
        demands: Demands | None = None,
        imports: Sequence[str] = (),
        notify: Callable[[str], None] = lambda text: None,
        place: Place | None = None,
    ) -> None:
        self.name = name
        self._place = place or Place()
        self.folder = folder
        self._setup = setup
        self._allow = None if allow is None else frozenset(allow)
        self._limit = limit
        self._demands = demands or Demands()
        self._imports = tuple(imports)
        self._notify = notify
        self._runs: dict[str, _Run] = {}
        self._lock = threading.Lock()  # one message at a time
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)  # private to the site's user
        write_atomically(folder / SITE_FILE, json.dumps({"name": name}).encode())

    def handle(self, message: SiteMessage) -> SiteMessage:
        """Return the reply to one message of the coordinator. Never raise."""
        with self._lock:
            digest = message.digest()
            try:
                return self._dispatch(message, digest)
            except SiteRefusalError as error:
                reason = str(error)
            except Exception as error:  # of the user's model or data, or of an invalid message
                reason = SETUP_FAILED if isinstance(error, InputError) else SITE_FAILED
                self._log(error)
            return SiteMessage({"to": digest, "name": self.name, "refused": reason})

    def _log(self, error: Exception) -> None:
        """Write an error to the site's log and tell its user. Its text may contain anything, so it stays here."""
        known = isinstance(error, PolyfedError)
        text = str(error) if known else "".join(traceback.format_exception(error))
        log_error(self.folder, text)
        self._notify(f"a message could not be answered: {text if known else repr(error)}")

    def _dispatch(self, message: SiteMessage, digest: str) -> SiteMessage:
        header = message.header
        action, settings = header.get("do"), header.get("config")
        if action == "hello" and isinstance(settings, Mapping):
            run = self._begin(run_name(header), settings)
            fields = {"offer": len(json.dumps(run.offer))}
            shapes = {"offer": "shapes of the model, samples by class"}
            run.folder.event("left", round=0, client=self.name, step="hello", fields=fields, shapes=shapes)
            return SiteMessage({"to": digest, "name": self.name, "offer": run.offer})
        if action == "call":
            call, task = read_call(message)
            return self._answer(run_name(header), call, task, message.blocks.get("shared", b""), digest)
        raise SiteRefusalError("the message asks for an action that a site does not have")

    # runs

    def _begin(self, run: str, settings: Mapping[str, Any]) -> _Run:
        """Start or resume a run. Raise `InputError` if it is known with another config, model or data."""
        try:
            config = parse_received_config(settings)
            catalogue.make(config.method)  # reports a method that is not installed here
        except InputError as error:  # it quotes the config, and the data has not been opened yet
            raise SiteRefusalError(str(error)) from None
        folder = RunFolder(self.folder / run)
        resumed = folder.exists()
        if resumed and parse(folder.config(), str(folder.config_file)).hash() != config.hash():
            raise SiteRefusalError(f"this site has already started run {run} with another config")
        if run not in self._runs:
            maker, offer = self._setup(config)
            self._check_same(folder.path / OFFER, run, maker, offer)
            if isinstance(maker, SiteFederation):
                # otherwise the run's seed would be enough to remove the noise
                maker.secret = load_secret(self.folder)
            control = self._release_control(run, maker)
            store = DurableStore(folder.path / CLIENTS)
            host = host_at(self._place, maker, store, config.engine, self._limit)
            # only one run is held in memory
            replies = ReplyCache(folder.path)
            self._runs = {run: _Run(folder, maker, host, offer.to_json(), replies, config, control)}
        if not resumed:
            folder.create({**config.to_dict(), "name": config.run_name})
            write_atomically(folder.path / OFFER, setup_fingerprint(self._runs[run].maker, self._runs[run].offer))
            folder.event("started", rounds=config.rounds, clients=config.clients, client=self.name)
        return self._runs[run]

    def _release_control(self, run: str, maker: ClientMaker) -> ReleaseControl:
        """Return the control of a run's uploads. Raise `SiteRefusalError` if the config does not meet the demands."""
        data = maker.dataset.digest if isinstance(maker, SiteFederation) else REHEARSAL
        control = ReleaseControl(self.name, run, self._demands, PrivacyLedger(self.folder, data), maker)
        control.check_run()
        return control

    def _check_same(self, file: Path, run: str, maker: ClientMaker, offer: Offer) -> None:
        """Raise `InputError` if a resumed run has another model or other data than at its start."""
        if file.exists() and file.read_bytes() != setup_fingerprint(maker, offer.to_json()):
            raise SiteRefusalError(f"site {self.name} started run {run} with another model or other data")

    def _known_run(self, run: str) -> _Run:
        """Return a run whose handshake is complete, in this process or in an earlier one."""
        if run not in self._runs:
            folder = RunFolder(self.folder / run)
            if not folder.exists():
                raise UnknownRunError(f"site {self.name} does not know this run; its state was lost")
            self._begin(run, folder.config())
        return self._runs[run]

    # calls

    def _answer(self, name: str, call: Call, task: Task, shared: bytes, digest: str) -> SiteMessage:
        try:
            run = self._known_run(name)
            cached = run.replies.load(digest)
            if cached is not None:
                run.folder.event("repeated", round=call.round, call=call.number)
                return cached
        except UnknownRunError as error:
            return self._reply(Answer(task.client, failure=Failure("unavailable", str(error))), digest)
        try:
            self._check_size(task, shared)
            self._check_allowed(run, call, task)
            run.control.admit_evaluation(call, task, shared)
            answer = run.host.handle(call, task, shared)
            if answer.failure is None and call.steps:
                run.control.admit_upload(read_header(answer.frame).sizes(), hashlib.sha256(answer.frame).hexdigest())
            public = self._public_answer(answer)
        except SiteRefusalError as error:
            public = answer = Answer(task.client, failure=Failure("refused", str(error)))
        self._record(run, call, answer, public.trained)
        reply = self._reply(public, digest)
        if answer.failure is None and call.steps:
            run.replies.save(reply)
        if answer.failure is None and is_last_evaluation(run.config, call):
            self._save_model(run, call, task, shared)
        return reply

    def _save_model(self, run: _Run, call: Call, task: Task, shared: bytes) -> None:
        """Write the trained model to the site's folder. A failure is reported and does not affect the federation."""
        try:
            folder = write_final_model(run.maker, run.host, call, task, shared, run.folder.path, self._imports)
        except Exception as error:  # of the disk, or of the user's model
            text = f"the trained model could not be written: {error}"
        else:
            text = f"the trained model is in {folder}; load it with polyfed.load_client('{folder}')"
        run.folder.event("note", message=text)
        self._notify(text)

    def _check_size(self, task: Task, shared: bytes) -> None:
        """Raise `SiteRefusalError` if a message is larger than the site accepts."""
        size = max(len(shared), len(task.own))
        if size > self._limit:
            raise SiteRefusalError(f"the message has {size:,} bytes; site {self.name} accepts {self._limit:,}")

    def _check_allowed(self, run: _Run, call: Call, task: Task) -> None:
        """Raise `SiteRefusalError` before anything is computed if the call asks for a field that is not allowed."""
        if task.client != self.name:
            raise SiteRefusalError(f"this is site {self.name}, not {task.client}")
        if call.steps and call.measures:
            raise SiteRefusalError(f"site {self.name} evaluates its model in a call of its own, without steps")
        if self._allow is None:
            return
        measures = [measure if measure in PROBES else EVALUATION for measure in call.measures or (EVALUATION,)]
        if CONFUSION in call.metrics:
            measures.append(CONFUSION)  # it reveals the label counts of the test data, so it needs its own permission
        fields = [*combined(run.maker.method, call.steps).up] if call.steps else measures
        for field in fields:
            if field not in self._allow:
                raise SiteRefusalError(
                    f"site {self.name} does not allow '{field}' to be uploaded; it allows "
                    f"{', '.join(sorted(self._allow))}"
                )

    def _public_answer(self, answer: Answer) -> Answer:
        """Return an answer without error texts of user code, and without the loss if it may not be sent.

        The loss depends on single samples, so it is not sent if the site has an epsilon budget.
        """
        failure = None if answer.failure is None else public_failure(answer.failure)
        loss_allowed = self._demands.epsilon_budget is None and (self._allow is None or LOSS in self._allow)
        return replace(answer, failure=failure, trained=answer.trained if loss_allowed else (), notes=())

    def _reply(self, answer: Answer, digest: str) -> SiteMessage:
        header = {"to": digest, "name": self.name, "answer": framing.answer_to_json(answer)}
        return SiteMessage(header, {"frame": answer.frame} if answer.frame else {})

    def _record(self, run: _Run, call: Call, answer: Answer, trained: Sequence[TrainingStats]) -> None:
        """Record what is uploaded, or the failure, as an event of the run folder."""
        if answer.failure is not None:
            run.folder.event(
                "failure",
                round=call.round,
                client=self.name,
                call=call.number,
                steps=list(call.steps or ("evaluate",)),
                kind=answer.failure.kind,
                message=answer.failure.message,
                detail=answer.failure.detail,
            )
            return
        header = read_header(answer.frame)
        fields, shapes = header.sizes(), header.shapes()
        if trained:
            fields[LOSS], shapes[LOSS] = 24 * len(trained), "mean loss, samples and steps of training"
        step = "+".join(call.steps) or EVALUATION
        run.folder.event("left", round=call.round, client=self.name, step=step, fields=fields, shapes=shapes)
