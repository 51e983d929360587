"""The Flower engine and the sites it calls, without Flower: messages, who is left out, what leaves a site."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.deploy.direct import (
    METHODS,
    OWN_MODEL,
    OWN_SETTING,
    RUN,
    SETTING,
    DirectLink,
    hello,
    own_data,
    run_over,
    sites,
)

from polyfed import api
from polyfed.config import parse
from polyfed.core.class_tables import ClassTable
from polyfed.core.codec import encode
from polyfed.core.engine import Call, Task
from polyfed.deploy.messages import from_message, to_record
from polyfed.deploy.site import Site, packed, public, received, unpacked
from polyfed.deploy.site_process import own, rehearsal
from polyfed.deploy.site_run import plan_of
from polyfed.engines import framing
from polyfed.engines.flower import FlowerEngine, Parcel
from polyfed.errors import InputError, RunError


def rehearsing(folder: Path, allow: list[str] | None = None) -> DirectLink:
    return sites(folder, {name: rehearsal(name) for name in SETTING["names"]}, allow)


def called(link: DirectLink, call: Call, tasks: list[Task], timeout: float = 60.0) -> list[Any]:
    engine = FlowerEngine(link, run=RUN, timeout=timeout)
    return list(engine.call(call, encode({"prototypes": ClassTable.of({}, 64)}).data, tasks))


def flipped(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


TRAIN = Call(1, 1, ("train",), ("train",))


@pytest.mark.parametrize("method", ["fedproto", "scaffold"])
def test_sites_give_the_bits_of_serial(method: str, tmp_path: Path) -> None:
    chosen = {**SETTING, **METHODS[method]}
    serial = api.run(chosen, out=tmp_path / "serial")
    remote = run_over(rehearsing(tmp_path), chosen, tmp_path / "remote")
    assert remote["state_hash"] == serial["state_hash"]
    assert remote["accuracy"] == serial["accuracy"]
    assert remote["bytes"] == serial["bytes"]
    assert remote["failures"] == []


def test_three_sites_with_data_and_models_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OWN_MODEL)
    models = {"ana": str(tmp_path / "model.py"), "ben": "tiny-cnn", "cleo": "tiny-mlp"}
    brings = {
        name: own(name, own_data(tmp_path / "data" / name, k), model, tmp_path / name)
        for k, (name, model) in enumerate(models.items())
    }
    result = run_over(sites(tmp_path, brings), OWN_SETTING, tmp_path / "run")
    told = json.loads((tmp_path / "run" / "clients.json").read_text())["clients"]
    assert [one["model"] for one in told][1:] == ["tiny-cnn", "tiny-mlp"]
    assert all(sum(one["train"].values()) == 18 for one in told)  # a quarter of 24 is held out
    assert len(result["accuracy"]["personal"]["by_client"]) == 3
    assert result["accuracy"]["personal"]["final"] is not None


# failures


def test_an_offline_site_is_left_out_and_taken_back_with_its_state(tmp_path: Path) -> None:
    link = rehearsing(tmp_path)
    hello(link, parse(SETTING))
    called(link, TRAIN, [Task("ana", 0), Task("ben", 0)])
    link.away.add("ben")
    second = Call(2, 2, ("train",), ("train",))
    answers = called(link, second, [Task("ana", 1), Task("ben", 1)])
    assert [answer.failure and answer.failure.kind for answer in answers] == [None, "unavailable"]
    assert "ben" in answers[1].failure.message
    link.away.clear()
    assert called(link, Call(3, 3, ("train",), ("train",)), [Task("ben", 1)])[0].failure is None


def test_a_silent_site_costs_its_deadline_and_no_more(tmp_path: Path) -> None:
    link = rehearsing(tmp_path)
    hello(link, parse(SETTING))
    link.silent.add("ana")
    answers = called(link, TRAIN, [Task("ana", 0), Task("ben", 0)], timeout=0.5)
    assert [answer.failure and answer.failure.kind for answer in answers] == ["timeout", None]


def test_answers_come_in_the_order_of_the_tasks(tmp_path: Path) -> None:
    link = rehearsing(tmp_path)
    hello(link, parse(SETTING))
    answers = called(link, TRAIN, [Task("ben", 0), Task("ana", 0)])
    assert [answer.client for answer in answers] == ["ben", "ana"]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda reply: Parcel({**reply.head, "to": "0" * 64}, reply.blocks), "awaited was"),
        (lambda reply: Parcel({"to": reply.head["to"]}, reply.blocks), "malformed"),
        (lambda reply: Parcel({**reply.head, "answer": [1, 2]}, reply.blocks), "malformed"),
        (
            lambda reply: Parcel({**reply.head, "answer": {**reply.head["answer"], "client": "ana"}}, reply.blocks),
            "another client",
        ),
        (lambda reply: Parcel(reply.head, {"frame": flipped(reply.blocks["frame"])}), "damaged"),
        (lambda reply: Parcel(reply.head, {"frame": b"nonsense"}), "not a polyfed message"),
        (lambda reply: Parcel(reply.head, {"frame": encode({"weights": 1.0}).data}), "'weights' is not one of"),
    ],
)
def test_a_malformed_reply_is_left_out_and_named(spoil: Any, says: str, tmp_path: Path) -> None:
    link = rehearsing(tmp_path)
    link.spoil["ben"] = lambda reply: spoil(reply) if "answer" in reply.head else reply
    settings = {**SETTING, "rounds": 1, "evaluate": {"personal": False, "global": False}}
    result = run_over(link, settings, tmp_path / "run")
    assert [failure["client"] for failure in result["failures"]] == ["ben"]
    assert says in result["failures"][0]["message"]
    assert result["failures"][0]["kind"] == "refused"


def test_a_repeated_message_brings_the_same_bytes_and_trains_once(tmp_path: Path) -> None:
    link = rehearsing(tmp_path)
    hello(link, parse(SETTING))
    first = called(link, TRAIN, [Task("ana", 0)])[0]
    link.sites["ana"] = rehearsing(tmp_path).sites["ana"]  # the site began anew; its folder is what it was
    again = called(link, TRAIN, [Task("ana", 0)])[0]
    assert asdict(first) == asdict(again)
    events = [
        json.loads(line)["event"] for line in (tmp_path / "ana" / RUN / "events.jsonl").read_text().splitlines()
    ]
    assert events.count("left") == 2  # hello, and the reply to the call
    assert events.count("repeated") == 1


def test_a_site_that_lost_its_state_is_left_out_and_does_not_end_the_run(tmp_path: Path) -> None:
    link = rehearsing(tmp_path)
    hello(link, parse(SETTING))
    called(link, TRAIN, [Task("ana", 0)])
    for file in (tmp_path / "ana" / RUN / "clients").iterdir():
        file.unlink()
    link.sites["ana"] = rehearsing(tmp_path).sites["ana"]
    answer = called(link, Call(2, 2, ("train",), ("train",)), [Task("ana", 1)])[0]
    assert answer.failure.kind == "unavailable"
    assert "cannot be read" in answer.failure.message


def test_a_site_that_knows_nothing_of_the_run_says_so(tmp_path: Path) -> None:
    answer = called(rehearsing(tmp_path), TRAIN, [Task("ana", 0)])[0]
    assert (answer.failure.kind, answer.failure.message) == (
        "unavailable",
        "site ana knows nothing of this run; its state was lost",
    )


def test_a_task_of_another_site_is_refused(tmp_path: Path) -> None:
    link = rehearsing(tmp_path)
    hello(link, parse(SETTING))
    link.sites["ana"] = link.sites["ben"]
    assert called(link, TRAIN, [Task("ana", 0)])[0].failure.message == "this is site ben, not ana"


# what a site gives away


def test_a_site_gives_away_what_it_allows_and_nothing_else(tmp_path: Path) -> None:
    link = rehearsing(tmp_path, allow=["prototypes"])
    result = run_over(link, {**SETTING, "rounds": 1}, tmp_path / "run")
    assert {failure["steps"][0] for failure in result["failures"]} == {"evaluate"}
    assert "does not give away 'evaluation'; it allows prototypes" in result["failures"][0]["message"]
    assert result["bytes"]["by_field"]["up"].keys() == {"prototypes"}
    assert result["loss"]["by_round"] == [None]


def test_a_site_refuses_a_method_whose_fields_it_does_not_allow(tmp_path: Path) -> None:
    link = rehearsing(tmp_path, allow=["prototypes", "evaluation"])
    with pytest.raises(RunError, match="does not give away 'head'"):
        run_over(link, {**SETTING, "method": {"name": "lg-fedavg"}}, tmp_path / "run")


def test_the_record_of_a_site_tells_what_left_it(tmp_path: Path) -> None:
    result = run_over(rehearsing(tmp_path), SETTING, tmp_path / "run")
    left: dict[str, int] = {}
    for name in SETTING["names"]:
        for line in (tmp_path / name / RUN / "events.jsonl").read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "left" and event["step"] != "evaluation":
                assert event["client"] == name
                for field, size in event["fields"].items():
                    left[field] = left.get(field, 0) + size
    assert left.pop("offer") > 0 and left.pop("loss") == 2 * 2 * 24  # sites and rounds
    assert left == result["bytes"]["by_field"]["up"]


def test_words_of_a_step_that_fails_stay_at_the_site(tmp_path: Path) -> None:
    """An error's text may hold anything; the coordinator learns that there was one."""
    link = rehearsing(tmp_path)
    hello(link, parse(SETTING))
    bad = encode({"prototypes": 1.0})
    engine = FlowerEngine(link, run=RUN, timeout=10.0)
    refused = next(iter(engine.call(TRAIN, bad.data, [Task("ana", 0)])))
    assert refused.failure is not None and refused.failure.kind == "refused"
    assert refused.failure.detail == ""
    events = [json.loads(line) for line in (tmp_path / "ana" / RUN / "events.jsonl").read_text().splitlines()]
    assert "Traceback" in events[-1]["detail"]


