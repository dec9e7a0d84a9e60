"""What the daemon answers on its control socket, by the names of local_api/protocol.py."""

from __future__ import annotations

import base64
import math
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from swarmd.errors import UserError
from swarmd.ledger_file import dump_ledger
from swarmd.ledger_shown import audit_shown, contributions_shown
from swarmd.local_api.server import Args, Handlers
from swarmd.node.netcheck import NetcheckAnswer
from swarmd.node.operator_asks import ask_to_drain
from swarmd.protocols import effects as fx
from swarmd.protocols.assignment import Plan as PlacementPlan
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages.gossip import PeerRecord
from swarmd.records import (
    Done,
    Leave,
    Plan,
    PlannedPeer,
    PlannedStage,
    Run,
)
from swarmd.run_file import run_document
from swarmd.run_source import require_stage

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode
    from swarmd.protocols.peer import PeerMachine

LEAVE_POLL_S = 0.05
COLLECT_POLL_S = 0.1
COLLECT_S = 600.0
"""For all stages together, unless the asker says otherwise."""
ID_PART_CHARS_MIN = 4
FOR_ALL_DEVICES = ("pause", "resume")
"""Words that are meant for the machine, and so for the companions too."""


def control_handlers(node: PeerNode) -> Handlers:
    """Of one node."""
    answers = {
        "status": _Status(node),
        "peers": _Peers(node),
        "audit": _Audit(node),
        "run": _Run(node),
        "leave": _Leave(node, leaves=True),
        "drain": _Leave(node, leaves=False),
        "finish": _Finish(node, leaves=True),
        "pause": _Simple(node, "pause"),
        "resume": _Simple(node, "resume"),
        "cordon": _Simple(node, "cordon"),
        "uncordon": _Simple(node, "uncordon"),
        "pin": _Simple(node, "pin"),
        "unpin": _Simple(node, "unpin"),
        "plan": _Plan(node),
        "contributions": _Contributions(node),
        "ledger": _Ledger(node),
        "peers_ping": _Ping(node),
        "peers_forget": _Forget(node),
        "collect": _Collect(node),
        "netcheck": NetcheckAnswer(node),
        "inject": _Inject(node),
        "dump": _Dump(node),
    }
    return Handlers(answers, {"events": node.feed.follow})


class _Answer:
    def __init__(self, node: PeerNode) -> None:
        self._node = node


class _Status(_Answer):
    async def __call__(self, args: Args) -> Any:
        return self._node.reporter.status()


class _Peers(_Answer):
    async def __call__(self, args: Args) -> Any:
        return self._node.reporter.peers()


class _Audit(_Answer):
    async def __call__(self, args: Args) -> Any:
        machine = _machine(self._node)
        return audit_shown(machine.leases.audit(trio.current_time()))


class _Plan(_Answer):
    async def __call__(self, args: Args) -> Any:
        machine, now_s = _machine(self._node), trio.current_time()
        placement = machine.work.seat.placement
        view = machine.membership.view(now_s)
        found = placement.plan(view, now_s)
        gain = found.gain_share
        return Plan(
            map=[
                PlannedStage(stage=stage, peers=list(peers))
                for stage, peers in enumerate(found.present.stages)
            ],
            proposal=[
                PlannedStage(stage=stage, peers=list(peers))
                for stage, peers in enumerate(found.proposal.stages)
            ],
            gain_share=gain if math.isfinite(gain) else None,
            decision=found.decision,
            why=found.why,
            next_check_s=round(placement.next_check_s(now_s), 3),
            peers=[_planned(peer.record, found) for peer in view.present()],
        )


def _planned(record: PeerRecord, plan: PlacementPlan) -> PlannedPeer:
    """One peer's line of the plan; who takes no part says why."""
    seat = plan.seat_of(PeerId(record.peer))
    return PlannedPeer(
        id=record.peer,
        name=record.name or None,
        stage=record.stage,
        proposed=None if seat is None else seat.stage,
        why=seat.why if seat is not None else "observer" if record.observer else record.phase,
        pinned=record.pinned,
        cordoned=record.cordoned,
        lacks_data=record.lacks_data,
    )


class _Contributions(_Answer):
    async def __call__(self, args: Args) -> Any:
        machine = _machine(self._node)
        view = machine.membership.view(trio.current_time())
        names = {peer.peer: peer.record.name for peer in view.peers}
        return contributions_shown(machine.leases.ledger, names)


