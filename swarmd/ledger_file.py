"""A ledger on paper: the run and every signed entry, so that anybody can prove it again, offline.

A file is the msgpack of {format, run, messages}: the run's canonical description, and the messages
in which a peer would tell its ledger. Reading one trusts nothing in it: entries must be of that
run, within its bounds, and signed by whom they speak of (peer ids contain the keys). Rounds that
the writer held in sum only are sums here, too, and carry no signature; `base` says how many.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgpack

from swarmd.errors import UserError
from swarmd.identity import verify
from swarmd.protocols import wire
from swarmd.protocols.errors import ProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.ledger_gossip import LedgerGossip
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.ledger import LedgerTotals, LedgerUpdate
from swarmd.run_config import InvalidRun, RunConfig, run_from_canonical

FORMAT = "swarmd.ledger/1"
NOBODY = PeerId("")


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """What was read, with every signature checked."""

    run: RunConfig
    ledger: Ledger

    @property
    def open_leases(self) -> int:
        """Held by somebody when the file was written."""
        ledger = self.ledger
        return sum(
            len(entry.leased)
            for number in ledger.rounds_in_detail()
            for entry in ledger.entries(number)
        )


def dump_ledger(run_body: bytes, saved: Sequence[Message]) -> bytes:
    """run_body: the run's canonical description. saved: as LeaseBook.save gives it."""
    messages = [wire.encode(message) for message in saved]
    body: bytes = msgpack.packb({"format": FORMAT, "run": run_body, "messages": messages})
    return body


def read_ledger(path: Path) -> LedgerFile:
    """Raises UserError (exit 1) for a file that cannot be read or does not prove what it says."""
    try:
        plain = msgpack.unpackb(path.read_bytes())
        if plain["format"] != FORMAT:
            raise _unproved(path, f"is of the format {plain['format']!r}")
        run = run_from_canonical(plain["run"])
        ledger = Ledger(run.shape, verify)
        gossip = LedgerGossip(ledger, NOBODY, 0)
        gossip.restore([_told(body) for body in plain["messages"]], run.shape.rounds)
    except OSError as error:
        raise _unproved(path, error.strerror or str(error)) from None
    except (ValueError, KeyError, TypeError, msgpack.UnpackException) as error:
        raise _unproved(path, f"is no ledger: {error}") from None
    except (InvalidRun, ProtocolError) as error:
        raise _unproved(path, f"does not hold: {error}") from None
    return LedgerFile(run, ledger)


def _told(body: bytes) -> LedgerTotals | LedgerUpdate:
    message = wire.decode(body)
    if not isinstance(message, LedgerTotals | LedgerUpdate):
        raise ValueError(f"a {type(message).__name__} in it")
    return message


def _unproved(path: Path, text: str) -> UserError:
    return UserError(
        f"{path} {text}",
        code="ledger_unproved",
        exit_code=1,
        hint="`swarmd data ledger FILE` writes one from a running peer",
    )
