"""The replay buffers of past rounds: at clients, and the server's plan of what they replay and what they missed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from polyfed.core import Client, Payload, Server, Value
from polyfed.methods.dffke.messages import Messages, round_key, subtree
from polyfed.methods.dffke.replay_index import ReplayIndex, newest

# State keys: "shelf" is the replay index, "archive" the decoders and codes of rounds that some client still misses.
# The names of state keys are part of the state hash.


def empty_replay_state() -> dict[str, Value]:
    """Return the server's replay state before the first round."""
    return {"shelf": ReplayIndex().to_state(), "archive": {}}


@dataclass(frozen=True)
class ReplayPlan:
    """The replay of one round."""

    index: ReplayIndex
    resend: bool  # whether participants are sent the rounds that they missed
    missing: Mapping[str, list[str]]  # past rounds that each participant is sent
    replayed: Mapping[str, dict[str, int]]  # past rounds that each teacher labels again, with its images in them

    @staticmethod
    def make(
        server: Server, participants: Iterable[str], teachers: Iterable[str], limit: int | None, *, resend: bool
    ) -> ReplayPlan:
        """Plan the replay of the current round."""
        index = ReplayIndex.from_state(server.state["shelf"], limit)
        missing = {name: index.missing_rounds(name) if resend else [] for name in participants}
        return ReplayPlan(index, resend, missing, {name: index.row_counts(name, missing[name]) for name in teachers})

    def messages(self, server: Server) -> Messages:
        """Return the replay fields of each participant's message."""
        archive = subtree(server.state["archive"])
        each: Messages = {
            name: {"missing": {key: archive[key] for key in keys}} for name, keys in self.missing.items() if keys
        }
        for name, counts in self.replayed.items():
            each[name] = {**each.get(name, {}), "review": counts}
        return each

    def commit(
        self, server: Server, entry: Mapping[str, Value], rows: Mapping[str, int], received_by: Iterable[str]
    ) -> None:
        """Add this round to the server's replay state. Archive its decoder and codes while a client misses them."""
        now = round_key(server.round)
        for name in received_by:
            self.index.add_held(name, [*self.missing[name], now])
        self.index.add_round(now, rows)
        needed = self.index.prune([profile.name for profile in server.roster] if self.resend else [])
        archive = {**subtree(server.state["archive"]), now: entry}
        server.state["archive"] = {key: value for key, value in archive.items() if key in needed}
        server.state["shelf"] = self.index.to_state()


def store_round(client: Client, msg: Payload, limit: int | None) -> None:
    """Add the round's decoder and codes to the replay buffer, with rounds that the client missed (line 21)."""
    past = {**subtree(client.state.get("buffer")), **subtree(msg.get("missing"))}
    current = {field: msg[field] for field in ("decoder", "codes")}
    client.state["buffer"] = {**newest(past, limit), round_key(client.round): current}


def forget_oldest(client: Client, limit: int | None) -> None:
    """Keep the newest rounds of the replay buffer."""
    client.state["buffer"] = newest(subtree(client.state.get("buffer")), limit)