class _Ledger(_Answer):
    async def __call__(self, args: Args) -> Any:
        machine = _machine(self._node)
        body = dump_ledger(machine.work.setup.run_body, machine.leases.save())
        data = {"body": base64.b64encode(body).decode(), "run_id": machine.shape.run_id}
        return Done(command="data ledger", data=data)


class _Ping(_Answer):
    async def __call__(self, args: Args) -> Any:
        machine, transport = _machine(self._node), self._node.transport
        peer, name = _peer_meant(machine, str(args.get("id", "")))
        rtt_s = machine.membership.rtt_s(peer)
        links = [] if transport is None else transport.statistics()
        paths = [link.path for link in links if link.peer == peer and link.path != "none"]
        if rtt_s is None or not paths:
            raise UserError(
                f"there is no link to {name}",
                code="no_link",
                exit_code=1,
                hint="links are kept to neighbours only; `swarmd peers` shows them",
            )
        data = {"rtt_ms": round(1e3 * rtt_s, 3), "path": paths[0]}
        return Done(command="peers ping", data=data)


class _Forget(_Answer):
    async def __call__(self, args: Args) -> Any:
        machine = _machine(self._node)
        peer, name = _peer_meant(machine, str(args.get("id", "")))
        view = machine.membership.view(trio.current_time())
        if peer == machine.peer or peer in [found.peer for found in view.present()]:
            raise UserError(
                f"{name} is there",
                code="peer_alive",
                exit_code=2,
                hint="only who left or died can be forgotten",
            )
        assert self._node.driver is not None
        self._node.driver.put(fx.Command("forget", {"id": peer}))
        await trio.sleep(0)
        return Done(command="peers forget")


class _Run(_Answer):
    async def __call__(self, args: Args) -> Any:
        run = self._node.run
        if run is None:
            raise _not_ready("the run is not known yet")
        return Run(
            id=run.run_id,
            name=run.name,
            link=self._node.reporter.run_link(),
            description=run_document(run),
        )


class _Leave(_Answer):
    def __init__(self, node: PeerNode, *, leaves: bool) -> None:
        super().__init__(node)
        self._leaves = leaves

    async def __call__(self, args: Args) -> Any:
        node, begun_s = self._node, trio.current_time()
        if node.machine is None and self._leaves:
            node.on_leave(None, now=True)
            return Leave(outcome="stopped_now", drain_s=0.0, exit_code=0)
        machine = _machine(node)
        before = _held(machine)
        given = args.get("deadline_s")
        deadline_s = node.limits.drain_deadline_s if given is None else float(given)
        if args.get("id") and not self._leaves:
            peer, name = _peer_meant(machine, str(args["id"]))
            if peer != machine.peer:
                return await ask_to_drain(node, peer, name, deadline_s)
        if self._leaves and args.get("now"):
            node.on_leave(None, now=True)
            return Leave(outcome="stopped_now", dropped=before, drain_s=0.0, exit_code=0)
        if self._leaves:
            node.on_leave(deadline_s, now=False)
        else:
            assert node.driver is not None
            node.driver.put(fx.Command("drain"))
            if node.companions is not None:
                node.start_soon(partial(node.companions.tell, "drain", {}))
        with trio.move_on_after(deadline_s) as scope:
            while machine.ending.phase in ("none", "draining"):
                await trio.sleep(LEAVE_POLL_S)
        incomplete = scope.cancelled_caught
        left = _held(machine)
        return Leave(
            outcome="drain_incomplete" if incomplete else "drained",
            micro_batches_finished=max(0, before["micro_batches"] - left["micro_batches"]),
            leases_returned=before["leases"],
            state_handed_to=list(machine.work.states.handed_to),
            dropped=left if incomplete else {},
            drain_s=round(trio.current_time() - begun_s, 3),
            exit_code=5 if incomplete else 0,
        )


class _Finish(_Leave):
    """After the running outer round. The machine goes by itself then, whoever still waits."""

    async def __call__(self, args: Args) -> Any:
        machine = _machine(self._node)
        assert self._node.driver is not None
        self._node.driver.put(fx.Command("finish"))
        if self._node.companions is not None:
            self._node.start_soon(partial(self._node.companions.tell, "finish", {}))
        while machine.ending.phase == "none":
            await trio.sleep(LEAVE_POLL_S)
        return await super().__call__(args)


