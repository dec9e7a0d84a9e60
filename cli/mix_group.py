"""The peers of one measurement of `bench mix`, as processes that talk in lines of JSON."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from swarmd.cli.process_tree import TreeSize, signal_tree, size_of
from swarmd.errors import UserError

END_S_MAX = 10.0


class MixGroup:
    """A context: whoever is in it is gone at its end, frozen or not.

    commands: of each peer. Their errors go to peerN.log in `folder`.
    """

    def __init__(self, commands: Sequence[Sequence[str]], folder: Path, timeout_s: float) -> None:
        self._commands = commands
        self._folder = folder
        self._timeout_s = timeout_s
        self._heard: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self._processes: list[subprocess.Popen[str]] = []
        self._readers: list[threading.Thread] = []
        self._logs: list[Any] = []
        self._struck: set[int] = set()

    def __enter__(self) -> MixGroup:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self._processes:
            signal_tree(process.pid, signal.SIGKILL)
            process.wait(END_S_MAX)
        for reader in self._readers:
            reader.join(END_S_MAX)
        for process in self._processes:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(BrokenPipeError):
                        pipe.close()
        for log in self._logs:
            log.close()

    def start(self, number: int) -> None:
        log = (self._folder / f"peer{number}.log").open("wb")
        self._logs.append(log)
        process = subprocess.Popen(
            self._commands[number],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self._processes.append(process)
        reader = threading.Thread(target=self._read, args=(number, process), daemon=True)
        self._readers.append(reader)
        reader.start()

    def __len__(self) -> int:
        return len(self._commands)

    # ---------------------------------------------------------------------------------------- talk

    def say(self, number: int, **fields: Any) -> None:
        pipe = self._processes[number].stdin
        assert pipe is not None, "its input is a pipe"
        pipe.write(json.dumps(fields) + "\n")
        pipe.flush()

    def hear(self, until_s: float | None = None) -> tuple[int, dict[str, Any]] | None:
        """The next line of anybody, with its number; None at `until_s`, on the monotonic clock.

        Raises UserError if a peer has failed or nobody says anything any more.
        """
        wait_s = self._timeout_s if until_s is None else max(0.0, until_s - time.monotonic())
        try:
            number, line = self._heard.get(timeout=wait_s)
        except queue.Empty:
            if until_s is not None:
                return None
            raise UserError(
                f"no peer has said anything for {wait_s:.0f} s", code="timed_out", exit_code=124
            ) from None
        why = "has ended" if "gone" in line else line.get("failed")
        if why is not None and number not in self._struck:
            raise UserError(
                f"peer {number}: {why}",
                code="bench_failed",
                exit_code=1,
                hint=self._last_words(number),
            )
        return number, line

    def hear_all(self, key: str) -> list[dict[str, Any]]:
        """A line with `key` from every peer that was started; whoever says it first is awaited."""
        lines: dict[int, dict[str, Any]] = {}
        while len(lines) < len(self._processes):
            heard = self.hear()
            assert heard is not None, "there is no end of waiting"
            number, line = heard
            if key in line:
                lines[number] = line
        return [lines[number] for number in sorted(lines)]

    # ------------------------------------------------------------------------------------ measure

    def sizes(self) -> list[TreeSize]:
        return [size_of(process.pid) for process in self._processes]

    def strike(self, number: int, what: signal.Signals) -> None:
        """From now on nothing is expected of it."""
        self._struck.add(number)
        signal_tree(self._processes[number].pid, what)

    # ------------------------------------------------------------------------------------- inside

    def _read(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None, "its output is a pipe"
        for line in process.stdout:
            self._heard.put((number, json.loads(line)))
        self._heard.put((number, {"gone": True}))

    def _last_words(self, number: int) -> str:
        lines = (self._folder / f"peer{number}.log").read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""
