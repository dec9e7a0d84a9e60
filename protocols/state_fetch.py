"""Fetches a stage's state from peers that hold it: agreed on, verified, from several at a time.

    ask DONORS_MAX donors -> vote on what they offer -> pieces from all that agree -> fetched

Each piece is checked by its hash before it is written, and asked of one donor at a time; a donor
that dies costs the pieces that it was just asked for, one that is silent STALL_S more. Whoever
offers something else than the others is outvoted, and whoever sends other bytes than it offered is
left and told of. What a killed life had written is hashed and kept, if its round is still served.

Ends with Emit("state/fetched", {path, round, step, peers}), or goes on for ever, saying why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.protocols.jobs import BufferRef
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.state import (
    Chunk,
    ChunkRequest,
    Manifest,
    StateRefused,
    StateRequest,
)
from swarmd.protocols.reasons import Reason
from swarmd.protocols.saved_states import name_of_fetched
from swarmd.protocols.state_offers import Plan, is_same, vote, why_not
from swarmd.protocols.state_pieces import Donor, Pieces

DONORS_MAX = 4
STALL_S = 5.0
"""`state_stall_s`: no answer from a donor for so long, and it is left."""
OFFER_WAIT_S = 1.0
"""After the first offer, the others are waited for so long."""
WINDOW = 4
"""Pieces asked of one donor at once: enough to fill a link, few enough that others are served."""
TICK_S = 0.5
AVOID_S = 30.0
"""A donor that failed is asked again after so long."""
DISK_RETRY_S = 2.0
OFFENCES = ("outvoted", "hash_mismatch", "malformed", "wrong_shape", "refused_by_worker")
"""Outcomes that count against the donor."""


class StateFetch:
    """Of one stage. `start`, then `handle`; who has the stage is told by `set_donors`.

    name: before stage and round, of the file and the timer. partial_round: of a file that an
    earlier life has left.
    """

    def __init__(
        self,
        stage: int,
        own: PeerId,
        next_number: Callable[[], int],
        *,
        name: str = "fetch",
        partial_round: int | None = None,
    ) -> None:
        self.stage = stage
        self._own = own
        self._next_number = next_number
        self._name = name
        self.tick = f"state/{name}/{stage}"
        self._partial_round = partial_round
        self._known: tuple[PeerId, ...] = ()
        self.donors: dict[PeerId, Donor] = {}
        self.plan: Plan | None = None
        self.pieces: Pieces | None = None
        self._keeping: int | None = None
        """Token, while what is on disk is being hashed."""
        self._first_offer_s: float | None = None
        self._begun_s = 0.0
        self._disk_until_s = 0.0
        self._disk_code = ""
        self.is_done = False

    # ---------------------------------------------------------------------------- the composite

    def start(self, now_s: float) -> list[fx.Effect]:
        return [fx.SetTimer(self.tick, TICK_S), *self._look(now_s)]

    def set_donors(self, peers: Iterable[PeerId], now_s: float) -> list[fx.Effect]:
        """Linked peers that have the stage."""
        self._known = tuple(sorted(peers))
        effects: list[fx.Effect] = []
        for peer, donor in sorted(self.donors.items()):
            if donor.is_engaged and peer not in self._known:
                effects += self._leave(peer, "gone", now_s)
        return effects if self.is_done else [*effects, *self._look(now_s)]

    def expects(self, peer: PeerId, message: Message) -> bool:
        """Whether a message is for this transfer."""
        donor = self.donors.get(peer)
        if donor is None or self.is_done:
            return False
        match message:
            case Manifest(stage=stage):
                return donor.outcome == "asked" and stage == self.stage
            case Chunk(digest=digest, index=index):
                is_its = donor.manifest is not None and donor.manifest.digest == digest
                return is_its and self.pieces is not None and self.pieces.asked.get(index) == peer
            case StateRefused(digest=None):
                return donor.outcome == "asked"
            case StateRefused(digest=digest):
                return donor.manifest is not None and donor.manifest.digest == digest
        return False

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]:
        """Messages that it expects, its files and its timer."""
        if self.is_done:
            return []
        match event:
            case fx.Arrived(peer, Manifest() as manifest):
                return self._offered(peer, manifest, now_s)
            case fx.Arrived(peer, Chunk() as chunk, payload):
                return self._chunk_arrived(peer, chunk, payload, now_s)
            case fx.Arrived(peer, StateRefused() as refused):
                return self._refused(peer, refused, now_s)
            case fx.FileWritten(token):
                return self._written(token, now_s)
            case fx.FileHashed(token, size_bytes, hashes) if token == self._keeping:
                return self._kept(size_bytes, hashes, now_s)
            case fx.FileFailed(token, code, _):
                return self._file_failed(token, code, now_s)
            case fx.TimerFired(name) if name == self.tick:
                return [fx.SetTimer(self.tick, TICK_S), *self._look(now_s)]
        return []

    def stop(self) -> list[fx.Effect]:
        """Want it no more. What is not whole is removed."""
        gone = [] if self.plan is None or self.is_done else [fx.RemoveFile(self.path)]
        self.is_done = True
        return [fx.ClearTimer(self.tick), *gone]

    def begin_again(self, now_s: float) -> list[fx.Effect]:
        """The worker did not take what was fetched: not from them again."""
        effects: list[fx.Effect] = [fx.RemoveFile(self.path)]
        self.is_done, self.plan, self.pieces = False, None, None
        for peer, donor in sorted(self.donors.items()):
            if donor.outcome in ("done", "gives"):
                effects += self._leave(peer, "refused_by_worker", now_s)
        return [*effects, *self.start(now_s)]

    @property
    def path(self) -> str:
        assert self.plan is not None
        return name_of_fetched(self.stage, self.plan.round, self._name)

    @property
    def sources(self) -> dict[PeerId, Manifest]:
        """Donors that give what was agreed on."""
        return {
            peer: donor.manifest
            for peer, donor in sorted(self.donors.items())
            if donor.outcome == "gives" and donor.manifest is not None
        }

    # ------------------------------------------------------------------------------------- donors

    def _look(self, now_s: float) -> list[fx.Effect]:
        """Leave who is silent, ask others, vote if it is time, ask for pieces."""
        effects: list[fx.Effect] = []
        for peer, donor in sorted(self.donors.items()):
            if self._owes(peer, donor) and now_s - donor.heard_s >= STALL_S:
                effects += self._leave(peer, "silent", now_s)
        effects += self._ask(now_s)
        return [*effects, *self._vote(now_s), *self._fill(now_s)]

    def _owes(self, peer: PeerId, donor: Donor) -> bool:
        has_pieces = self.pieces is not None and self.pieces.asked_of(peer) > 0
        return donor.outcome == "asked" or has_pieces

    def _ask(self, now_s: float) -> list[fx.Effect]:
        room = DONORS_MAX - sum(donor.is_engaged for donor in self.donors.values())
        willing = [
            peer
            for peer in self._known
            if peer not in self.donors
            or (not self.donors[peer].is_engaged and self.donors[peer].avoid_until_s <= now_s)
        ]
        wanted = self._partial_round if self.plan is None else self.plan.round
        effects: list[fx.Effect] = []
        for peer in sorted(willing, key=lambda peer: (peer in self.donors, peer))[: max(0, room)]:
            donor = self.donors.setdefault(peer, Donor())
            donor.outcome, donor.manifest, donor.heard_s = "asked", None, now_s
            request = StateRequest(stage=self.stage, round=wanted)
            effects.append(fx.Send(peer, request, priority=fx.Priority.STATE))
        return effects

    def _leave(self, peer: PeerId, outcome: str, now_s: float) -> list[fx.Effect]:
        donor = self.donors[peer]
        donor.outcome, donor.manifest = outcome, None
        donor.avoid_until_s = now_s if outcome == "gone" else now_s + AVOID_S
        if self.pieces is not None:
            self.pieces.leave(peer)
        told = {"peer": peer, "code": outcome, "stage": self.stage}
        effects: list[fx.Effect] = [fx.Emit("donor_changed", told)]
        if outcome in OFFENCES:
            effects.append(fx.Emit("state/rejected", {"peer": peer, "code": outcome}))
        return effects

    def _offered(self, peer: PeerId, manifest: Manifest, now_s: float) -> list[fx.Effect]:
        donor = self.donors[peer]
        donor.heard_s = now_s
        why = why_not(manifest, self.stage)
        if why is not None:
            return [*self._leave(peer, why, now_s), *self._look(now_s)]
        donor.outcome, donor.manifest = "offers", manifest
        if self._first_offer_s is None:
            self._first_offer_s = now_s
        return self._look(now_s)

    def _vote(self, now_s: float) -> list[fx.Effect]:
        """On what is offered, or on those that offer what is being fetched."""
        offers = {
            peer: donor.manifest
            for peer, donor in self.donors.items()
            if donor.outcome in ("offers", "gives") and donor.manifest is not None
        }
        plan, sources = self.plan, self.sources
        if plan is not None and sources:
            offers = {peer: m for peer, m in offers.items() if m.round == plan.round}
        is_settled = all(self.donors[peer].outcome == "gives" for peer in offers)
        if not offers or is_settled or not self._is_time(now_s):
            return []
        found = vote(offers)
        for peer in found.agreed:
            self.donors[peer].outcome = "gives"
        effects: list[fx.Effect] = []
        for peer in found.outvoted:
            outcome = "outvoted" if found.why == "agreed" else "disputed"
            effects += self._leave(peer, outcome, now_s)
        if plan is not None and is_same(plan, found.plan):
            if not sources or sources.keys() & set(found.agreed):
                return effects
        return [*effects, *self._begin(found.plan, now_s)]

    def _is_time(self, now_s: float) -> bool:
        is_asking = any(donor.outcome == "asked" for donor in self.donors.values())
        since_s = now_s if self._first_offer_s is None else self._first_offer_s
        return self.plan is not None or not is_asking or now_s - since_s >= OFFER_WAIT_S

    def _refused(self, peer: PeerId, refused: StateRefused, now_s: float) -> list[fx.Effect]:
        donor = self.donors[peer]
        donor.heard_s = now_s
        if refused.code == "rate_exceeded" and refused.index is not None:
            if self.pieces is not None and self.pieces.asked.get(refused.index) == peer:
                self.pieces.give_back(refused.index)
            donor.resume_s = max(donor.resume_s, now_s + min(refused.retry_in_s, STALL_S))
            return self._fill(now_s)
        effects = self._leave(peer, refused.code, now_s)
        if refused.retry_in_s:
            donor.avoid_until_s = now_s + min(refused.retry_in_s, AVOID_S)
        return [*effects, *self._look(now_s)]

    # ------------------------------------------------------------------------------------- pieces

    def _begin(self, plan: Plan, now_s: float) -> list[fx.Effect]:
        """Fetch this from now on."""
        effects: list[fx.Effect] = [] if self.plan is None else [fx.RemoveFile(self.path)]
        left, self._partial_round = self._partial_round, None
        before = self.pieces
        self.plan, self.pieces = plan, Pieces(plan, self._own)
        if before is not None:
            self.pieces.bytes_refetched = before.bytes_refetched + before.bytes_done
        self._begun_s, self._keeping = now_s, None
        fields = {"stage": self.stage, "round": plan.round, "bytes": plan.size_bytes}
        effects.append(fx.Emit("transfer_started", {**fields, "donors": len(self.sources)}))
        if left == plan.round:
            self._keeping = self._next_number()
            effects.append(fx.HashFile(self._keeping, self.path, plan.chunk_bytes))
        return effects

    def _kept(self, size_bytes: int, hashes: tuple[bytes, ...], now_s: float) -> list[fx.Effect]:
        """What is on disk already."""
        assert self.pieces is not None
        self._keeping = None
        self.pieces.keep(hashes, size_bytes, list(self.sources.values()))
        return [*self._fill(now_s), *self._end_if_whole()]

    def _fill(self, now_s: float) -> list[fx.Effect]:
        """Ask for what is missing."""
        pieces, sources = self.pieces, self.sources
        if pieces is None or self._keeping is not None or now_s < self._disk_until_s:
            return []
        effects: list[fx.Effect] = []
        for peer, manifest in sources.items():
            donor = self.donors[peer]
            while donor.resume_s <= now_s and pieces.asked_of(peer) < WINDOW:
                is_first = not pieces.asked_of(peer)
                index = pieces.ask(peer, sources)
                if index is None:
                    break
                if is_first:
                    donor.heard_s = now_s
                request = ChunkRequest(digest=manifest.digest, index=index)
                effects.append(fx.Send(peer, request, priority=fx.Priority.STATE))
        return effects

    def _chunk_arrived(
        self, peer: PeerId, chunk: Chunk, payload: BufferRef | None, now_s: float
    ) -> list[fx.Effect]:
        pieces, donor = self.pieces, self.donors[peer]
        assert pieces is not None
        assert donor.manifest is not None
        donor.heard_s = now_s
        if payload is None:  # no slot was free for it here
            pieces.give_back(chunk.index)
            donor.resume_s = now_s + TICK_S
            return self._fill(now_s)
        donor.bytes_received += payload.size_bytes
        if payload.size_bytes != pieces.plan.piece_bytes(chunk.index):
            left = self._leave(peer, "wrong_shape", now_s)
            return [fx.Release(payload), *left, *self._look(now_s)]
        token = self._next_number()
        pieces.arrived(chunk.index, token)
        write = fx.WriteFile(
            token,
            self.path,
            chunk.index * pieces.plan.chunk_bytes,
            payload,
            donor.manifest.hashes[chunk.index],
        )
        return [write, fx.Release(payload), *self._fill(now_s)]

    def _written(self, token: int, now_s: float) -> list[fx.Effect]:
        if self.pieces is None or token not in self.pieces.writing:
            return []
        self._disk_code = ""
        self.pieces.written(token)
        return self._end_if_whole() or self._fill(now_s)

    def _end_if_whole(self) -> list[fx.Effect]:
        plan, pieces = self.plan, self.pieces
        assert plan is not None
        assert pieces is not None
        if not pieces.is_whole:
            return []
        self.is_done = True
        gave = tuple(peer for peer, donor in sorted(self.donors.items()) if donor.bytes_received)
        for peer in self.sources:
            self.donors[peer].outcome = "done"
        fields = {"stage": self.stage, "round": plan.round, "step": plan.step, "peers": gave}
        told = {**fields, "bytes": plan.size_bytes, "bytes_kept": pieces.bytes_kept}
        told["bytes_refetched"] = pieces.bytes_refetched
        return [
            fx.ClearTimer(self.tick),
            fx.Emit("transfer_verified", told),
            fx.Emit("state/fetched", {"path": self.path, **fields}),
        ]

    def _file_failed(self, token: int, code: str, now_s: float) -> list[fx.Effect]:
        if token == self._keeping:
            return self._kept(0, (), now_s)  # nothing of it can be used
        if self.pieces is None or token not in self.pieces.writing:
            return []
        _, peer = self.pieces.spoilt(token)
        if code == "hash_mismatch":
            left = self._leave(peer, code, now_s) if self.donors[peer].is_engaged else []
            return [*left, *self._look(now_s)]
        self._disk_code, self._disk_until_s = code, now_s + DISK_RETRY_S
        return []

    # ------------------------------------------------------------------------------------- showing

    def pace(self, now_s: float) -> tuple[int, float | None]:
        """(bytes of the whole state, at how many a second they come)."""
        if self.plan is None or self.pieces is None:
            return 0, None
        fetched, took_s = self.pieces.bytes_done - self.pieces.bytes_kept, now_s - self._begun_s
        return self.plan.size_bytes, fetched / took_s if fetched and took_s > 0 else None

    def reason(self, now_s: float) -> Reason:
        """What to show meanwhile."""
        plan, pieces = self.plan, self.pieces
        if self._disk_code in ("disk_full", "disk_limit", "disk_error"):
            text = f"the state of stage {self.stage} cannot be written; what is there is kept"
            return Reason(code=self._disk_code, text=text, stage=self.stage)
        if not any(donor.is_engaged for donor in self.donors.values()):
            tried = ", ".join(f"{p[-4:]} {d.outcome}" for p, d in sorted(self.donors.items()))
            text = f"nobody gives the state of stage {self.stage}: {tried or 'none linked'}"
            return Reason(code="state_no_donor", text=text, stage=self.stage)
        if plan is None or pieces is None:
            text = f"asked {len(self.donors)} peers for the state of stage {self.stage}"
            answered_by_s = STALL_S + min(d.heard_s for d in self.donors.values() if d.is_engaged)
            return self._downloading(text, answered_by_s, "deadline")
        _, bytes_per_s = self.pace(now_s)
        left = plan.size_bytes - pieces.bytes_done
        text = f"{pieces.bytes_done} of {plan.size_bytes} bytes from {len(self.sources)} donors"
        eta_at_s = now_s + left / bytes_per_s if bytes_per_s else None
        return self._downloading(text, eta_at_s, "measured" if bytes_per_s else "unknown")

    def _downloading(self, text: str, eta_at_s: float | None, basis: str) -> Reason:
        code = "state_downloading"
        return Reason(code=code, text=text, stage=self.stage, eta_at_s=eta_at_s, eta_basis=basis)
