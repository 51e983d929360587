"""Invalid replies of a site are failures of that site. They never end a run, and never delay other sites."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.deploy.direct_link import OWN_SETTING
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
from polyfed.core.client_profile import Profile, layout
from polyfed.core.codec import encode
from polyfed.core.engine import Failure
from polyfed.core.evaluation import _check_probe
from polyfed.core.evaluation_reply import read_reply
from polyfed.core.message_header import read_header
from polyfed.deploy import messages
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
from polyfed.deploy.messages import from_flower_message, to_record_dict
from polyfed.deploy.offers import Offer
from polyfed.deploy.reply_download import ReplyDownloader
from polyfed.deploy.site_link import unwrap_reply
from polyfed.deploy.site_run import offer_checker
from polyfed.engines.flower import SiteMessage, parse_reply
from polyfed.errors import InputError, PayloadError
from polyfed.models import build

# answers

DIGEST = "0" * 64
FIT = {"loss": 1.5, "samples": 10, "steps": 2}
VALID = {"client": "ben", "failure": None, "digest": "d", "seconds": 1.0, "trained": [FIT]}


def test_a_valid_answer() -> None:
    answer = parse_reply("ben", SiteMessage({"to": DIGEST, "answer": VALID}, {"frame": b"f"}), DIGEST)
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
def test_an_invalid_answer_is_refused(changed: dict[str, Any]) -> None:
    answer = parse_reply("ben", SiteMessage({"to": DIGEST, "answer": {**VALID, **changed}}), DIGEST)
    assert answer.failure is not None and answer.failure.kind == "refused"
    assert answer.client == "ben" and answer.trained == () and answer.seconds == 0.0


def test_a_full_disk_of_a_site_does_not_end_the_run() -> None:
    failure = {"kind": "storage", "message": "no room", "detail": ""}
    answer = parse_reply("ben", SiteMessage({"to": DIGEST, "answer": {**VALID, "failure": failure}}), DIGEST)
    assert answer.failure == Failure("unavailable", "no room")


def test_a_loss_that_is_not_finite_is_valid() -> None:
    fit = {**FIT, "loss": math.inf}
    answer = parse_reply("ben", SiteMessage({"to": DIGEST, "answer": {**VALID, "trained": [fit]}}), DIGEST)
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
def test_invalid_evaluation_counts_are_refused(counts: Any) -> None:
    with pytest.raises(PayloadError):
        read_reply(frame := encode(counts).data, read_header(frame), ["personal"], [], 3)
    valid = encode({"personal": {"correct": 1, "total": 3}}).data
    assert read_reply(valid, read_header(valid), ["personal"], [], 3).counts == {"personal": (1, 3)}


BEN = Profile("ben", "tiny", (), (), 4, 3, 10)


@pytest.mark.parametrize(
    ("probe", "payload"),
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
def test_an_invalid_probe_is_refused(probe: Any, payload: Any) -> None:
    from polyfed.core.payload import Payload

    with pytest.raises(PayloadError):
        _check_probe(Payload(payload), probe, BEN, 6)
    assert _check_probe(Payload({"signatures": {"block 2": torch.zeros(6)}}), "signatures", BEN, 6) == 6


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
def test_an_absurd_offer_is_refused(changed: dict[str, Any]) -> None:
    check = offer_checker(parse(OWN_SETTING))
    check("ben", OFFER)
    with pytest.raises(InputError):
        check("ben", {**OFFER, "profile": {**OFFER["profile"], **changed}})


def test_a_site_that_is_not_part_of_the_run_is_refused() -> None:
    with pytest.raises(InputError, match="not part of this run; its sites are ana, ben, cleo"):
        offer_checker(parse(OWN_SETTING))("dora", OFFER)


# replies in pieces


class SuperLink:
    """Stores replies and their pieces, as a SuperLink does."""

    def __init__(self) -> None:
        self.replies: dict[str, tuple[Message, ObjectTree]] = {}
        self.pieces: dict[str, bytes] = {}
        self.confirmed: list[str] = []

    def put(self, message_id: str, header: dict[str, Any], claimed: str | None = None) -> Message:
        """Store a site's reply to a message. The reply itself may claim to answer another one."""
        meta = Metadata(1, "", 2, 1, claimed or message_id, "", 0.0, 60.0, "query.polyfed")
        message: Message = make_message(
            metadata=meta, content=to_record_dict(SiteMessage(header, {"frame": message_id.encode() * 9}))
        )
        self.pieces.update({number: part.deflate() for number, part in get_all_nested_objects(message).items()})
        self.replies[message_id] = (message, get_object_tree(message))
        return message

    def PullMessages(self, request: PullAppMessagesRequest) -> PullAppMessagesResponse:  # noqa: N802
        present = [id_ for id_ in request.message_ids if id_ in self.replies]
        replies = [(id_, *self.replies.pop(id_)) for id_ in present]
        headers = []
        for message_id, _, tree in replies:
            outer = make_message(
                metadata=Metadata(1, tree.object_id, 2, 1, message_id, "", 0.0, 60.0, "query.polyfed"),
                content=RecordDict(),
            )
            headers.append(message_to_proto(outer))
        return PullAppMessagesResponse(messages_list=headers, message_object_trees=[tree for _, _, tree in replies])

    def PullObject(self, request: PullObjectRequest) -> PullObjectResponse:  # noqa: N802
        content = self.pieces.get(request.object_id)
        available = content is not None
        return PullObjectResponse(object_found=True, object_available=available, object_content=content or b"")

    def ConfirmMessageReceived(  # noqa: N802
        self, request: ConfirmMessageReceivedRequest
    ) -> ConfirmMessageReceivedResponse:
        self.confirmed.append(request.message_object_id)
        return ConfirmMessageReceivedResponse()


