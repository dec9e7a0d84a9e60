"""A hivemind averager that speaks as swarmd/node/mix_peer.py does: the other side of `bench mix`.

Run by its path with an interpreter that has hivemind 1.1.12 (and setuptools below 81, which that
version needs); it imports nothing of swarmd, and nothing of swarmd imports it.

    PYTHON hivemind_peer.py --floats N --rounds R --peers P [--threads N]

A round is one `DecentralizedAverager.step` over one float32 vector, no compression, with hivemind's
own times for finding a group and for a whole average. `included` is the size of the group that it
says it had, 0 for a step that failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from typing import Any

STEP_S_MAX = 180.0


def tell(**fields: Any) -> None:
    print(json.dumps(fields), flush=True)


def main() -> int:
    """The peer whose `others` is empty starts the table of peers; the rest join it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--floats", type=int, required=True)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--peers", type=int, required=True)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    import hivemind
    import torch
    from hivemind.averaging import DecentralizedAverager

    torch.set_num_threads(options.threads)
    known = json.loads(sys.stdin.readline())["others"]
    dht = hivemind.DHT(
        initial_peers=[address for other in known.values() for address in other["addresses"]],
        host_maddrs=["/ip4/127.0.0.1/tcp/0"],
        start=True,
    )
    vector = torch.randn(options.floats)
    averager = DecentralizedAverager(
        [vector],
        dht,
        prefix="bench",
        target_group_size=options.peers,
        start=True,
    )
    addresses = [str(address) for address in dht.get_visible_maddrs()]
    tell(peer=str(dht.peer_id), addresses=addresses, bulk_addresses=[])
    tell(ready=options.floats)
    sys.stdin.readline()
    for number in range(options.rounds):
        try:
            group = averager.step(timeout=STEP_S_MAX, allow_retries=False)
        except Exception as error:  # whatever went wrong, the step has failed: that is the result
            print(repr(error), file=sys.stderr, flush=True)
            group = None
        whole = "committed" if group and len(group) == options.peers else "partial"
        outcome = whole if group else "skipped"
        tell(round=number, outcome=outcome, included=len(group or ()), at_s=time.monotonic())
    with averager.get_tensors() as tensors:
        body = tensors[0].numpy().tobytes()
    tell(digest=hashlib.blake2b(body, digest_size=32).hexdigest())
    sys.stdin.read()
    averager.shutdown()
    dht.shutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
