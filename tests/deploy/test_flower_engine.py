"""The Flower engine and its sites, without Flower: messages, failures, and what a site uploads."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.direct_link import (
    METHODS,
    OWN_MODEL,
    OWN_SETTING,
    RUN,
    SETTING,
    DirectLink,
    collect_offers,
    handshake,
    make_sites,
    own_data,
    run_over,
)
from tests.deploy.flower_names import Metadata, get_all_nested_objects, make_message

import polyfed
from polyfed import api
from polyfed.config import parse
from polyfed.core.class_tables import ClassTable
from polyfed.core.codec import encode
from polyfed.core.engine import Call, Task
from polyfed.deploy import messages
from polyfed.deploy.flower_adapter import Message
from polyfed.deploy.messages import from_flower_message, to_record_dict
from polyfed.deploy.reply_cache import from_bytes, to_bytes
from polyfed.deploy.site import Site
from polyfed.deploy.site_config import parse_received_config, public_config
from polyfed.deploy.site_errors import ERRORS, SENTENCES, SETUP_FAILED, SITE_FAILED
from polyfed.deploy.site_federation import load_site
from polyfed.deploy.site_run import plan_from_offers
from polyfed.deploy.site_setup import own_data_setup, rehearsal_setup
from polyfed.engines import framing
from polyfed.engines.flower import FlowerEngine, SiteMessage
from polyfed.errors import InputError, RunError
from polyfed.runs.folder import RunFolder

IMAGES = np.random.default_rng(0).integers(0, 256, (7, 1, 8, 8), dtype=np.uint8)


def rehearsal_sites(folder: Path, allow: list[str] | None = None) -> DirectLink:
    return make_sites(folder, {name: rehearsal_setup(name) for name in SETTING["names"]}, allow)


def call_sites(link: DirectLink, call: Call, tasks: list[Task], timeout: float = 60.0) -> list[Any]:
    engine = FlowerEngine(link, run=RUN, timeout=timeout)
    return list(engine.call(call, encode({"prototypes": ClassTable.of({}, 64)}).data, tasks))


def flip_last_bit(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


TRAIN = Call(1, 1, ("train",), ("train",))


@pytest.mark.parametrize("method", ["fedproto", "scaffold"])
def test_results_are_bit_identical_to_serial(method: str, tmp_path: Path) -> None:
    chosen = {**SETTING, **METHODS[method]}
    serial = api.run(chosen, out=tmp_path / "serial")
    remote = run_over(rehearsal_sites(tmp_path), chosen, tmp_path / "remote")
    assert remote["state_hash"] == serial["state_hash"]
    assert remote["accuracy"] == serial["accuracy"]
    for name in chosen["names"]:  # every site has its trained model, like `polyfed export` of the simulation
        here, there = (polyfed.load_client(folder, name) for folder in (tmp_path / name / RUN, tmp_path / "serial"))
        assert here.architecture == there.architecture and here.classes == there.classes
        assert np.array_equal(here.predict_proba(IMAGES), there.predict_proba(IMAGES))
    assert remote["bytes"] == serial["bytes"]
    assert remote["failures"] == []


def test_three_sites_with_their_own_data_and_models(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OWN_MODEL)
    models = {"ana": str(tmp_path / "model.py"), "ben": "tiny-cnn", "cleo": "tiny-mlp"}
    setups = {
        name: own_data_setup(name, own_data(tmp_path / "data" / name, k), model, tmp_path / name)
        for k, (name, model) in enumerate(models.items())
    }
    notices: list[str] = []
    link = make_sites(tmp_path, setups)
    link.sites["ben"] = Site("ben", tmp_path / "ben", setups["ben"], notify=notices.append)
    result = run_over(link, OWN_SETTING, tmp_path / "run")
    clients = json.loads((tmp_path / "run" / "clients.json").read_text())["clients"]
    assert [client["model"] for client in clients][1:] == ["tiny-cnn", "tiny-mlp"]
    assert all(sum(client["train"].values()) == 18 for client in clients)  # a quarter of 24 is held out
    assert len(result["accuracy"]["personal"]["by_client"]) == 3
    assert result["accuracy"]["personal"]["final"] is not None
    for k, name in enumerate(models):
        trained = polyfed.load_client(tmp_path / name / RUN)
        test = load_site(parse(OWN_SETTING), name, tmp_path / "data" / name, models[name]).test
        correct = int((trained.predict(test.inputs) == test.labels).sum())
        assert correct / len(test) == result["accuracy"]["personal"]["by_client"][k]
        assert trained.classes == ("low", "middle", "high")
    assert notices == [
        f"the trained model is in {tmp_path}/ben/{RUN}/model; load it with "
        f"polyfed.load_client('{tmp_path}/ben/{RUN}/model')"
    ]
    # the next federation starts from it
    started = load_site(
        parse(OWN_SETTING), "ben", tmp_path / "data" / "ben", "tiny-cnn", start=tmp_path / "ben" / RUN / "model"
    )
    weights = polyfed.load_client(tmp_path / "ben" / RUN).model.state_dict()
    assert all(
        torch.equal(weights[key], value) for key, value in started.make_client("ben").model.state_dict().items()
    )
    with pytest.raises(InputError, match=r"models.start of client cleo \(.*\) has no tensor 'backbone"):
        load_site(
            parse(OWN_SETTING), "cleo", tmp_path / "data" / "cleo", "tiny-mlp", start=tmp_path / "ben" / RUN / "model"
        )


def test_sites_take_part_in_secure_sums(tmp_path: Path) -> None:
    results = {}
    for label, rule in (("plain", {"name": "mean"}), ("secure", {"name": "mean", "secure": True})):
        setups = {
            name: own_data_setup(
                name, own_data(tmp_path / label / "data" / name, k), "tiny-mlp", tmp_path / label / name
            )
            for k, name in enumerate(OWN_SETTING["names"])
        }
        link = make_sites(tmp_path / label, setups)
        results[label] = run_over(link, {**OWN_SETTING, "aggregation": rule}, tmp_path / label / "run")
    assert results["secure"]["failures"] == []
    assert results["secure"]["accuracy"]["personal"] == results["plain"]["accuracy"]["personal"]
    assert set(results["secure"]["bytes"]["by_field"]["up"]) == {"keys", "shares", "masked", "opened"}


def test_a_model_that_cannot_be_written_does_not_stop_the_federation(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path)
    (tmp_path / "ana" / RUN).mkdir()
    (tmp_path / "ana" / RUN / "model").write_text("in the way")
    result = run_over(link, {**SETTING, "method": "local"}, tmp_path / "run")
    assert result["failures"] == []
    notes = [event["message"] for event in RunFolder(tmp_path / "ana" / RUN).events() if event["event"] == "note"]
    assert len(notes) == 1 and notes[0].startswith("the trained model could not be written: ")


# failures


def test_an_offline_site_is_left_out_and_continues_with_its_state(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path)
    collect_offers(link, parse(SETTING))
    call_sites(link, TRAIN, [Task("ana", 0), Task("ben", 0)])
    link.offline.add("ben")
    second = Call(2, 2, ("train",), ("train",))
    answers = call_sites(link, second, [Task("ana", 1), Task("ben", 1)])
    assert [answer.failure and answer.failure.kind for answer in answers] == [None, "unavailable"]
    assert "ben" in answers[1].failure.message
    link.offline.clear()
    assert call_sites(link, Call(3, 3, ("train",), ("train",)), [Task("ben", 1)])[0].failure is None


def test_a_silent_site_times_out(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path)
    collect_offers(link, parse(SETTING))
    link.silent.add("ana")
    answers = call_sites(link, TRAIN, [Task("ana", 0), Task("ben", 0)], timeout=4.0)
    assert [answer.failure and answer.failure.kind for answer in answers] == ["timeout", None]


def test_the_round_goes_on_without_a_lost_site(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path)
    collect_offers(link, parse(SETTING))
    link.silent.add("ana")
    link.lost_sites.add("ana")
    answers = call_sites(link, TRAIN, [Task("ana", 0), Task("ben", 0)], timeout=1e6)
    assert [answer.failure and answer.failure.kind for answer in answers] == ["unavailable", None]
    assert answers[0].failure.message == "site ana was lost" and link.was_reset == ["ana"]


def test_answers_are_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path)
    collect_offers(link, parse(SETTING))
    answers = call_sites(link, TRAIN, [Task("ben", 0), Task("ana", 0)])
    assert [answer.client for answer in answers] == ["ben", "ana"]


@pytest.mark.parametrize(
    ("modify", "reason"),
    [
        (lambda reply: SiteMessage({**reply.header, "to": "0" * 64}, reply.blocks), "expected message"),
        (lambda reply: SiteMessage({"to": reply.header["to"]}, reply.blocks), "malformed"),
        (lambda reply: SiteMessage({**reply.header, "answer": [1, 2]}, reply.blocks), "malformed"),
        (
            lambda reply: SiteMessage(
                {**reply.header, "answer": {**reply.header["answer"], "client": "ana"}}, reply.blocks
            ),
            "another client",
        ),
        (lambda reply: SiteMessage(reply.header, {"frame": flip_last_bit(reply.blocks["frame"])}), "damaged"),
        (lambda reply: SiteMessage(reply.header, {"frame": b"nonsense"}), "not a polyfed message"),
        (
            lambda reply: SiteMessage(reply.header, {"frame": encode({"weights": 1.0}).data}),
            "'weights' is not declared",
        ),
    ],
)
def test_a_malformed_reply_is_left_out_and_named(modify: Any, reason: str, tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path)
    link.modify["ben"] = lambda reply: modify(reply) if "answer" in reply.header else reply
    settings = {**SETTING, "rounds": 1, "evaluate": {"personal": False, "global": False}}
    settings["failures"] = {"min_replies": 1}
    result = run_over(link, settings, tmp_path / "run")
    assert [failure["client"] for failure in result["failures"]] == ["ben"]
    assert reason in result["failures"][0]["message"]
    # the engine refuses what is no reply to its message; the server rejects the content of a reply
    content = reason in ("damaged", "not a polyfed message", "'weights' is not declared")
    assert result["failures"][0]["kind"] == ("rejected" if content else "refused")


def test_a_repeated_message_gets_the_same_reply_without_training_again(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path)
    collect_offers(link, parse(SETTING))
    first = call_sites(link, TRAIN, [Task("ana", 0)])[0]
    link.sites["ana"] = rehearsal_sites(tmp_path).sites["ana"]  # the site has restarted
    repeated = call_sites(link, TRAIN, [Task("ana", 0)])[0]
    assert asdict(first) == asdict(repeated)
    events = [
        json.loads(line)["event"] for line in (tmp_path / "ana" / RUN / "events.jsonl").read_text().splitlines()
    ]
    assert events.count("left") == 2  # the offer, and the reply to the call
    assert events.count("repeated") == 1


def test_a_site_that_lost_its_state_is_left_out_and_does_not_end_the_run(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path)
    collect_offers(link, parse(SETTING))
    call_sites(link, TRAIN, [Task("ana", 0)])
    for file in (tmp_path / "ana" / RUN / "clients").iterdir():
        file.unlink()
    link.sites["ana"] = rehearsal_sites(tmp_path).sites["ana"]
    answer = call_sites(link, Call(2, 2, ("train",), ("train",)), [Task("ana", 1)])[0]
    assert answer.failure.kind == "unavailable"
    assert answer.failure.message == SENTENCES["storage"]


def test_a_site_that_does_not_know_the_run(tmp_path: Path) -> None:
    answer = call_sites(rehearsal_sites(tmp_path), TRAIN, [Task("ana", 0)])[0]
    assert (answer.failure.kind, answer.failure.message) == (
        "unavailable",
        "site ana does not know this run; its state was lost",
    )


def test_a_task_of_another_site_is_refused(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path)
    collect_offers(link, parse(SETTING))
    link.sites["ana"] = link.sites["ben"]
    assert call_sites(link, TRAIN, [Task("ana", 0)])[0].failure.message == "this is site ben, not ana"


# what a site uploads


def test_a_site_uploads_only_allowed_fields(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path, allow=["prototypes"])
    result = run_over(link, {**SETTING, "rounds": 1}, tmp_path / "run")
    assert {failure["steps"][0] for failure in result["failures"]} == {"evaluate"}
    assert "does not allow 'evaluation' to be uploaded; it allows prototypes" in result["failures"][0]["message"]
    assert result["bytes"]["by_field"]["up"].keys() == {"prototypes"}
    assert result["loss"]["by_round"] == [None]


def test_a_confusion_matrix_needs_its_own_permission(tmp_path: Path) -> None:
    settings = {**SETTING, "rounds": 1, "evaluate": {"metrics": ["auroc", "confusion"]}}
    refused = run_over(
        rehearsal_sites(tmp_path / "a", allow=["prototypes", "evaluation"]), settings, tmp_path / "a run"
    )
    assert "does not allow 'confusion' to be uploaded" in refused["failures"][0]["message"]
    assert refused["metrics"] == {}
    link = rehearsal_sites(tmp_path / "b", allow=["prototypes", "evaluation", "confusion"])
    result = run_over(link, settings, tmp_path / "b run")
    assert result["metrics"]["personal by head"]["auroc"]["final"] is not None
    events = (tmp_path / "b" / "ana" / RUN / "events.jsonl").read_text().splitlines()
    uploads = [event for event in map(json.loads, events) if event["event"] == "left"]
    evaluation = next(event for event in uploads if event["step"] == "evaluation")
    assert evaluation["shapes"]["personal confusion"] == "10 x 10"
    assert evaluation["shapes"]["personal by head auroc"] == "a scalar"


def test_a_site_refuses_a_method_with_other_fields(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path, allow=["prototypes", "evaluation"])
    with pytest.raises(RunError, match="does not allow 'head' to be uploaded"):
        run_over(link, {**SETTING, "method": {"name": "lg-fedavg"}}, tmp_path / "run")


def test_a_site_records_its_uploads(tmp_path: Path) -> None:
    result = run_over(rehearsal_sites(tmp_path), SETTING, tmp_path / "run")
    uploaded: dict[str, int] = {}
    for name in SETTING["names"]:
        for line in (tmp_path / name / RUN / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "left" and event["step"] != "evaluation":
                assert event["client"] == name
                for field, size in event["fields"].items():
                    uploaded[field] = uploaded.get(field, 0) + size
    assert uploaded.pop("offer") > 0 and uploaded.pop("loss") == 2 * 2 * 24  # sites and rounds
    assert uploaded == result["bytes"]["by_field"]["up"]


def test_error_texts_of_a_step_stay_at_the_site(tmp_path: Path) -> None:
    """An error text may contain anything. The coordinator learns only that there was an error."""
    link = rehearsal_sites(tmp_path)
    collect_offers(link, parse(SETTING))
    invalid = encode({"prototypes": 1.0})
    engine = FlowerEngine(link, run=RUN, timeout=400.0)
    refused = next(iter(engine.call(TRAIN, invalid.data, [Task("ana", 0)])))
    assert refused.failure is not None and refused.failure.kind == "refused"
    assert (refused.failure.message, refused.failure.detail) == (SENTENCES["refused"], "")
    events = [json.loads(line) for line in (tmp_path / "ana" / RUN / "events.jsonl").read_text().splitlines()]
    assert "Traceback" in events[-1]["detail"]


def test_a_probe_with_an_evaluation_needs_both_to_be_allowed(tmp_path: Path) -> None:
    link = rehearsal_sites(tmp_path, allow=["features"])
    collect_offers(link, parse(SETTING))
    for measures in (("personal", "features"), ("features", "personal"), ("personal",)):
        (answer,) = call_sites(link, Call(-1, 1, measures=measures), [Task("ana", 0)])
        assert "does not allow 'evaluation' to be uploaded" in answer.failure.message


def test_names_of_folders_stay_at_the_site(tmp_path: Path) -> None:
    missing = tmp_path / "secret project" / "images"
    setup = own_data_setup("ana", missing, "tiny-cnn", tmp_path / "state")
    notices: list[str] = []
    ana = Site("ana", tmp_path / "state", setup, notify=notices.append)
    reply = ana.handle(handshake(parse(OWN_SETTING)))
    assert reply.header["refused"] == SETUP_FAILED
    sentence = f"the data folder '{missing}' does not exist"
    assert notices == [f"a message could not be answered: {sentence}"]
    assert sentence in (tmp_path / "state" / ERRORS).read_text()
    link = rehearsal_sites(tmp_path)
    collect_offers(link, parse(SETTING))
    (answer,) = call_sites(link, TRAIN, [Task("ana", 7)])
    assert answer.failure.kind == "unavailable" and link.was_reset == ["ana"]
    assert "/" not in answer.failure.message


def test_a_run_is_resumed_only_with_the_same_data(tmp_path: Path) -> None:
    """The same model and the same number of samples of each class, but other images."""
    message = handshake(parse(OWN_SETTING))

    def ana(data: str, seed: int) -> Site:
        return Site(
            "ana",
            tmp_path / "ana",
            own_data_setup("ana", own_data(tmp_path / data, seed), "tiny-mlp", tmp_path / "ana"),
        )

    assert "offer" in ana("one", 1).handle(message).header
    assert "offer" in ana("one", 1).handle(message).header
    assert "started run run-1 with another model or other data" in ana("two", 2).handle(message).header["refused"]


@pytest.mark.parametrize(
    ("where", "entry"),
    [
        ("task", {"base": "1/../../x"}),
        ("task", {"discard": ["../x"]}),
        ("call", {"number": "x"}),
        ("call", {"round": 1.5}),
        ("call", {"steps": [], "measures": []}),
    ],
)
def test_calls_with_wrong_types_are_refused(where: str, entry: dict[str, Any], tmp_path: Path) -> None:
    parts = {"call": framing.call_to_json(TRAIN), "task": framing.task_to_json(Task("ana", 0))}
    parts[where] = {**parts[where], **entry}
    reply = rehearsal_sites(tmp_path).sites["ana"].handle(SiteMessage({"do": "call", "run": RUN, **parts}))
    assert "malformed" in reply.header["refused"]


def test_a_site_has_its_own_limits(tmp_path: Path) -> None:
    site = Site("ana", tmp_path / "ana", rehearsal_setup("ana"), limit=100)
    link = DirectLink({"ana": site})
    collect_offers(link, parse(SETTING))
    (answer,) = call_sites(link, TRAIN, [Task("ana", 0)])
    assert answer.failure.kind == "refused" and "100" in answer.failure.message
    large = {**OWN_SETTING, "data": {**OWN_SETTING["data"], "shape": [1, 60000, 60000]}}
    with pytest.raises(InputError, match="a site makes no images"):
        parse_received_config(parse(large).to_dict())


def test_the_folder_of_a_site_is_private(tmp_path: Path) -> None:
    rehearsal_sites(tmp_path)
    assert (tmp_path / "ana").stat().st_mode & 0o777 == 0o700


# configs from a coordinator


def test_a_received_config_has_no_paths_and_no_imports() -> None:
    config = parse({**SETTING, "imports": ["some_module"], "data": {"root": "/somewhere"}, "track": ["tensorboard"]})
    public = public_config(config.to_dict())
    assert "some_module" not in json.dumps(public) and "somewhere" not in json.dumps(public)
    received = parse_received_config(config.to_dict())
    assert (received.imports, received.track, received.data.root) == ([], [], None)


def test_a_site_opens_no_partition_file() -> None:
    config = parse({**SETTING, "data": {"partition": {"scheme": "file", "path": "shares.npz"}}})
    with pytest.raises(InputError, match="partition file"):
        parse_received_config(config.to_dict())


@pytest.mark.parametrize(
    ("header", "reason"),
    [
        ({"do": "hello", "run": "../elsewhere", "config": {}}, "no valid name of a run"),
        ({"do": "hello", "run": RUN, "config": {"method": "nothing-known"}}, "nothing-known"),
        ({"do": "hello", "run": RUN}, "an action that a site does not have"),
        ({"do": "hello", "run": RUN, "config": 3}, "an action that a site does not have"),
        ({"do": "hello", "run": RUN, "config": {"data": 3}}, SITE_FAILED),
        ({"do": "call", "run": RUN}, "malformed"),
        ({"do": "run this"}, "an action that a site does not have"),
        ({}, "an action that a site does not have"),
    ],
)
def test_invalid_messages_are_refused(header: dict[str, Any], reason: str, tmp_path: Path) -> None:
    site = rehearsal_sites(tmp_path).sites["ana"]
    message = SiteMessage(header)
    reply = site.handle(message)
    assert reason in reply.header["refused"]
    assert reply.header["to"] == message.digest()


def test_own_data_and_rehearsals_cannot_be_mixed(tmp_path: Path) -> None:
    rehearsing = rehearsal_sites(tmp_path).sites["ana"]
    setup = own_data_setup("ana", own_data(tmp_path / "data", 0), "tiny-cnn", tmp_path / "own")
    with_data = make_sites(tmp_path / "own", {"ana": setup}).sites["ana"]
    for site, settings_, reason in ((rehearsing, OWN_SETTING, "rehearses"), (with_data, SETTING, "data of its own")):
        assert reason in site.handle(handshake(parse(settings_))).header["refused"]


def test_a_run_has_one_config(tmp_path: Path) -> None:
    site = rehearsal_sites(tmp_path).sites["ana"]
    assert "offer" in site.handle(handshake(parse(SETTING))).header
    other = handshake(parse({**SETTING, "seed": 1}))
    assert "another config" in site.handle(other).header["refused"]


def test_the_plan_of_a_rehearsal_is_the_simulated_federation() -> None:
    assert plan_from_offers(parse(SETTING), {}).names == ("ana", "ben")


# serialisation

blocks = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.binary(max_size=200), max_size=3)
headers = st.dictionaries(
    st.text(max_size=5), st.none() | st.integers(-(2**70), 2**70) | st.text(max_size=5), max_size=4
)


@given(headers, blocks, st.sampled_from([0, 150, 1 << 20]))
@settings(max_examples=25, deadline=None)
def test_messages_are_unchanged_after_transport(
    header: dict[str, Any], content: dict[str, bytes], inline: int
) -> None:
    message = SiteMessage(header, content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(messages, "INLINE_BYTES", inline)
        record = to_record_dict(message)
    flower_message: Message = make_message(
        metadata=Metadata(1, "", 1, 2, "", "", 0.0, 1.0, "query.polyfed"), content=record
    )
    pieces = len(get_all_nested_objects(flower_message))  # each is a request
    assert pieces == 3 if sum(map(len, content.values())) <= inline else pieces >= 6
    for received in (from_bytes(to_bytes(message)), from_flower_message(flower_message)):
        assert (received.header, dict(received.blocks)) == (header, content)
        assert received.digest() == message.digest()


@given(headers, blocks, st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_the_digest_depends_on_every_byte(header: dict[str, Any], content: dict[str, bytes], position: int) -> None:
    message = SiteMessage(header, content)
    assert SiteMessage({**header, "more": 1}, content).digest() != message.digest()
    not_empty = {name: block for name, block in content.items() if block}
    if not_empty:
        name = sorted(not_empty)[position % len(not_empty)]
        block = bytearray(not_empty[name])
        block[position % len(block)] ^= 1
        assert SiteMessage(header, {**content, name: bytes(block)}).digest() != message.digest()