def downloader(link: SuperLink, limit: int = 1 << 20) -> ReplyDownloader:
    return ReplyDownloader(link, Node(node_id=1), 1, limit)  # type: ignore[arg-type]


def test_missing_pieces_of_a_reply_do_not_delay_others() -> None:
    link = SuperLink()
    link.put("to ana", {"from": "ana"})
    ana = dict(link.pieces)
    link.put("to ben", {"from": "ben"})
    missing = {number: link.pieces.pop(number) for number in ana}
    download = downloader(link)
    assert download.poll(["to ana", "to ben"]).keys() == {"to ben"}
    assert download.poll(["to ana"]) == {}
    link.pieces.update(missing)
    (message,) = download.poll(["to ana"]).values()
    assert isinstance(message, Message) and from_flower_message(message).header == {"from": "ana"}
    assert len(link.confirmed) == 2


def test_the_superlink_decides_which_message_a_reply_answers() -> None:
    link = SuperLink()
    link.put("to ben", {"from": "ben"}, claimed="to ana")
    received = downloader(link).poll(["to ana", "to ben"])
    assert list(received) == ["to ben"]


def broken_body(link: SuperLink) -> None:
    """Replace the body of the config record by bytes that are not protobuf. A SuperLink accepts it."""
    for number, piece in link.pieces.items():
        if piece.startswith(b"ConfigRecord"):
            head, _, body = piece.partition(b"\0")
            link.pieces[number] = head + b"\0" + b"\xff" * len(body)


def unknown_class(link: SuperLink) -> None:
    for number, piece in link.pieces.items():
        if piece.startswith(b"Message"):
            link.pieces[number] = piece.replace(b"Message", b"Nothing", 1)


def without_separator(link: SuperLink) -> None:
    for number in link.pieces:
        link.pieces[number] = b"nothing"


@pytest.mark.parametrize("damage", [broken_body, unknown_class, without_separator])
def test_only_the_unreadable_reply_is_refused(damage: Callable[[SuperLink], None]) -> None:
    bad, good = SuperLink(), SuperLink()
    bad.put("to ben", {"from": "ben"})
    damage(bad)
    good.put("to ana", {"from": "ana"})
    bad.replies.update(good.replies)
    bad.pieces.update(good.pieces)
    polled = downloader(bad).poll(["to ben", "to ana"])
    received = {message_id: unwrap_reply(reply) for message_id, reply in polled.items()}
    assert isinstance(received["to ben"], Failure) and received["to ben"].kind == "refused"
    assert isinstance(received["to ana"], SiteMessage)


def test_a_reply_that_is_too_large_is_refused() -> None:
    link = SuperLink()
    meta = Metadata(1, "", 2, 1, "to ben", "", 0.0, 60.0, "query.polyfed")
    large = Array("uint8", (3 << 20,), "polyfed", bytes(3 << 20))
    content = RecordDict({"head": ConfigRecord({"json": "{}"}), "blocks": ArrayRecord({"frame": large})})
    message: Message = make_message(metadata=meta, content=content)
    link.pieces = {number: part.deflate() for number, part in get_all_nested_objects(message).items()}
    link.replies["to ben"] = (message, get_object_tree(message))
    reply = downloader(link, 1000).poll(["to ben"])["to ben"]
    assert isinstance(reply, Failure) and "larger than the" in reply.message


def test_a_repeated_piece_counts_every_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few bytes could otherwise expand to gigabytes."""
    monkeypatch.setattr(messages, "INLINE_BYTES", 0)
    link = SuperLink()
    link.put("to ben", {"from": "ben"})
    for number, piece in list(link.pieces.items()):
        if piece.startswith(b"Array "):
            head, _, body = piece.partition(b"\0")
            many = body.replace(b'"arraychunk_ids": [0]', b'"arraychunk_ids": [' + b", ".join([b"0"] * 50_000) + b"]")
            assert many != body
            link.pieces[number] = head + b"\0" + many
    reply = downloader(link, 1000).poll(["to ben"])["to ben"]
    assert isinstance(reply, Failure) and "it repeats pieces" in reply.message


@pytest.mark.parametrize(
    ("head", "blocks", "said"),
    [
        ({"block.frame": b"1"}, {"frame": b"1"}, "a block twice"),
        ({"frame": b"1"}, {}, "fields that are no blocks"),
        ({"block.frame": "1"}, {}, "its blocks are not bytes"),
        ({"block.frame": [b"1"]}, {}, "its blocks are not bytes"),
    ],
)
def test_blocks_in_the_header_are_checked(head: dict[str, Any], blocks: dict[str, bytes], said: str) -> None:
    arrays = {name: Array("uint8", (len(block),), "polyfed", block) for name, block in blocks.items()}
    content = RecordDict({"head": ConfigRecord({"json": "{}", **head}), "blocks": ArrayRecord(arrays)})
    meta = Metadata(1, "", 2, 1, "to ben", "", 0.0, 60.0, "query.polyfed")
    with pytest.raises(PayloadError, match=said):
        from_flower_message(make_message(metadata=meta, content=content))
