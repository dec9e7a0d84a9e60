"""A swarm of simulated peers under virtual time: processes start and end, and faults are done.

It is made with a factory, so it runs whatever a peer is built of. Each peer has a clock of its own
(another origin, another rate), because nothing on the wire may depend on it, and a disk that
survives a crash unless the fault says otherwise. What its machine wants done is carrier.py's.

Faults are methods: `crash`, `start` again, `pause`, `resume`. Which of them happen, and when, is
faults.py's business; whether the peers bear it, checkers.py's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols import wire
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.limits import EFFECTS_PER_EVENT_MAX
from swarmd.protocols.run_shape import RunShape
from swarmd.sim.carrier import Carrier, address_of
from swarmd.sim.clock import World
from swarmd.sim.fake_compute import CostModel, FakeCompute
from swarmd.sim.files import SimFiles
from swarmd.sim.network import Network, NetworkProfile
from swarmd.sim.sim_peer import SLOT_BYTES_MAX, Factory, PeerSpec, SimPeer, signature_of, verify
from swarmd.sim.slots import SimSlots


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
        self.network = Network(world, profile, self._arrived, self._told)
        self.network.is_reachable = self._why_unreachable
        self.observe: list[Callable[[SimPeer, fx.Event, list[fx.Effect]], None]] = []
        self.on_emit: list[Callable[[SimPeer, fx.Emit], None]] = []
        self.signed: dict[bytes, PeerId] = {}
        """Every body that an honest peer's process signed."""
        self.disturbed_until_s = 0.0
        """As in SimPeer, for the network as a whole."""
        self._factory = factory
        self._costs = costs or CostModel()
        self.peers = [self._make_peer(number) for number in range(peer_count)]
        self._number_of = {peer.peer: peer.number for peer in self.peers}
        self._carrier = Carrier(
            world,
            self.network,
            self._number_of,
            self._deliver,
            self._handle,
            self._emitted,
            exact=exact,
        )

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
            addresses=(address_of(number),),
            incarnation=peer.disk["incarnation"],
            recent_starts=len(peer.starts_s),
            entries={
                self.peers[other].peer: (address_of(other),) for other in entries if other != number
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
        for action, args in backlog:
            action(*args)

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
        self._carrier.carry_out(self.peers[number], effects)

    # ------------------------------------------------------------------------------------- lookups

    def number_of(self, peer: PeerId) -> int | None:
        return self._number_of.get(peer)

    def running(self) -> list[SimPeer]:
        return [peer for peer in self.peers if peer.is_running]

    def clock_of(self, peer: SimPeer) -> float:
        """Its own monotonic seconds."""
        return peer.clock_origin_s + peer.clock_rate * self.world.now_s

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

    def _told(self, number: int, what: str, other: int, cause: str) -> None:
        """The network reports what became of a link."""
        peer = self.peers[number]
        if peer.is_paused:
            peer.backlog.append((self._told, (number, what, other, cause)))
            return
        source = self.peers[other].peer
        if what == "up":
            self._deliver(peer, fx.LinkUp(source))
        elif what == "down":
            self._deliver(peer, fx.LinkDown(source, cause))
        else:
            self._deliver(peer, fx.DialFailed(source, {address_of(other): cause}))

    def _arrived(self, number: int, other: int, item: tuple[Any, Any]) -> None:
        peer = self.peers[number]
        if peer.is_paused:
            peer.backlog.append((self._arrived, (number, other, item)))
            return
        if peer.machine is None:
            return
        source = self.peers[other].peer
        message, tensor = item
        if isinstance(message, bytes):
            try:
                message = wire.decode(message)
            except RemoteProtocolError as error:
                self._handle(peer, fx.Malformed(source, error.code, error.text))
                return
        if tensor is None:
            self._handle(peer, fx.Arrived(source, message))
            return
        size_bytes, content = tensor
        ref = peer.slots.acquire(size_bytes, content)
        self._handle(peer, fx.Arrived(source, message, ref, ref is None))

    def _deliver(self, peer: SimPeer, event: fx.Event) -> None:
        if peer.is_paused:
            peer.backlog.append((self._deliver, (peer, event)))
        elif peer.machine is not None:
            self._handle(peer, event)

    def _handle(self, peer: SimPeer, event: fx.Event) -> None:
        assert peer.machine is not None
        now_s = peer.clock_origin_s + peer.clock_rate * self.world.now_s
        effects = peer.machine.handle(event, now_s)
        assert len(effects) <= EFFECTS_PER_EVENT_MAX, f"{len(effects)} effects at once"
        if peer.twist is not None:
            effects = peer.twist(effects)
        if effects:
            self._carrier.carry_out(peer, effects)
        for observer in self.observe:
            observer(peer, event, effects)

    def _emitted(self, peer: SimPeer, emit: fx.Emit) -> None:
        if emit.name == "incarnation_raised":
            peer.disk["incarnation"] = emit.fields["incarnation"]
        elif emit.name == "peer_ended":
            self.world.after(0.0, self._end, peer, emit.fields["code"], peer.epoch)
        for listener in self.on_emit:
            listener(peer, emit)

    def _sign(self, peer: SimPeer, body: bytes) -> bytes:
        self.signed[body] = peer.peer
        return signature_of(peer.peer, body)
