"""A ledger on paper: the run and every signed entry, so that anybody can prove it again, offline.

It is in a file that `data ledger` wrote, or beside the state in a checkpoint.

A file is the msgpack of {format, run, messages}: the run's canonical description, and the messages
in which a peer would tell its ledger. Reading one trusts nothing in it: entries must be of that
run, within its bounds, and signed by whom they speak of (peer ids contain the keys). Rounds that
the writer held in sum only are sums here, too, and carry no signature; `base` says how many.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgpack

from swarmd.checkpoints import LEDGER, LEDGER_BYTES_MAX, CheckpointFolder, Unusable
from swarmd.errors import Corrupt, StoreError, UserError
from swarmd.home import Home
from swarmd.identity import verify
from swarmd.protocols import wire
from swarmd.protocols.errors import ProtocolError
from swarmd.protocols.ids import PeerId
from swarmd.protocols.ledger import Ledger
from swarmd.protocols.ledger_gossip import LedgerGossip
from swarmd.protocols.messages import Message
from swarmd.protocols.messages.ledger import LedgerTotals, LedgerUpdate
from swarmd.run_config import InvalidRun, RunConfig, run_from_canonical
from swarmd.run_source import resolve_run
from swarmd.store import check_is_file, read_bytes, store_error, write_bytes

FORMAT = "swarmd.ledger/1"
NOBODY = PeerId("")


@dataclass(frozen=True, slots=True)
class LedgerFile:
    """What was read, with every signature checked."""

    run: RunConfig
    ledger: Ledger
    passed_over: tuple[Unusable, ...] = ()
    """Checkpoints that are later than this one and cannot be used."""

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


def write_ledger(path: Path, body: bytes) -> None:
    """Whole or not at all, for anybody to read. Raises StoreError."""
    if path.is_file() or not path.exists():
        write_bytes(path.resolve(), body, mode=0o644)
        return
    try:  # a pipe or a device, which nothing may take the place of
        path.write_bytes(body)
    except OSError as error:
        raise store_error(path, error) from error


def read_ledger(path: Path) -> LedgerFile:
    """Raises UserError (exit 1) for a file that cannot be read or does not prove what it says."""
    with _proving(path):
        plain = msgpack.unpackb(_body_of(path))
        if plain["format"] != FORMAT:
            raise ValueError(f"it is of the format {plain['format']!r}")
        run = run_from_canonical(plain["run"])
        return LedgerFile(run, _proved(run, plain["messages"]))


def saved_ledger(home: Home, name: str) -> LedgerFile:
    """What this home's last checkpoint of a run says had been done, proved like any file.

    Raises UserError: 2 for a run that this home does not know, 1 if nothing is saved of it or what
    is does not hold.
    """
    source = resolve_run(home, name)
    if source.config is None:
        raise UserError(
            f"this home does not know the run {name!r}",
            code="unknown_run",
            exit_code=2,
            hint="`swarmd run ls` lists the runs of this home",
        )
    folder = CheckpointFolder(home.checkpoints, source.config.run_id)
    checkpoint, unusable = folder.newest_ledger()
    if checkpoint is None:
        raise _nothing_saved(source.config.name, unusable)
    with _proving(checkpoint.folder / LEDGER):
        ledger = _proved(source.config, checkpoint.ledger())
        return LedgerFile(source.config, ledger, tuple(unusable))


def _nothing_saved(run_name: str, unusable: Sequence[Unusable]) -> UserError:
    """Or what is cannot be used: that the newest says why."""
    text = f"this home has saved nothing of the run {run_name!r}"
    if unusable:
        text = f"none of this home's checkpoints of the run {run_name!r} has a ledger that can be "
        text += f"used, of {len(unusable)}; the last one: {unusable[0].why}"
    return UserError(
        text,
        code="ledger_unproved",
        exit_code=1,
        hint="a peer of a stage saves its ledger whenever a round begins",
    )


def _body_of(path: Path) -> bytes:
    """Raises StoreError; Corrupt for what is no file, or larger than a ledger can be."""
    check_is_file(path)
    body = read_bytes(path, bytes_max=LEDGER_BYTES_MAX)
    if body is None:
        raise StoreError(path, os.strerror(errno.ENOENT))
    return body


def _proved(run: RunConfig, messages: Iterable[bytes]) -> Ledger:
    ledger = Ledger(run.shape, verify)
    gossip = LedgerGossip(ledger, NOBODY, 0)
    gossip.restore([_told(body) for body in messages], run.shape.rounds)
    return ledger


@contextmanager
def _proving(path: Path) -> Iterator[None]:
    try:
        yield
    except Corrupt as error:
        raise _unproved(path, error.text) from None
    except StoreError as error:
        raise _unproved(path, f"cannot be read: {error.text}") from None
    except (msgpack.UnpackException, msgpack.ExtraData):
        raise _unproved(path, "is no ledger") from None
    except (ValueError, KeyError, TypeError) as error:
        raise _unproved(path, f"is no ledger: {error}") from None
    except (InvalidRun, ProtocolError) as error:
        raise _unproved(path, f"does not hold: {error}") from None


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
