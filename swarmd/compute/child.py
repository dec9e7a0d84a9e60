"""The compute worker's process: one loop that reads a job, runs it, answers.

    python -m swarmd.compute.child CONTROL LIFELINE SLOTS PULSE PARENT_PID IMPORTS

Started by swarmd/node/process_backend.py with four inherited descriptors: a socket for jobs
(swarmd/job_wire.py), the lifeline pipe, the slots and the pulse. It opens no socket and no other
channel; what it writes to standard error is captured into the daemon's log. IMPORTS is a module
that it loads while it waits to be told what to do, or nothing.

It ends by itself: on "stop", when the daemon is gone, when its stage cannot be loaded or its device
is lost (both told first), or on an error of its own (exit status 1, traceback to standard error).
"""

from __future__ import annotations

import importlib
import os
import sys
import threading
import traceback
from contextlib import suppress
from typing import Any

from swarmd.buffers import MappedSlots
from swarmd.compute import loading
from swarmd.compute.failure_codes import failure_of
from swarmd.compute.job_runner import JobRunner
from swarmd.compute.lifeline import tie_to_parent
from swarmd.compute.worker_faults import Wedged, WorkerExit
from swarmd.errors import ComputeLost, JobFailed
from swarmd.job_wire import (
    FrameReader,
    config_from_plain,
    inputs_of,
    pack_frame,
    result_to_plain,
    unpack_job,
)
from swarmd.pulse import Pulse

READ_BYTES = 1 << 16
INJECTED_EXIT_STATUS = 70


class Channel:
    """Whole values over the inherited socket, blocking."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reader = FrameReader()
        self._values: list[Any] = []

    def receive(self) -> Any:
        """The next value; None when the daemon closed its end."""
        while not self._values:
            data = os.read(self._fd, READ_BYTES)
            if not data:
                return None
            self._values = self._reader.feed(data)
        return self._values.pop(0)

    def send(self, value: Any) -> None:
        rest = memoryview(pack_frame(value))
        while rest:
            rest = rest[os.write(self._fd, rest) :]


def main(arguments: list[str]) -> int:
    control_fd, lifeline_fd, slots_fd, pulse_fd, parent_pid = map(int, arguments[:5])
    tie_to_parent(lifeline_fd, Pulse(pulse_fd), parent_pid)
    for fd in (control_fd, lifeline_fd, slots_fd, pulse_fd):
        os.set_inheritable(fd, False)  # what torch may start must not keep us looking alive
    if arguments[5]:
        with suppress(Exception):  # it fails again when the stage is loaded, and then it is told
            importlib.import_module(arguments[5])
    channel = Channel(control_fd)
    message = channel.receive()
    if message is None:
        return 0
    _, load = message
    loading.listener = lambda text: channel.send(["loading", text])
    slots = MappedSlots(slots_fd, [(size, count) for size, count in load["slot_classes"]])
    try:
        config = config_from_plain(load["config"])
        runner = JobRunner(config, load["factory"], life=load["life"])
    except Exception as error:
        channel.send(["lost", *_why_not_loaded(error)])
        return 0
    channel.send(["ready", {**runner.info, "pid": os.getpid()}])
    try:
        serve(channel, slots, runner)
    except ComputeLost as lost:
        channel.send(["lost", lost.code, lost.text])
    except WorkerExit:
        os._exit(INJECTED_EXIT_STATUS)
    except Wedged:
        threading.Event().wait()
    return 0


def serve(channel: Channel, slots: MappedSlots, runner: JobRunner) -> None:
    """Jobs in the order in which they come, until "stop" or the end of the channel."""
    while True:
        message = channel.receive()
        if message is None or message[0] == "stop":
            return
        _, number, body, output_slot = message
        job = unpack_job(body)
        inputs = [slots.view(ref.slot, ref.size_bytes) for ref in inputs_of(job)]
        output = None
        if output_slot is not None:
            output = slots.view(output_slot, slots.slot_bytes(output_slot))
        try:
            result, output_bytes = runner.run(job, inputs, output)
        except JobFailed as failed:
            channel.send(["failed", number, failed.code, failed.text])
        else:
            channel.send(["done", number, result_to_plain(result), output_bytes])


def _why_not_loaded(error: Exception) -> tuple[str, str]:
    failure = failure_of(error)
    if failure.code == "compute_failed":
        traceback.print_exc(file=sys.stderr)
    if failure.code == "out_of_memory":
        return "model_does_not_fit", failure.text
    return failure.code, failure.text


if __name__ == "__main__":
    exit_status = main(sys.argv[1:])
    sys.stderr.flush()
    os._exit(exit_status)  # taking torch apart would take seconds and save nothing
