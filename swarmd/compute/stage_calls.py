"""The named requests to a compute worker: `StageCall(name, args)`.

    info        what the stage is and where it runs; data as documented at `info`
    digest      BLAKE2b-256 over the weights: equal bits, equal digest
    state       weights, moments and outer state as safetensors, to a file or into the output slot
    round_state what the replicas have in common, to a file (round_state.py)
    load_state  the inverse, from a file or an input slot

A handler takes the worker, the call's args, the input views and the output view, and returns
(data, bytes written to the output). Those of the outer round are in outer_calls.py.

A state is one safetensors body: `param/<name>`, and with moments `first/<name>`, `second/<name>`,
`updates`, `momentum_product`; with the outer state `outer/<part>` (OuterState.tensors); metadata
`format`, `run_id`, `stage`, `next_step`. T_fixed and U come from seeds and are never in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from swarmd.compute.outer_calls import OUTER_CALLS
from swarmd.compute.outer_state import FlatLayout, OuterState
from swarmd.compute.round_state import round_state
from swarmd.compute.state_file import STATE_FORMAT, metadata_for, metadata_of, save_state
from swarmd.compute.tensor_bytes import payload_bytes_max
from swarmd.errors import JobFailed
from swarmd.partition import flops_per_token

if TYPE_CHECKING:
    from swarmd.compute.stage_worker import StageWorker

Handler = Callable[
    ["StageWorker", dict[str, Any], Sequence[memoryview], memoryview | None],
    tuple[dict[str, Any], int],
]


def info(
    worker: StageWorker,
    args: dict[str, Any],
    inputs: Sequence[memoryview],
    output: memoryview | None,
) -> tuple[dict[str, Any], int]:
    """What `ComputeBackend.start` promises, and what may change while it runs."""
    parameters = sum(weight.numel() for weight in worker.params.values())
    bytes_of = sum(weight.numel() * weight.element_size() for weight in worker.params.values())
    data = {
        "device": str(worker.device),
        "device_name": _device_name(worker.device),
        "parameters": parameters,
        "parameter_bytes": bytes_of,
        "payload_bytes_max": payload_bytes_max(worker.run_config),
        "flops_per_token": flops_per_token(worker.run_config, worker.stage.index),
        "basis_version": worker.stage.basis_version,
        "data_hash": getattr(worker.corpus, "content_hash", None),
        "torch_version": torch.__version__,
        "pid": os.getpid(),
        "threads": torch.get_num_threads(),
        "micro_batch": worker.slice_samples,
        "next_step": worker.next_step,
        "updates": worker.inner_state.updates,
        "steps_skipped": worker.steps_skipped,
        "graphs_held": len(worker.graphs),
        "graphs_evicted": worker.graphs.evicted,
        "samples_pending": worker.sums.samples,
    }
    return data, 0


def digest(
    worker: StageWorker,
    args: dict[str, Any],
    inputs: Sequence[memoryview],
    output: memoryview | None,
) -> tuple[dict[str, Any], int]:
    """data: digest (64 hexadecimal digits), next_step."""
    return {"digest": digest_of(worker.params), "next_step": worker.next_step}, 0


def state(
    worker: StageWorker,
    args: dict[str, Any],
    inputs: Sequence[memoryview],
    output: memoryview | None,
) -> tuple[dict[str, Any], int]:
    """args: path (else into the output slot), moments (default True), outer (default False: it is
    this replica's own). data: digest, next_step. The file is written where asked; making that
    atomic is the asker's duty."""
    named, metadata = _named_state(worker, with_moments=args.get("moments", True))
    if args.get("outer", False) and worker.outer is not None:
        named.update(worker.outer.tensors(worker.params))
    data = {"digest": digest_of(worker.params), "next_step": worker.next_step}
    if "path" in args:
        save_state(named, Path(args["path"]), metadata)
        return data, 0
    body = save(named, metadata)
    if output is None or len(output) < len(body):
        raise JobFailed("too_large", f"a state of {len(body)} bytes does not fit the slot")
    output[: len(body)] = body
    return data, len(body)


def load_state(
    worker: StageWorker,
    args: dict[str, Any],
    inputs: Sequence[memoryview],
    output: memoryview | None,
) -> tuple[dict[str, Any], int]:
    """args: path (else the one input). data: digest, next_step. What was in flight is dropped."""
    if "path" in args:
        load_checkpoint(worker, Path(args["path"]))
    elif len(inputs) == 1:
        restore(worker, bytes(inputs[0]))
    else:
        raise JobFailed("malformed", "neither a path nor one input")
    return digest(worker, args, inputs, output)


STAGE_CALLS: dict[str, Handler] = {
    **OUTER_CALLS,
    "info": info,
    "digest": digest,
    "state": state,
    "round_state": round_state,
    "load_state": load_state,
}


# ----------------------------------------------------------------------------------------- pieces


def digest_of(params: Mapping[str, Tensor]) -> str:
    """BLAKE2b-256 over names, shapes, types and bytes, in the order of the names."""
    hasher = hashlib.blake2b(digest_size=32)
    for name in sorted(params):
        weight = params[name].detach().cpu().contiguous()
        head = json.dumps([name, str(weight.dtype), list(weight.shape)])
        hasher.update(head.encode() + b"\n")
        hasher.update(weight.view(torch.uint8).numpy().data.cast("B"))
    return hasher.hexdigest()


def _named_state(
    worker: StageWorker, *, with_moments: bool
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The stage's state as it is now, between two jobs: tensors and metadata."""
    named = {f"param/{name}": weight.detach() for name, weight in worker.params.items()}
    if with_moments:
        named.update(worker.inner_state.tensors())
    metadata = metadata_for(worker.run_config.run_id, worker.stage.index, worker.next_step)
    return {name: value.contiguous() for name, value in named.items()}, metadata


def load_checkpoint(worker: StageWorker, path: Path) -> None:
    """Raises JobFailed: data_missing if there is no such file, else as `restore`."""
    try:
        body = path.read_bytes()
    except OSError as error:
        raise JobFailed("data_missing", f"{path}: {error.strerror}") from None
    restore(worker, body)


def restore(worker: StageWorker, body: bytes) -> None:
    """Take over a state. Without moments in it they start at zero, as does the outer momentum.

    Raises JobFailed, with the worker as it was: malformed, wrong_run, wrong_stage, wrong_shape,
    not_finite.
    """
    try:
        named = load(body)
    except SafetensorError as error:
        raise JobFailed("malformed", str(error)) from None
    metadata = metadata_of(body)
    if metadata.get("format") != STATE_FORMAT:
        raise JobFailed("malformed", f"not of format {STATE_FORMAT}")
    if metadata.get("run_id") != worker.run_config.run_id:
        raise JobFailed("wrong_run", f"a state of run {metadata.get('run_id')}")
    if metadata.get("stage") != str(worker.stage.index):
        raise JobFailed("wrong_stage", f"a state of stage {metadata.get('stage')}")
    if not metadata.get("next_step", "").isdecimal():
        raise JobFailed("malformed", "no next_step")
    params = {}
    for name, weight in worker.params.items():
        given = named.get(f"param/{name}")
        if given is None or given.shape != weight.shape or given.dtype != weight.dtype:
            raise JobFailed("wrong_shape", f"{name}: missing, or another shape or type")
        if not bool(torch.isfinite(given).all()):
            raise JobFailed("not_finite", name)
        params[name] = given.to(worker.device, copy=True).requires_grad_()
    inner_state = worker.optimiser.start(params)
    if "updates" in named:
        try:
            inner_state = worker.optimiser.restore(params, named)
        except ValueError as error:
            raise JobFailed("malformed", str(error)) from None
    try:
        outer = _outer_state(worker, params, named)
    except ValueError as error:
        raise JobFailed("malformed", str(error)) from None
    worker.params, worker.inner_state = params, inner_state
    worker.next_step = int(metadata["next_step"])
    worker.outer = outer
    worker.graphs.clear()
    worker.sums.take()


def _outer_state(
    worker: StageWorker, params: dict[str, Tensor], named: Mapping[str, Tensor]
) -> OuterState | None:
    """Raises ValueError."""
    parts = {name: value for name, value in named.items() if name.startswith("outer/")}
    if not parts:
        return None
    layout = FlatLayout(worker.stage.shapes, worker.run_config.outer.mix2_cover)
    return OuterState.restored(layout, params, parts)


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()
