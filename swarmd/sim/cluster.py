"""A swarm of simulated peers: carries out the effects of any machine of floor 0, and does faults.

What swarmd/node/driver.py is for one real peer, this is for all at once, under virtual time.
It is made with a factory, so it runs whatever a peer is built of. Each peer has a clock of its own
(another origin, another rate), because nothing on the wire may depend on it, and a disk that
survives a crash unless the fault says otherwise.

Faults are methods: `crash`, `start` again, `pause`, `resume`. Which of them happen, and when, is
faults.py's business; whether the peers bear it, checkers.py's.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

from swarmd.protocols import effects as fx
from swarmd.protocols import wire
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId, RunId
from swarmd.protocols.jobs import BufferRef
from swarmd.protocols.limits import CHUNK_BYTES, EFFECTS_PER_EVENT_MAX
from swarmd.protocols.membership import Membership
from swarmd.protocols.messages import Message
from swarmd.protocols.run_shape import RunShape
from swarmd.sim.clock import World
from swarmd.sim.fake_compute import CostModel, FakeCompute
from swarmd.sim.files import FILE_EFFECTS, READ_S, SimFiles
from swarmd.sim.message_size import size_of_message
from swarmd.sim.network import Network, NetworkProfile
from swarmd.sim.slots import SimSlots

LAG_TOLD_S = 0.25
"""A loop that was late by more says so (LoopLag), as the real driver does."""
SLOT_BYTES_MAX = 64 << 20


class SimMachine(Protocol):
    """What a factory makes: a machine that has a Membership inside."""

    membership: Membership

    def handle(self, event: fx.Event, now_s: float) -> list[fx.Effect]: ...


@dataclass(frozen=True, slots=True)
class PeerSpec:
    """All that a factory may know of the peer it builds."""

    peer: PeerId
    name: str
    addresses: tuple[str, ...]
    incarnation: int
    recent_starts: int
    entries: dict[PeerId, tuple[str, ...]]
    """Empty: the founder."""
    disk: dict[str, Any]
    shape: RunShape
    rng: random.Random
    sign: Callable[[bytes], bytes]
    verify: Callable[[PeerId, bytes, bytes], bool]
    now_s: float
    """On the peer's own clock."""
    speed: Callable[[], float]
    """Of its worker, of the usual: for machines that only pretend to compute."""


Factory = Callable[[PeerSpec], SimMachine]
Twist = Callable[[list[fx.Effect]], list[fx.Effect]]
"""How a liar changes what its machine wants done."""


@dataclass(slots=True)
class SimPeer:
    """One peer and its host."""

    number: int
    peer: PeerId
    name: str
    machine: SimMachine | None = None
    """None: no process runs."""
    epoch: int = 0
    """Tells one process of this peer from the next."""
    disk: dict[str, Any] = field(default_factory=dict)
    starts_s: list[float] = field(default_factory=list)
    clock_origin_s: float = 0.0
    clock_rate: float = 1.0
    is_paused: bool = False
    backlog: list[tuple[fx.Event | str, Any]] = field(default_factory=list)
    """What came while it was paused, in order."""
    paused_at_s: float = 0.0
    timers: dict[str, int] = field(default_factory=dict)
    slots: SimSlots = field(default_factory=lambda: SimSlots(SLOT_BYTES_MAX))
    compute: FakeCompute | None = None
    speed: float = 1.0
    """Of its device, of the usual."""
    twist: Twist | None = None
    host_is_up: bool = True
    disturbed_until_s: float = 0.0
    """Until then something was done to it, on purpose."""
    ended: str | None = None
    """The code with which it ended by itself, for good."""

    @property
    def is_running(self) -> bool:
        return self.machine is not None

    @property
    def answers(self) -> bool:
        return self.machine is not None and not self.is_paused