def test_a_look_beside_an_evaluation_needs_both_to_be_allowed(tmp_path: Path) -> None:
    link = rehearsing(tmp_path, allow=["features"])
    hello(link, parse(SETTING))
    for measures in (("personal", "features"), ("features", "personal"), ("personal",)):
        (answer,) = called(link, Call(-1, 1, measures=measures), [Task("ana", 0)])
        assert "does not give away 'evaluation'" in answer.failure.message


def test_no_names_of_folders_leave_a_site(tmp_path: Path) -> None:
    missing = tmp_path / "secret project" / "pictures"
    bring = own("ana", missing, "tiny-cnn", tmp_path / "state")
    ana = Site("ana", tmp_path / "state", bring, places=[missing])
    head = ana.handle(Parcel({"do": "hello", "run": RUN, "config": parse(OWN_SETTING).to_dict()})).head
    assert head["refused"] == "there is no folder 'a folder of this site' with data"
    link = rehearsing(tmp_path)
    hello(link, parse(SETTING))
    (answer,) = called(link, TRAIN, [Task("ana", 7)])
    assert answer.failure.kind == "unavailable" and link.doubted == ["ana"]
    assert "/" not in answer.failure.message


def test_a_run_goes_on_with_the_data_it_began_with(tmp_path: Path) -> None:
    """The same model and as many samples of each class, but other pictures."""
    greeting = Parcel({"do": "hello", "run": RUN, "config": parse(OWN_SETTING).to_dict()})

    def ana(data: str, seed: int) -> Site:
        return Site(
            "ana", tmp_path / "ana", own("ana", own_data(tmp_path / data, seed), "tiny-mlp", tmp_path / "ana")
        )

    assert "offer" in ana("one", 1).handle(greeting).head
    assert "offer" in ana("one", 1).handle(greeting).head
    assert "other data than it began run-1 with" in ana("two", 2).handle(greeting).head["refused"]


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
def test_a_call_has_numbers_and_names(where: str, entry: dict[str, Any], tmp_path: Path) -> None:
    parts = {"call": framing.call_to_json(TRAIN), "task": framing.task_to_json(Task("ana", 0))}
    parts[where] = {**parts[where], **entry}
    reply = rehearsing(tmp_path).sites["ana"].handle(Parcel({"do": "call", "run": RUN, **parts}))
    assert "malformed" in reply.head["refused"]


