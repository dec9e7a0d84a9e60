"""What this peer's operator asks of another peer: it obeys who is named in the run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trio

from swarmd.errors import UserError
from swarmd.protocols import effects as fx
from swarmd.protocols.ids import PeerId
from swarmd.records import Leave

if TYPE_CHECKING:
    from swarmd.node.peer_node import PeerNode

POLL_S = 0.1


async def ask_to_drain(node: PeerNode, peer: PeerId, name: str, deadline_s: float) -> Leave:
    """Returns once its record says that it drains. Raises UserError: refused if the run does not
    name us, no_link, timed_out."""
    machine, driver, begun_s = node.machine, node.driver, trio.current_time()
    assert machine is not None, "asked before it has joined"
    assert driver is not None, "a machine is driven"
    if machine.peer not in machine.setup.operators:
        raise UserError(
            f"{name} obeys only the peers that the run names as operators; this one is not named",
            code="refused",
            exit_code=77,
            hint="`swarmd run show` lists them; they cannot be changed in a run",
        )
    if peer not in machine.greeting.greeted:
        raise UserError(
            f"there is no link to {name}",
            code="no_link",
            exit_code=1,
            hint="links are kept to neighbours only; `swarmd peers` shows them",
        )
    driver.put(fx.Command("ask_to_drain", {"id": peer}))
    with trio.move_on_after(deadline_s):
        while True:
            view = machine.membership.view(trio.current_time()).get(peer)
            if view is not None and view.record.phase in ("draining", "left"):
                return Leave(
                    outcome="asked", drain_s=round(trio.current_time() - begun_s, 3), exit_code=0
                )
            await trio.sleep(POLL_S)
    raise UserError(
        f"{name} was asked, and has not begun to drain within {deadline_s:.3g} s",
        code="timed_out",
        exit_code=124,
        hint="`swarmd peers` shows whether it answers",
    )
