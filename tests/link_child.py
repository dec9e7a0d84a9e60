"""The other process of a link, for tests that kill, freeze and count one.

    python link_child.py [OPTION=VALUE ...]      seed=HEX port=N silence_s=X

Prints one line of JSON with its peer id and addresses, echoes every payload, answers the message
`figures` with its resident bytes, open files, tasks and counters, and leaves in good order on
`leave` or when its standard input ends.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import trio

from swarmd.net.heap_store import HeapStore
from swarmd.net.link import LinkLimits
from swarmd.net.swarm_transport import SwarmTransport
from swarmd.net.transport import FrameArrived
from swarmd.protocols.effects import Priority


async def main(options: dict[str, str]) -> None:
    store = HeapStore()
    silence_s = float(options.get("silence_s", 8.0))
    transport = SwarmTransport(
        bytes.fromhex(options.get("seed", "")) or os.urandom(32),
        [f"/ip4/127.0.0.1/tcp/{options.get('port', 0)}"],
        store,
        limits=LinkLimits(dial_each_s=20.0, hello_s=20.0, silence_s=silence_s),
    )

    async def run(task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        await transport.run(task_status=task_status)

    async with trio.open_nursery() as nursery:
        await nursery.start(run)
        nursery.start_soon(_end_with_parent, nursery)
        where = {"peer": transport.peer_id, "addresses": list(transport.addresses())}
        print(json.dumps(where | {"bulk": list(transport.bulk_addresses())}), flush=True)
        while True:
            event = await transport.next_event()
            if not isinstance(event, FrameArrived):
                continue
            if event.payload is not None:
                _echo(transport, store, event)
            elif event.body == b"figures":
                transport.send(event.peer, json.dumps(_figures(transport)).encode())
            elif event.body == b"leave":
                await transport.aclose()
                nursery.cancel_scope.cancel()
                return


def _echo(transport: SwarmTransport, store: HeapStore, event: FrameArrived) -> None:
    ref = event.payload
    assert ref is not None
    transport.send(
        event.peer,
        event.body,
        priority=Priority.PIPELINE,
        payload=ref,
        on_sent=lambda _sent: store.release(ref),
    )


def _figures(transport: SwarmTransport) -> dict[str, Any]:
    with open("/proc/self/statm") as file:
        resident_bytes = int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return {
        "resident_bytes": resident_bytes,
        "files": len(os.listdir("/proc/self/fd")),
        "tasks": trio.lowlevel.current_statistics().tasks_living,
        "counters": transport.counters(),
    }


async def _end_with_parent(nursery: trio.Nursery) -> None:
    stream = trio.lowlevel.FdStream(os.dup(0))
    while await stream.receive_some(1):
        pass
    nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main, dict(option.split("=", 1) for option in sys.argv[1:]))
