"""Carries out what simulated machines want done: what swarmd/node/driver.py is for one real peer.

Each kind of effect has its way, and an effect that has none is an error. Messages are carried as
they are, and their size is estimated; `exact`: they are encoded and decoded, and their true size
counts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from swarmd.protocols import effects as fx
from swarmd.protocols import wire
from swarmd.protocols.ids import PeerId
from swarmd.protocols.limits import CHUNK_BYTES
from swarmd.sim.clock import World
from swarmd.sim.files import READ_S, FileEffect, SimFiles
from swarmd.sim.message_size import size_of_message
from swarmd.sim.network import Network
from swarmd.sim.sim_peer import SimPeer

Deliver = Callable[[SimPeer, fx.Event], None]
Emitted = Callable[[SimPeer, fx.Emit], None]


def address_of(number: int) -> str:
    """Where the peer of this number listens."""
    return f"/ip4/10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}/tcp/4001"


class Carrier:
    """deliver: hands an event to a peer, now. handle: the same, to one that runs and is not paused.
    emitted: is told what a machine has to tell."""

    def __init__(
        self,
        world: World,
        network: Network,
        number_of: Mapping[PeerId, int],
        deliver: Deliver,
        handle: Deliver,
        emitted: Emitted,
        *,
        exact: bool,
    ) -> None:
        self._world = world
        self._network = network
        self._number_of = number_of
        self._deliver = deliver
        self._handle = handle
        self._exact = exact
        self._timer_number = 0
        self._ways: dict[type[Any], Callable[[SimPeer, Any], None]] = {
            fx.Send: self._send,
            fx.SetTimer: self._set_timer,
            fx.ClearTimer: _clear_timer,
            fx.Emit: emitted,
            fx.Dial: self._dial,
            fx.Drop: self._drop,
            fx.Locate: _nothing,
            fx.Compute: _compute,
            fx.LoadStage: _load,
            fx.UnloadStage: _unload,
            fx.ReadFile: self._file,
            fx.WriteFile: self._file,
            fx.HashFile: self._file,
            fx.KeepCheckpoint: self._file,
            fx.RemoveFile: _remove_file,
            fx.Release: _release,
        }

    def carry_out(self, peer: SimPeer, effects: list[fx.Effect]) -> None:
        ways = self._ways
        for effect in effects:
            ways[type(effect)](peer, effect)

    # -------------------------------------------------------------------------------------- timers

    def _set_timer(self, peer: SimPeer, effect: fx.SetTimer) -> None:
        self._timer_number += 1
        peer.timers[effect.name] = self._timer_number
        delay_s = max(0.0, effect.delay_s) / peer.clock_rate
        self._world.after(delay_s, self._due, peer, peer.epoch, effect.name, self._timer_number)

    def _due(self, peer: SimPeer, epoch: int, name: str, number: int) -> None:
        if epoch != peer.epoch or peer.timers.get(name) != number:
            return
        if peer.is_paused:
            peer.backlog.append((self._due, (peer, epoch, name, number)))
            return
        del peer.timers[name]
        self._handle(peer, fx.TimerFired(name))

    # --------------------------------------------------------------------------------------- links

    def _send(self, peer: SimPeer, effect: fx.Send) -> None:
        message: Any = effect.message
        if self._exact:
            message = wire.encode(message)
            size_bytes = len(message)
        else:
            size_bytes = size_of_message(message)
        tensor, payload = None, effect.payload
        if payload is not None:
            tensor = (payload.size_bytes, peer.slots.content(payload))
            size_bytes += payload.size_bytes
        other = self._number_of.get(effect.peer)
        item = (message, tensor)
        if other is None or not self._network.send(
            peer.number, other, item, size_bytes, effect.priority
        ):
            failed = fx.SendFailed(effect.peer, effect.message, "no_link")
            self._world.after(0.0, self._deliver, peer, failed)

    def _dial(self, peer: SimPeer, effect: fx.Dial) -> None:
        other = self._number_of.get(effect.peer)
        if other is None or address_of(other) not in effect.addresses:
            causes = dict.fromkeys(effect.addresses, "no_route")
            self._world.after(0.0, self._deliver, peer, fx.DialFailed(effect.peer, causes))
        else:
            self._network.dial(peer.number, other)

    def _drop(self, peer: SimPeer, effect: fx.Drop) -> None:
        other = self._number_of.get(effect.peer)
        if other is not None:
            self._world.after(0.0, self._network.drop, peer.number, other)

    # --------------------------------------------------------------------------------------- files

    def _file(self, peer: SimPeer, effect: FileEffect) -> None:
        answer = SimFiles(peer.disk, peer.slots).answer(effect, CHUNK_BYTES)
        self._world.after(READ_S, self._answer, peer, peer.epoch, answer)

    def _answer(self, peer: SimPeer, epoch: int, event: fx.Event) -> None:
        """To the process that asked; its successor knows nothing of it."""
        if peer.epoch == epoch and peer.is_running:
            self._deliver(peer, event)


def _nothing(peer: SimPeer, effect: fx.Effect) -> None:
    """There is one plane here."""


def _clear_timer(peer: SimPeer, effect: fx.ClearTimer) -> None:
    peer.timers.pop(effect.name, None)


def _remove_file(peer: SimPeer, effect: fx.RemoveFile) -> None:
    SimFiles(peer.disk, peer.slots).remove(effect.path)


def _release(peer: SimPeer, effect: fx.Release) -> None:
    peer.slots.release(effect.buffer)


def _compute(peer: SimPeer, effect: fx.Compute) -> None:
    if peer.compute is not None:
        peer.compute.submit(effect.job_id, effect.job)


def _load(peer: SimPeer, effect: fx.LoadStage) -> None:
    if peer.compute is not None:
        peer.compute.load(effect.stage, effect.state)


def _unload(peer: SimPeer, effect: fx.UnloadStage) -> None:
    if peer.compute is not None:
        peer.compute.end()