class Cluster:
    """Peers, network, and time.

    observe: called after every event of a machine with (peer, event, effects); checkers hang there.
    exact: every message is encoded and decoded for real, and its true size counts.
    """

    def __init__(
        self,
        world: World,
        factory: Factory,
        shape: RunShape,
        profile: NetworkProfile,
        peer_count: int,
        *,
        costs: CostModel | None = None,
        exact: bool = False,
    ) -> None:
        self.world = world
        self.shape = shape
        self.network = Network(world, profile, self._told)
        self.network.is_reachable = self._why_unreachable
        self.exact = exact
        self.observe: list[Callable[[SimPeer, fx.Event, list[fx.Effect]], None]] = []
        self.on_emit: list[Callable[[SimPeer, fx.Emit], None]] = []
        self.signed: dict[bytes, PeerId] = {}
        """Every body that an honest peer's process signed."""
        self.disturbed_until_s = 0.0
        """As in SimPeer, for the network as a whole."""
        self._factory = factory
        self._costs = costs or CostModel()
        self._timer_number = 0
        self.peers = [self._make_peer(number) for number in range(peer_count)]
        self._number_of = {peer.peer: peer.number for peer in self.peers}

    def _make_peer(self, number: int) -> SimPeer:
        rng = self.world.rng_for(f"peer/{number}")
        text = hashlib.blake2b(b"%d" % rng.getrandbits(64), digest_size=22).hexdigest()
        peer = SimPeer(number, PeerId("12D3KooW" + text), f"p{number}")
        peer.clock_origin_s = rng.uniform(0.0, 1e6)
        return peer

    # ------------------------------------------------------------------------------ start and end

    def start(self, number: int, entries: Iterable[int] = ()) -> None:
        """Start a process; `entries` are the peers whose addresses it was given."""
        peer = self.peers[number]
        assert not peer.is_running, f"{peer.name} runs already"
        peer.epoch += 1
        peer.host_is_up = True
        peer.is_paused = False
        peer.backlog.clear()
        peer.timers.clear()
        peer.slots = SimSlots(SLOT_BYTES_MAX)
        peer.disk["incarnation"] = peer.disk.get("incarnation", 0) + 1
        peer.starts_s = [at_s for at_s in peer.starts_s if self.world.now_s - at_s < 600.0]
        peer.starts_s.append(self.world.now_s)
        peer.ended = None
        peer.compute = FakeCompute(
            self.world,
            f"{peer.name}/{peer.epoch}",
            self.shape,
            peer.slots,
            SimFiles(peer.disk, peer.slots),
            self._costs,
            lambda event: self._deliver(peer, event),
        )
        peer.compute.speed = peer.speed
        spec = PeerSpec(
            peer=peer.peer,
            name=peer.name,
            addresses=(self.address_of(number),),
            incarnation=peer.disk["incarnation"],
            recent_starts=len(peer.starts_s),
            entries={
                self.peers[other].peer: (self.address_of(other),)
                for other in entries
                if other != number
            },
            disk=peer.disk,
            shape=self.shape,
            rng=self.world.rng_for(f"machine/{number}/{peer.epoch}"),
            sign=lambda body: self._sign(peer, body),
            verify=verify,
            now_s=self.clock_of(peer),
            speed=lambda: peer.speed,
        )
        peer.machine = self._factory(spec)
        self._handle(peer, fx.Started())

    def crash(self, number: int, *, silently: bool = False, keep_disk: bool = True) -> None:
        """SIGKILL. silently: the host goes with it, and nothing closes the connections."""
        peer = self.peers[number]
        if not peer.is_running:
            return
        peer.machine = None
        peer.epoch += 1
        peer.is_paused = False
        peer.host_is_up = not silently
        assert peer.compute is not None
        peer.compute.end()
        if not keep_disk:
            peer.disk.clear()
        self.network.end_process(number, silently=silently)

    def _end(self, peer: SimPeer, code: str, epoch: int) -> None:
        """It is done, and said goodbye."""
        if peer.epoch == epoch and peer.is_running:
            self.crash(peer.number)
            peer.ended = code

    def pause(self, number: int) -> None:
        """SIGSTOP: the kernel still takes bytes, nobody answers."""
        peer = self.peers[number]
        if peer.answers:
            peer.is_paused = True
            peer.paused_at_s = self.world.now_s

    def resume(self, number: int) -> None:
        """SIGCONT: everything that came meanwhile is there at once."""
        peer = self.peers[number]
        if not peer.is_paused:
            return
        peer.is_paused = False
        backlog, peer.backlog = peer.backlog, []
        self._handle(peer, fx.LoopLag(self.world.now_s - peer.paused_at_s))
        for event, note in backlog:
            if event == "timer":
                self._fire(peer, peer.epoch, *note)
            elif isinstance(event, str):
                self._told(peer.number, event, *note)
            else:
                self._deliver(peer, event)

    def set_speed(self, number: int, speed: float) -> None:
        """Of its device, from now on, also after a restart."""
        peer = self.peers[number]
        peer.speed = speed
        if peer.compute is not None:
            peer.compute.speed = speed

    def command(self, number: int, name: str, **args: Any) -> None:
        """The operator's word."""
        self._deliver(self.peers[number], fx.Command(name, args))

    def tell(self, number: int, effects: list[fx.Effect]) -> None:
        """Carry out what a call of the test's own wants done."""
        for effect in effects:
            self._carry_out(self.peers[number], effect)

    # ------------------------------------------------------------------------------------- lookups

    def number_of(self, peer: PeerId) -> int | None:
        return self._number_of.get(peer)

    def running(self) -> list[SimPeer]:
        return [peer for peer in self.peers if peer.is_running]

    def clock_of(self, peer: SimPeer) -> float:
        """Its own monotonic seconds."""
        return peer.clock_origin_s + peer.clock_rate * self.world.now_s

    @staticmethod
    def address_of(number: int) -> str:
        return f"/ip4/10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}/tcp/4001"

    def disturb(self, numbers: Iterable[int], duration_s: float) -> None:
        """Note that these peers cannot be expected to be heard for so long."""
        until_s = self.world.now_s + duration_s
        for number in numbers:
            peer = self.peers[number]
            peer.disturbed_until_s = max(peer.disturbed_until_s, until_s)

    # -------------------------------------------------------------------------------------- events

    def _why_unreachable(self, number: int) -> str:
        peer = self.peers[number]
        if not peer.is_running:
            return "refused" if peer.host_is_up else "timeout"
        return "timeout" if peer.is_paused else ""

    def _told(self, number: int, what: str, other: int, value: Any) -> None:
        """The network reports."""
        peer = self.peers[number]
        if peer.is_paused:
            peer.backlog.append((what, (other, value)))
            return
        source = self.peers[other].peer
        if what == "arrived":
            self._arrived(peer, source, value)
        elif what == "up":
            self._deliver(peer, fx.LinkUp(source))
        elif what == "down":
            self._deliver(peer, fx.LinkDown(source, value))
        else:
            address = self.address_of(other)
            self._deliver(peer, fx.DialFailed(source, {address: value}))

    def _arrived(self, peer: SimPeer, source: PeerId, item: tuple[Any, Any]) -> None:
        message, tensor = item
        if isinstance(message, bytes):
            try:
                message = wire.decode(message)
            except RemoteProtocolError as error:
                self._deliver(peer, fx.Malformed(source, error.code, error.text))
                return
        ref: BufferRef | None = None
        if tensor is not None:
            size_bytes, content = tensor
            ref = peer.slots.acquire(size_bytes, content)
        refused = tensor is not None and ref is None
        self._deliver(peer, fx.Arrived(source, message, ref, refused))

    def _deliver(self, peer: SimPeer, event: fx.Event) -> None:
        if peer.is_paused:
            peer.backlog.append((event, None))
        elif peer.machine is not None:
            self._handle(peer, event)

    def _fire(self, peer: SimPeer, epoch: int, name: str, number: int) -> None:
        if epoch != peer.epoch or peer.timers.get(name) != number:
            return
        if peer.is_paused:
            peer.backlog.append(("timer", (name, number)))
            return
        del peer.timers[name]
        self._handle(peer, fx.TimerFired(name))

    def _handle(self, peer: SimPeer, event: fx.Event) -> None:
        assert peer.machine is not None
        effects = peer.machine.handle(event, self.clock_of(peer))
        assert len(effects) <= EFFECTS_PER_EVENT_MAX, f"{len(effects)} effects at once"
        if peer.twist is not None:
            effects = peer.twist(effects)
        for effect in effects:
            self._carry_out(peer, effect)
        for observer in self.observe:
            observer(peer, event, effects)

    # ------------------------------------------------------------------------------------- effects

    def _carry_out(self, peer: SimPeer, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Send):
            self._send(peer, effect)
        elif isinstance(effect, fx.SetTimer):
            self._timer_number += 1
            peer.timers[effect.name] = self._timer_number
            delay_s = max(0.0, effect.delay_s) / peer.clock_rate
            self.world.after(delay_s, self._fire, peer, peer.epoch, effect.name, self._timer_number)
        elif isinstance(effect, fx.Emit):
            self._emitted(peer, effect)
        elif isinstance(effect, fx.Dial):
            self._dial(peer, effect)
        elif isinstance(effect, fx.Drop):
            other = self._number_of.get(effect.peer)
            if other is not None:
                self.world.after(0.0, self.network.drop, peer.number, other)
        elif isinstance(effect, fx.ClearTimer):
            peer.timers.pop(effect.name, None)
        elif isinstance(effect, fx.Release):
            peer.slots.release(effect.buffer)
        elif isinstance(effect, FILE_EFFECTS):
            answer = SimFiles(peer.disk, peer.slots).answer(effect, CHUNK_BYTES)
            self.world.after(READ_S, self._deliver_to, peer, peer.epoch, answer)
        elif isinstance(effect, fx.RemoveFile):
            SimFiles(peer.disk, peer.slots).remove(effect.path)
        elif peer.compute is not None:
            if isinstance(effect, fx.Compute):
                peer.compute.submit(effect.job_id, effect.job)
            elif isinstance(effect, fx.LoadStage):
                peer.compute.load(effect.stage, effect.state)
            elif isinstance(effect, fx.UnloadStage):
                peer.compute.end()

    def _deliver_to(self, peer: SimPeer, epoch: int, event: fx.Event) -> None:
        """To the process that asked; its successor knows nothing of it."""
        if peer.epoch == epoch and peer.is_running:
            self._deliver(peer, event)

    def _send(self, peer: SimPeer, effect: fx.Send) -> None:
        message: Message | bytes = effect.message
        size_bytes = 0
        if self.exact:
            message = wire.encode(effect.message)
            size_bytes = len(message)
        else:
            size_bytes = size_of_message(effect.message)
        tensor = None
        if effect.payload is not None:
            content = peer.slots.content(effect.payload)
            tensor = (effect.payload.size_bytes, content)
            size_bytes += effect.payload.size_bytes
        other = self._number_of.get(effect.peer)
        item = (message, tensor)
        number, priority = peer.number, int(effect.priority)
        if other is None or not self.network.send(number, other, item, size_bytes, priority):
            failed = fx.SendFailed(effect.peer, effect.message, "no_link")
            self.world.after(0.0, self._deliver, peer, failed)

    def _dial(self, peer: SimPeer, effect: fx.Dial) -> None:
        other = self._number_of.get(effect.peer)
        if other is None or self.address_of(other) not in effect.addresses:
            causes = dict.fromkeys(effect.addresses, "no_route")
            self.world.after(0.0, self._deliver, peer, fx.DialFailed(effect.peer, causes))
        else:
            self.network.dial(peer.number, other)

    def _emitted(self, peer: SimPeer, emit: fx.Emit) -> None:
        if emit.name == "incarnation_raised":
            peer.disk["incarnation"] = emit.fields["incarnation"]
        elif emit.name == "peer_ended":
            self.world.after(0.0, self._end, peer, emit.fields["code"], peer.epoch)
        for listener in self.on_emit:
            listener(peer, emit)

    # ---------------------------------------------------------------------------------- signatures

    def _sign(self, peer: SimPeer, body: bytes) -> bytes:
        self.signed[body] = peer.peer
        return signature_of(peer.peer, body)


def signature_of(peer: PeerId, body: bytes) -> bytes:
    """Stands for ed25519: nobody but `_sign` and liars with this very key may call it."""
    return hashlib.blake2b(body, key=peer.encode()[:64], digest_size=64).digest()


def verify(peer: PeerId, body: bytes, signature: bytes) -> bool:
    return signature == signature_of(peer, body)


def shape_of(stages: int, rounds: int, seed: int, *, micro_batches_per_step: int = 8) -> RunShape:
    """A run small enough to simulate."""
    run_id = hashlib.blake2b(f"sim/{stages}/{rounds}/{seed}".encode(), digest_size=32).hexdigest()
    return RunShape(
        run_id=RunId(run_id),
        stages=stages,
        inner_steps=5,
        total_steps=5 * rounds,
        micro_batches_per_step=micro_batches_per_step,
        micro_batch_samples=4,
        sequence_tokens=128,
        held_out_micro_batches=4,
        width=128,
        seed=seed,
    )