class _Simple(_Answer):
    """Hand a word to the machine."""

    def __init__(self, node: PeerNode, command: str) -> None:
        super().__init__(node)
        self._command = command

    async def __call__(self, args: Args) -> Any:
        machine, stage = _machine(self._node), args.get("stage")
        if self._command == "pin" and isinstance(stage, int):
            require_stage(machine.shape.stages, stage)
        assert self._node.driver is not None
        self._node.driver.put(fx.Command(self._command, dict(args)))
        await trio.sleep(0)
        companions = self._node.companions
        if companions is None or self._command not in FOR_ALL_DEVICES:
            return Done(command=self._command)
        answers = await companions.tell(self._command, args)
        told = {home: answer is not None for home, answer in sorted(answers.items())}
        return Done(command=self._command, data={"devices": told} if told else {})


class _Collect(_Answer):
    """Snapshots of the other stages onto this disk."""

    async def __call__(self, args: Args) -> Any:
        machine = _machine(self._node)
        assert self._node.driver is not None
        self._node.driver.put(fx.Command("collect"))
        await trio.sleep(COLLECT_POLL_S)
        guard = machine.work.states.guard
        with trio.move_on_after(float(args.get("deadline_s") or COLLECT_S)):
            while guard.collecting:
                await trio.sleep(COLLECT_POLL_S)
        wanted = set(range(machine.shape.stages)) - {machine.work.stage}
        data = {
            "run": machine.shape.run_id,
            "rounds": {str(s): g.round for s, g in sorted(guard.held.items())},
            "missing": sorted(guard.collecting | (wanted - guard.held.keys())),
        }
        guard.collecting.clear()
        return Done(command="collect", data=data)


class _Inject(_Answer):
    async def __call__(self, args: Args) -> Any:
        run = self._node.run
        if run is None or not run.allow_injection:
            raise UserError(
                "this run does not allow fault injection",
                code="injection_refused",
                exit_code=77,
                hint="only runs whose file says `allow_injection = true` do",
            )
        assert self._node.driver is not None
        faults, driver, loader = self._node.faults, self._node.driver, self._node.loader
        if args.get("clear"):
            await faults.clear(driver, loader)
        else:
            await faults.add([str(spec) for spec in args.get("specs", [])], driver, loader)
        return Done(command="debug inject", data={"active": faults.active})


class _Dump(_Answer):
    async def __call__(self, args: Args) -> Any:
        node, now_s = self._node, trio.current_time()
        data: dict[str, Any] = {"reason": node.reason().code}
        if node.machine is not None:
            data["membership"] = repr(node.machine.membership.statistics())
            if node.machine.work.pipeline is not None:
                data["pipeline"] = repr(node.machine.work.pipeline.statistics(now_s))
        if node.lane is not None:
            data["lane"] = repr(node.lane.statistics())
        if node.slots is not None:
            data["slots"] = repr(node.slots.statistics())
        if node.transport is not None:
            data["links"] = [repr(link) for link in node.transport.statistics()]
            data["refusals"] = node.transport.counters()
        if node.driver is not None:
            data["driver"] = {
                "events": node.driver.events_handled,
                "lag_s_max": node.driver.lag_s_max,
            }
        return Done(command="debug dump", data=data)


def _peer_meant(machine: Any, text: str) -> tuple[PeerId, str]:
    """The one peer with this name, id, or beginning or end (4 characters or more) of an id."""
    peers = machine.membership.view(trio.current_time()).peers
    found = [peer for peer in peers if text in (peer.peer, peer.record.name)]
    if not found and len(text) >= ID_PART_CHARS_MIN:
        found = [peer for peer in peers if peer.peer.startswith(text) or peer.peer.endswith(text)]
    if len(found) != 1:
        several = f"{len(found)} peers are meant by {text!r}"
        raise UserError(
            several if found else f"no peer is called {text!r}",
            code="ambiguous_peer" if found else "unknown_peer",
            exit_code=2,
            hint="`swarmd peers --all --json` shows every id in full",
        )
    return PeerId(found[0].peer), found[0].record.name or found[0].peer


def _held(machine: PeerMachine) -> dict[str, int]:
    """What a stop at this moment would drop."""
    pipeline = machine.work.pipeline
    in_flight = {} if pipeline is None else pipeline.statistics(trio.current_time()).in_flight
    return {"micro_batches": sum(in_flight.values()), "leases": len(machine.leases.held())}


def _machine(node: PeerNode) -> PeerMachine:
    if node.machine is None:
        raise _not_ready("the peer has not joined yet")
    return node.machine


def _not_ready(text: str) -> UserError:
    hint = "wait for it with `swarmd wait --for joined`"
    return UserError(text, code="not_ready", exit_code=75, hint=hint)
