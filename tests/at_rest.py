"""What a daemon uses while its swarm waits: six peers on three stages, nothing to train.

    python tests/at_rest.py [--seconds 60] [--peers 6] [--stages 3] [--time-scale local] [--observe]

The run begins at 99 peers, so stages are taken and held, and then everybody waits. One line a peer:
the shares of one core that daemon and worker used over the time, and the daemon's memory. The
promise is `idle_cpu_share` and 150 MB (docs/cli.md section 14). Say what else the machine did.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import psutil
from daemons import Daemons, daemons

SETTLE_S = 15.0
"""After the map is whole: claims settle, dials end."""


def cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def start(swarm: Daemons, names: list[str], flags: list[str]) -> None:
    swarm.start(names[0], *flags, first=True)
    for name in names[1:]:
        swarm.start(name, *flags, via=names[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--peers", type=int, default=6)
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--time-scale", choices=["local", "wan"], default="local")
    parser.add_argument("--observe", action="store_true", help="daemons alone, without workers")
    asked = parser.parse_args()
    names = [f"p{number}" for number in range(asked.peers)]
    with (
        tempfile.TemporaryDirectory() as folder,
        daemons(Path(folder), stages=asked.stages, time_scale=asked.time_scale) as swarm,
    ):
        start(swarm, names, ["--observe"] if asked.observe else [])
        swarm.wait("everybody sees everybody", lambda: all_present(swarm, names))
        if not asked.observe:
            swarm.wait("every stage is held", lambda: swarm.agree(names))
        time.sleep(SETTLE_S)
        measure(swarm, names, asked.seconds)


def all_present(swarm: Daemons, names: list[str]) -> bool:
    return all(swarm.status(name)["peers"]["alive"] == len(names) for name in names)


def measure(swarm: Daemons, names: list[str], seconds: float) -> None:
    processes = {name: psutil.Process(swarm.status(name)["peer"]["pid"]) for name in names}
    workers = {name: process.children() for name, process in processes.items()}
    before = {name: cpu_s(process) for name, process in processes.items()}
    worked = {name: sum(map(cpu_s, found)) for name, found in workers.items()}
    time.sleep(seconds)
    load = os.getloadavg()[0]
    print(
        f"{'peer':<6} {'daemon':>8} {'worker':>8} {'MB':>6}   over {seconds:g} s, load {load:.1f}"
    )
    shares = []
    for name, process in processes.items():
        shares.append((cpu_s(process) - before[name]) / seconds)
        worker = (sum(map(cpu_s, workers[name])) - worked[name]) / seconds
        rss_mb = process.memory_info().rss / 1e6
        print(f"{name:<6} {shares[-1]:>8.4f} {worker:>8.4f} {rss_mb:>6.0f}")
    print(f"{'mean':<6} {sum(shares) / len(shares):>8.4f}")


if __name__ == "__main__":
    main()
