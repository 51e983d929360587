"""Whatever one site sends is that site's failure: it never ends a run, and never holds up the others."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.deploy.direct import OWN_SETTING
from tests.deploy.flower_names import (
    ConfirmMessageReceivedRequest,
    ConfirmMessageReceivedResponse,
    Metadata,
    PullAppMessagesResponse,
    PullObjectRequest,
    PullObjectResponse,
    get_all_nested_objects,
    get_object_tree,
    make_message,
    message_to_proto,
)

from polyfed.config import parse
from polyfed.core.codec import encode
from polyfed.core.door import _check_looked, _right_answers
from polyfed.core.engine import Failure
from polyfed.core.profile import Profile, layout
from polyfed.deploy.flower_adapter import (
    Array,
    ArrayRecord,
    ConfigRecord,
    Message,
    Node,
    ObjectTree,
    PullAppMessagesRequest,
    RecordDict,
)
from polyfed.deploy.messages import from_message, to_record
from polyfed.deploy.offers import Offer
from polyfed.deploy.reply_download import Replies
from polyfed.deploy.site_link import opened
from polyfed.deploy.site_run import checker
from polyfed.engines.flower import Parcel, answer_of
from polyfed.errors import InputError, PayloadError
from polyfed.models import build

# what a reply says of itself

TO = "0" * 64
FIT = {"loss": 1.5, "samples": 10, "steps": 2}
SOUND = {"client": "ben", "failure": None, "digest": "d", "seconds": 1.0, "trained": [FIT]}


def test_a_sound_answer_is_taken() -> None:
    answer = answer_of("ben", Parcel({"to": TO, "answer": SOUND}, {"frame": b"f"}), TO)
    assert (answer.failure, answer.frame, answer.trained[0].loss, answer.seconds) == (None, b"f", 1.5, 1.0)


@pytest.mark.parametrize(
    "changed",
    [
        {"client": "ana"},
        {"digest": 3},
        {"seconds": "1"},
        {"seconds": -1.0},
        {"seconds": math.inf},
        {"seconds": math.nan},
        {"seconds": 10**400},
        {"seconds": True},
        {"trained": 3},
        {"trained": [FIT] * 5000},
        {"trained": [{**FIT, "loss": "x"}]},
        {"trained": [{**FIT, "loss": 10**400}]},
        {"trained": [{**FIT, "samples": -3}]},
        {"trained": [{**FIT, "samples": 1.5}]},
        {"trained": [{**FIT, "steps": 10**30}]},
        {"trained": [{"loss": 1.0}]},
        {"failure": {"kind": "anything", "message": "", "detail": ""}},
        {"failure": {"kind": ["raised"], "message": "", "detail": ""}},
        {"failure": {"kind": "raised", "message": {}, "detail": ""}},
        {"failure": "raised"},
    ],
)
def test_an_answer_with_wrong_facts_is_refused(changed: dict[str, Any]) -> None:
    answer = answer_of("ben", Parcel({"to": TO, "answer": {**SOUND, **changed}}), TO)
    assert answer.failure is not None and answer.failure.kind == "refused"
    assert answer.client == "ben" and answer.trained == () and answer.seconds == 0.0


def test_a_site_whose_disk_is_full_ends_nothing() -> None:
    told = {"kind": "storage", "message": "no room", "detail": ""}
    answer = answer_of("ben", Parcel({"to": TO, "answer": {**SOUND, "failure": told}}), TO)
    assert answer.failure == Failure("unavailable", "no room")


def test_a_loss_that_is_not_finite_is_what_training_came_to() -> None:
    fit = {**FIT, "loss": math.inf}
    answer = answer_of("ben", Parcel({"to": TO, "answer": {**SOUND, "trained": [fit]}}), TO)
    assert answer.failure is None and math.isnan(answer.trained[0].loss)


@pytest.mark.parametrize(
    "counts",
    [
        {"personal": {"correct": math.nan, "total": 3}},
        {"personal": {"correct": math.inf, "total": 3}},
        {"personal": {"correct": 1, "total": math.inf}},
        {"personal": {"correct": 1, "total": -3}},
        {"personal": {"correct": 4, "total": 3}},
        {"personal": {"correct": 0.5, "total": 3}},
        {"personal": {"correct": 1, "total": 10**15}},
        {"personal": {"correct": 1}},
        {"personal": 3},
        {"anything": {"correct": 1, "total": 3}},
    ],
)
def test_an_evaluation_with_wrong_counts_is_refused(counts: Any) -> None:
    with pytest.raises(PayloadError):
        _right_answers(encode(counts).data, 1 << 20, frozenset({"personal"}))
    good = encode({"personal": {"correct": 1, "total": 3}}).data
    assert _right_answers(good, 1 << 20, frozenset({"personal"})) == {"personal": (1, 3)}


BEN = Profile("ben", "tiny", (), (), 4, 3, 10)


@pytest.mark.parametrize(
    ("what", "seen"),
    [
        ("features", {"vectors": torch.zeros(2, 5), "classes": torch.zeros(2, dtype=torch.int64)}),
        ("features", {"vectors": torch.zeros(300, 4), "classes": torch.zeros(300, dtype=torch.int64)}),
        ("features", {"vectors": torch.zeros(2, 4), "classes": torch.zeros((), dtype=torch.int64)}),
        ("features", {"signatures": {}}),
        ("signatures", {"signatures": {"../../elsewhere": torch.zeros(6)}}),
        ("signatures", {"signatures": {"/elsewhere": torch.zeros(6)}}),
        ("signatures", {"signatures": {"features": torch.zeros(5)}}),
        ("signatures", {"signatures": {"features": torch.zeros(2, 3)}}),
    ],
)
def test_a_look_that_shows_something_else_is_refused(what: Any, seen: Any) -> None:
    from polyfed.core.payload import Payload

    with pytest.raises(PayloadError):
        _check_looked(Payload(seen), what, BEN, 6)
    assert _check_looked(Payload({"signatures": {"block 2": torch.zeros(6)}}), "signatures", BEN, 6) == 6


# offers

MODEL = build("tiny-mlp", shape=(1, 8, 8), classes=3)
OFFER = Offer(
    Profile("ben", "tiny-mlp", layout(MODEL), layout(MODEL.head), MODEL.feature_dim, 3, 20, "tiny-mlp"),
    "pictures",
    {"0": 20},
).to_json()


@pytest.mark.parametrize(
    "changed",
    [
        {"features": 10**12},
        {"features": 65},
        {"spec": "resnet18"},
        {"spec": "no-such-model"},
        {"spec": "x" * 20_000},
        {"classes": 4},
        {"samples": 10**30},
        {"model": [["a", [10**9, 10**9], "float32"]]},
        {"model": [["a", [-1], "float32"]]},
        {"image": [1, 8]},
        {"buffers": 3},
        {"unknown": 1},
    ],
)
def test_an_absurd_offer_is_one_sentence(changed: dict[str, Any]) -> None:
    check = checker(parse(OWN_SETTING))
    check("ben", OFFER)
    with pytest.raises(InputError):
        check("ben", {**OFFER, "profile": {**OFFER["profile"], **changed}})


def test_a_site_that_is_not_of_this_run_has_nothing_to_offer() -> None:
    with pytest.raises(InputError, match="not one of this run's: ana, ben, cleo"):
        checker(parse(OWN_SETTING))("dora", OFFER)


# replies as Flower carries them


class SuperLink:
    """Keeps replies and their pieces as a SuperLink does."""

    def __init__(self) -> None:
        self.replies: dict[str, tuple[Message, ObjectTree]] = {}
        self.pieces: dict[str, bytes] = {}
        self.confirmed: list[str] = []

    def put(self, letter: str, head: dict[str, Any], said: str | None = None) -> Message:
        """A site's reply to `letter`, which itself says that it answers `said`."""
        meta = Metadata(1, "", 2, 1, said or letter, "", 0.0, 60.0, "query.polyfed")
        message: Message = make_message(
            metadata=meta, content=to_record(Parcel(head, {"frame": letter.encode() * 9}))
        )
        self.pieces.update({number: part.deflate() for number, part in get_all_nested_objects(message).items()})
        self.replies[letter] = (message, get_object_tree(message))
        return message

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        found = [(letter, *self.replies.pop(letter)) for letter in request.message_ids if letter in self.replies]
        heads = []
        for letter, _, tree in found:
            outer = make_message(
                metadata=Metadata(1, tree.object_id, 2, 1, letter, "", 0.0, 60.0, "query.polyfed"),
                content=RecordDict(),
            )
            heads.append(message_to_proto(outer))
        return PullAppMessagesResponse(messages_list=heads, message_object_trees=[tree for _, _, tree in found])

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        content = self.pieces.get(request.object_id)
        there = content is not None
        return PullObjectResponse(object_found=True, object_available=there, object_content=content or b"")

    def ConfirmMessageReceived(  # noqa: N802
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse:
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


def replies(link: SuperLink, limit: int = 1 << 20) -> Replies:
    return Replies(link, Node(node_id=1), 1, limit)  # type: ignore[arg-type]


def test_a_reply_whose_pieces_do_not_come_holds_up_nobody() -> None:
    link = SuperLink()
    link.put("to ana", {"from": "ana"})
    ana = dict(link.pieces)
    link.put("to ben", {"from": "ben"})
    missing = {number: link.pieces.pop(number) for number in ana}
    looks = replies(link)
    assert looks.arrived(["to ana", "to ben"]).keys() == {"to ben"}
    assert looks.arrived(["to ana"]) == {}
    link.pieces.update(missing)
    (message,) = looks.arrived(["to ana"]).values()
    assert isinstance(message, Message) and from_message(message).head == {"from": "ana"}
    assert len(link.confirmed) == 2


def test_a_reply_counts_for_the_letter_that_the_superlink_names() -> None:
    link = SuperLink()
    link.put("to ben", {"from": "ben"}, said="to ana")
    came = replies(link).arrived(["to ana", "to ben"])
    assert list(came) == ["to ben"]


def broken_body(link: SuperLink) -> None:
    """The settings' piece, with a body that is no protobuf: a SuperLink lets it pass."""
    for number, piece in link.pieces.items():
        if piece.startswith(b"ConfigRecord"):
            head, _, body = piece.partition(b"\0")
            link.pieces[number] = head + b"\0" + b"\xff" * len(body)


def other_kind(link: SuperLink) -> None:
    for number, piece in link.pieces.items():
        if piece.startswith(b"Message"):
            link.pieces[number] = piece.replace(b"Message", b"Nothing", 1)


def without_divider(link: SuperLink) -> None:
    for number in link.pieces:
        link.pieces[number] = b"nothing"


@pytest.mark.parametrize("spoil", [broken_body, other_kind, without_divider])
def test_a_reply_that_flower_cannot_read_is_refused_alone(spoil: Callable[[SuperLink], None]) -> None:
    bad, good = SuperLink(), SuperLink()
    bad.put("to ben", {"from": "ben"})
    spoil(bad)
    good.put("to ana", {"from": "ana"})
    bad.replies.update(good.replies)
    bad.pieces.update(good.pieces)
    came = {letter: opened(reply) for letter, reply in replies(bad).arrived(["to ben", "to ana"]).items()}
    assert isinstance(came["to ben"], Failure) and came["to ben"].kind == "refused"
    assert isinstance(came["to ana"], Parcel)


def test_a_reply_is_no_longer_than_allowed() -> None:
    link = SuperLink()
    meta = Metadata(1, "", 2, 1, "to ben", "", 0.0, 60.0, "query.polyfed")
    large = Array("uint8", (3 << 20,), "polyfed", bytes(3 << 20))
    content = RecordDict({"head": ConfigRecord({"json": "{}"}), "blocks": ArrayRecord({"frame": large})})
    message: Message = make_message(metadata=meta, content=content)
    link.pieces = {number: part.deflate() for number, part in get_all_nested_objects(message).items()}
    link.replies["to ben"] = (message, get_object_tree(message))
    came = replies(link, 1000).arrived(["to ben"])["to ben"]
    assert isinstance(came, Failure) and "larger than the" in came.message


def test_a_piece_that_is_named_often_counts_as_often() -> None:
    """A few bytes that say they are gigabytes."""
    link = SuperLink()
    link.put("to ben", {"from": "ben"})
    for number, piece in list(link.pieces.items()):
        if piece.startswith(b"Array "):
            head, _, body = piece.partition(b"\0")
            many = body.replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b", ".join([b"0"] * 50_000) + b"]")
            assert many != body
            link.pieces[number] = head + b"\0" + many
    came = replies(link, 1000).arrived(["to ben"])["to ben"]
    assert isinstance(came, Failure) and "pieces are repeated" in came.message
