"""What the operator of a peer tells it (Command), and what it does at each word."""

from __future__ import annotations

from typing import TYPE_CHECKING

from swarmd.protocols import effects as fx
from swarmd.protocols.errors import LocalProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.messages import control

if TYPE_CHECKING:
    from swarmd.protocols.peer import PeerMachine


def obey(peer: PeerMachine, command: fx.Command, now_s: float) -> list[fx.Effect]:
    """Raises LocalProtocolError (malformed) for a word that is none."""
    match command.name:
        case "leave" if command.args.get("now"):
            return peer.say_goodbye(now_s) if peer.ending.leave_now(now_s) else []
        case "drain" | "leave":
            if not peer.ending.drain(now_s, leaves=command.name == "leave"):
                return []
            return [fx.Emit("drain_started", {}), *peer.set_draining(True, now_s)]
        case "finish":
            peer.ending.finishes = peer.work.round
            return []
        case "pause":
            peer.pauses.say(command.args, now_s)
            return peer.set_draining(True, now_s)
        case "rule":
            before = peer.takes_no_work
            peer.pauses.obey(command.args, now_s)
            changed = peer.takes_no_work != before
            return peer.set_draining(not before, now_s) if changed else []
        case "resume":
            peer.pauses.word = None
            peer.ending.resume()
            return peer.set_draining(peer.takes_no_work, now_s)
        case "cordon" | "uncordon":
            return peer.membership.update_own(now_s, cordoned=command.name == "cordon")
        case "pin" | "unpin":
            return _pin(peer, command, now_s)
        case "collect":
            peer.work.states.collect()
            return []
        case "ask_to_drain":
            asked = PeerId(str(command.args["id"]))
            known = peer.membership.roster.get(asked)
            life = 0 if known is None else known.record.incarnation
            return [fx.Send(asked, control.DrainAsked(incarnation=life))]
        case "forget":
            peer.membership.forget(PeerId(str(command.args["id"])))
            return []
    raise LocalProtocolError("malformed", f"no command {command.name}")


def _pin(peer: PeerMachine, command: fx.Command, now_s: float) -> list[fx.Effect]:
    stage = command.args.get("stage")
    if isinstance(stage, int) and not 0 <= stage < peer.shape.stages:
        raise LocalProtocolError("malformed", f"no stage {stage}")
    peer.work.seat.pin(stage if isinstance(stage, int) else None)
    return peer.membership.update_own(now_s, pinned=command.name == "pin")
