"""What the command line and the daemon say to each other over run/control.sock.

One JSON object a line, one request a connection; closing it is how a client loses interest.

    > {"request": "status", "args": {}, "version": "0.1.0", "every_s": null}
    < {"version": "0.1.0", "result": {...}}            an answer, once
    < {"version": "0.1.0", "item": {...}}              of a stream, or with every_s: one a line
    < {"version": "0.1.0", "end": true}                 of a stream
    < {"version": "0.1.0", "error": {code, exit_code, message, hint, details}}

Either side may be older. Both ignore what they do not know; a request the daemon does not know is
answered with `unknown_request`. Results are the JSON objects of docs/cli.md, so that what both
sides know can be shown (section 4.10).
"""

from __future__ import annotations

from dataclasses import dataclass

REQUEST_BYTES_MAX = 1 << 20
REPLY_BYTES_MAX = 64 << 20
"""A dump of everything of a large swarm stays far below."""


@dataclass(frozen=True, slots=True)
class Request:
    """One thing that may be asked, and what answers it."""

    reply: str
    """Schema of the result, or of each item."""
    help: str
    is_stream: bool = False


REQUESTS: dict[str, Request] = {
    "status": Request("status", "args: none"),
    "peers": Request("peers", "all: also those that left or died long ago"),
    "peers_ping": Request("done", "id; data: rtt_ms, path"),
    "peers_forget": Request("done", "id"),
    "netcheck": Request("netcheck", "peers: addresses to reach first; verdict is left out"),
    "plan": Request("plan", "args: none"),
    "contributions": Request("contributions", "args: none"),
    "audit": Request("audit", "args: none"),
    "ledger": Request("done", "data.body: the whole ledger with its signatures, base64"),
    "run": Request("run", "the description of the run, with a link that works now"),
    "events": Request("event", "after_seq: those after it, then what comes", is_stream=True),
    "drain": Request("leave", "deadline_s; id: of another peer, for operators"),
    "leave": Request("leave", "deadline_s; now: without a drain. Answers, then the daemon ends"),
    "finish": Request("leave", "as leave, after the running outer round"),
    "pause": Request("done", "for_s: null until resumed"),
    "resume": Request("done", "undoes a pause and a drain"),
    "cordon": Request("done", "keeps the present stage but takes no other"),
    "uncordon": Request("done", "args: none"),
    "pin": Request("done", "stage"),
    "unpin": Request("done", "args: none"),
    "collect": Request("done", "deadline_s; fetches snapshots of the other stages. data.missing"),
    "inject": Request("done", "specs: list; clear: end all. data.active: what is active then"),
    "dump": Request("done", "all internal statistics, in data"),
}
"""Every request there is. The daemon answers those it has handlers for."""