def test_a_site_has_limits_of_its_own(tmp_path: Path) -> None:
    site = Site("ana", tmp_path / "ana", rehearsal("ana"), limit=100)
    link = DirectLink({"ana": site})
    hello(link, parse(SETTING))
    (answer,) = called(link, TRAIN, [Task("ana", 0)])
    assert answer.failure.kind == "refused" and "100" in answer.failure.message
    large = {**OWN_SETTING, "data": {**OWN_SETTING["data"], "shape": [1, 60000, 60000]}}
    with pytest.raises(InputError, match="a site makes no pictures"):
        received(parse(large).to_dict())


def test_a_folder_of_a_site_is_nobody_elses(tmp_path: Path) -> None:
    rehearsing(tmp_path)
    assert (tmp_path / "ana").stat().st_mode & 0o777 == 0o700


# configs from a coordinator


def test_a_config_carries_no_paths_and_makes_a_site_import_nothing() -> None:
    config = parse({**SETTING, "imports": ["some_module"], "data": {"root": "/somewhere"}, "track": ["tensorboard"]})
    shown = public(config.to_dict())
    assert "some_module" not in json.dumps(shown) and "somewhere" not in json.dumps(shown)
    taken = received(config.to_dict())
    assert (taken.imports, taken.track, taken.data.root) == ([], [], None)


def test_a_site_opens_no_partition_file_for_a_coordinator() -> None:
    config = parse({**SETTING, "data": {"partition": {"scheme": "file", "path": "shares.npz"}}})
    with pytest.raises(InputError, match="partition file"):
        received(config.to_dict())


@pytest.mark.parametrize(
    ("head", "says"),
    [
        ({"do": "hello", "run": "../elsewhere", "config": {}}, "names no run"),
        ({"do": "hello", "run": RUN, "config": {"method": "nothing-known"}}, "nothing-known"),
        ({"do": "hello", "run": RUN}, "asks for nothing"),
        ({"do": "hello", "run": RUN, "config": 3}, "asks for nothing"),
        ({"do": "hello", "run": RUN, "config": {"data": 3}}, "which its own log tells of"),
        ({"do": "call", "run": RUN}, "malformed"),
        ({"do": "run this"}, "asks for nothing"),
        ({}, "asks for nothing"),
    ],
)
def test_a_message_that_is_none_is_refused_in_a_sentence(head: dict[str, Any], says: str, tmp_path: Path) -> None:
    site = rehearsing(tmp_path).sites["ana"]
    parcel = Parcel(head)
    reply = site.handle(parcel)
    assert says in reply.head["refused"]
    assert reply.head["to"] == parcel.digest()


def test_own_data_and_rehearsals_do_not_mix(tmp_path: Path) -> None:
    rehearses = rehearsing(tmp_path).sites["ana"]
    bring = own("ana", own_data(tmp_path / "data", 0), "tiny-cnn", tmp_path / "own")
    brings = sites(tmp_path / "own", {"ana": bring}).sites["ana"]
    for site, settings_, says in ((rehearses, OWN_SETTING, "rehearses"), (brings, SETTING, "data of its own")):
        head = site.handle(Parcel({"do": "hello", "run": RUN, "config": parse(settings_).to_dict()})).head
        assert says in head["refused"]


def test_a_run_is_known_with_one_config(tmp_path: Path) -> None:
    site = rehearsing(tmp_path).sites["ana"]
    assert "offer" in site.handle(Parcel({"do": "hello", "run": RUN, "config": parse(SETTING).to_dict()})).head
    other = parse({**SETTING, "seed": 1}).to_dict()
    assert "another config" in site.handle(Parcel({"do": "hello", "run": RUN, "config": other})).head["refused"]


def test_the_coordinators_plan_of_a_rehearsal_is_the_whole_federation() -> None:
    assert plan_of(parse(SETTING), {}).names == ("ana", "ben")


# bytes

blocks = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), st.binary(max_size=200), max_size=3)
heads = st.dictionaries(
    st.text(max_size=5), st.none() | st.integers(-(2**70), 2**70) | st.text(max_size=5), max_size=4
)


@given(heads, blocks)
@settings(max_examples=25, deadline=None)
def test_a_parcel_is_the_same_after_any_way(head: dict[str, Any], parts: dict[str, bytes]) -> None:
    from tests.deploy.flower_names import Metadata, make_message

    from polyfed.deploy.flower_adapter import Message

    parcel = Parcel(head, parts)
    kept = unpacked(packed(parcel))
    message: Message = make_message(
        metadata=Metadata(1, "", 1, 2, "", "", 0.0, 1.0, "query.polyfed"), content=to_record(parcel)
    )
    sent = from_message(message)
    for got in (kept, sent):
        assert (got.head, dict(got.blocks)) == (head, parts)
        assert got.digest() == parcel.digest()


@given(heads, blocks, st.integers(0, 10**6))
@settings(max_examples=25, deadline=None)
def test_a_digest_tells_of_every_byte(head: dict[str, Any], parts: dict[str, bytes], at: int) -> None:
    parcel = Parcel(head, parts)
    assert Parcel({**head, "more": 1}, parts).digest() != parcel.digest()
    full = {name: block for name, block in parts.items() if block}
    if full:
        name = sorted(full)[at % len(full)]
        block = bytearray(full[name])
        block[at % len(block)] ^= 1
        assert Parcel(head, {**parts, name: bytes(block)}).digest() != parcel.digest()
