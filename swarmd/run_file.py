"""The run file that people write, and the RunConfig it means.

A preset gives every value; the file overrides what it names; what only a machine can find out is
measured (the content hash of the data, and with `data_epochs` the number of samples); the layer
ranges follow from the number of stages unless the file gives its own. Nothing of this machine gets
in: the same file over the same data gives the same run id everywhere.

Faults name file, line and key, and end with 78. `run_document` is the way back: what it renders,
read again, is the same run.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from swarmd.errors import UserError
from swarmd.run_config import (
    BoundaryConfig,
    DataConfig,
    InnerConfig,
    InvalidRun,
    ModelConfig,
    OuterConfig,
    RunConfig,
    run_from_plain,
)
from swarmd.run_link import PeerAddress, parse_peer_address, unique_entries
from swarmd.toml_file import Document, bad_config, parse_toml, read_toml
from swarmd.units import BadValue

Sections = dict[str, dict[str, Any]]

_SUBTABLES: dict[str, type[Any]] = {
    "model": ModelConfig,
    "boundary": BoundaryConfig,
    "inner": InnerConfig,
    "outer": OuterConfig,
    "data": DataConfig,
}
_OF_DATA = {"data": "source", "data_epochs": "epochs"}
"""Keys of [run] that belong to DataConfig."""
_IN_FILES = {
    "data.source": "run.data",
    "data.epochs": "run.data_epochs",
    "run.allow_injection": "test.allow_injection",
    "run.protocol_min": "run.protocol",
    "run.protocol_max": "run.protocol",
}
"""How a file calls what RunConfig calls otherwise."""
_NOT_FROM_FILE = ("allow_injection", "protocol_min", "protocol_max", *_SUBTABLES)
_SHORTHAND = ("stages", "protocol", "entry", *_OF_DATA)

KEYS: dict[str, tuple[str, ...]] = {
    "run": (
        *(item.name for item in fields(RunConfig) if item.name not in _NOT_FROM_FILE),
        *_SHORTHAND,
    ),
    **{
        section: tuple(
            item.name for item in fields(kind) if (section, item.name) not in
            (("data", "source"), ("data", "epochs"))
        )
        for section, kind in _SUBTABLES.items()
    },
    "test": ("allow_injection",),
}  # fmt: skip
"""Section to the keys a run file may have there."""


def preset_names() -> list[str]:
    """Smallest model first."""
    folder = files("swarmd.presets")
    found = [item.name.removesuffix(".toml") for item in folder.iterdir() if item.is_file()]
    known = ("tiny", "small", "125m", "1b", "8b", "bulky")
    names = [name for name in found if not name.endswith(".py")]
    return sorted(names, key=lambda name: (name not in known, known.index(name)))


def preset_sections(name: str) -> Sections:
    """The preset as a run file would say it. Raises InvalidRun with the nearest name."""
    if name not in preset_names():
        near = difflib.get_close_matches(name, preset_names(), n=1, cutoff=0.3)
        guess = f"; did you mean {near[0]!r}?" if near else ""
        raise InvalidRun(
            "run.preset", f"there is no preset {name!r}, only {', '.join(preset_names())}{guess}"
        )
    body = files("swarmd.presets").joinpath(f"{name}.toml").read_bytes()
    return parse_toml(Path(f"{name}.toml"), body).values


@dataclass(frozen=True, slots=True)
class RunFile:
    """What a run file means: the run, and where its peers may be found."""

    config: RunConfig
    entries: tuple[PeerAddress, ...] = ()


@dataclass(frozen=True, slots=True)
class RunPlan:
    """A run file that was read, its data not yet measured."""

    document: Document
    sections: Sections
    entries: tuple[PeerAddress, ...]

    def check(self) -> RunConfig:
        """Everything that can be wrong but the data. The run lacks their hash: no run id yet."""
        return self._named(lambda: _draft(_plain(self.sections)))

    def measure(self, cache_dir: Path, tell: Callable[[Any], None] | None = None) -> RunFile:
        """The run. Packs the data into `cache_dir`, which may take a while where they are large;
        `tell` hears about it (token_writing.Progress)."""
        config = self._named(lambda: make_run(self.sections, cache_dir=cache_dir, tell=tell))
        return RunFile(config, self.entries)

    def _named(self, make: Callable[[], RunConfig]) -> RunConfig:
        try:
            return make()
        except InvalidRun as error:
            raise _named(self.document, error) from None


def read_run_file(
    path: Path, *, overrides: Mapping[str, Mapping[str, Any]] | None = None
) -> RunPlan:
    """overrides: section to keys, winning over the file.

    Raises UserError: exit 2 if there is no such file, 78 if it cannot be read.
    """
    document = read_toml(path)
    if document is None:
        raise UserError(
            f"there is no run file {path}",
            code="no_run_file",
            exit_code=2,
            hint="a link begins with swarmd://; `swarmd run ls` lists the runs of this home",
        )
    try:
        sections = merge(document.values, overrides or {})
        return RunPlan(document, sections, _entries(sections))
    except InvalidRun as error:
        raise _named(document, error) from None


def make_run(
    sections: Mapping[str, Mapping[str, Any]],
    *,
    cache_dir: Path,
    tell: Callable[[Any], None] | None = None,
) -> RunConfig:
    """The run that these sections mean, its data measured. Raises InvalidRun or UserError."""
    return run_from_plain(_measured(_plain(sections), cache_dir, tell))


def merge(
    below: Mapping[str, Mapping[str, Any]], above: Mapping[str, Mapping[str, Any]]
) -> Sections:
    """Section by section, key by key; `above` wins. Raises InvalidRun if a section is no table."""
    merged: Sections = {}
    for layer in (below, above):
        for section, values in layer.items():
            if not isinstance(values, Mapping):
                raise InvalidRun(section, "must be a section, as in [run]")
            merged.setdefault(section, {}).update(values)
    return merged


def run_document(config: RunConfig) -> Sections:
    """The sections of a run file that means exactly this run."""
    plain = asdict(config)
    data = plain.pop("data")
    run = {key: value for key, value in plain.items() if key not in _NOT_FROM_FILE}
    run["layer_ranges"] = [list(item) for item in config.layer_ranges]
    run["operators"] = list(config.operators)
    run |= {
        "data": data.pop("source"),
        "data_epochs": data.pop("epochs"),
        "protocol": {"min": config.protocol_min, "max": config.protocol_max},
    }
    return {
        "run": run,
        **{section: plain[section] for section in _SUBTABLES if section != "data"},
        "data": data,
        "test": {"allow_injection": config.allow_injection},
    }


# ------------------------------------------------------------------------------------------- inside


def _plain(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Checked, completed by the preset, with layer ranges; as `run_from_plain` takes it."""
    _check_keys(sections)
    given = {name: dict(values) for name, values in sections.items()}
    preset = given.get("run", {}).get("preset", "")
    if type(preset) is not str:
        raise InvalidRun("run.preset", "must be a text")
    complete = merge(preset_sections(preset), given) if preset else given
    _settle_boundary(complete, given.get("boundary", {}))
    if "layer_ranges" in given.get("run", {}) and "stages" not in given["run"]:
        complete["run"].pop("stages", None)
    return _plain_run(complete, preset)


def _check_keys(sections: Mapping[str, Mapping[str, Any]]) -> None:
    for section, values in sections.items():
        if section not in KEYS:
            raise InvalidRun(section, "is no section of a run file" + _near(section, KEYS))
        for key in values:
            if key not in KEYS[section]:
                raise InvalidRun(f"{section}.{key}", "unknown key" + _near(key, KEYS[section]))


def _near(name: str, known: Any) -> str:
    near = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {near[0]!r}?" if near else ""


def _settle_boundary(complete: Sections, given: Mapping[str, Any]) -> None:
    """Naming another kind than the preset's drops the preset's ranks that do not go with it."""
    boundary = complete.setdefault("boundary", {})
    if given.get("kind") == "dense":
        boundary["rank"] = given.get("rank", 0)
    if "kind" in given and given["kind"] != "anchored":
        boundary["anchor_rank"] = given.get("anchor_rank", 0)


def _plain_run(sections: Sections, preset: str) -> dict[str, Any]:
    """Sections of a file to the tables of RunConfig."""
    run = dict(sections.get("run", {}))
    run.pop("entry", None)
    protocol = run.pop("protocol", {})
    if not isinstance(protocol, dict) or not protocol.keys() <= {"min", "max"}:
        raise InvalidRun("run.protocol", "has the form { min = 1, max = 1 }")
    data = dict(sections.get("data", {}))
    data |= {_OF_DATA[key]: run.pop(key) for key in _OF_DATA if key in run}
    stages = run.pop("stages", None)
    plain = {
        "seed": 7,
        **run,
        "preset": preset,
        "data": data,
        **{f"protocol_{key}": value for key, value in protocol.items()},
        **{name: sections.get(name, {}) for name in _SUBTABLES if name != "data"},
        "allow_injection": sections.get("test", {}).get("allow_injection", False),
    }
    _require_sizes(plain)
    if "layer_ranges" not in plain:
        plain["layer_ranges"] = _balanced(plain, stages)
    elif stages is not None and stages != len(plain["layer_ranges"]):
        raise InvalidRun("run.layer_ranges", f"does not have run.stages = {stages} ranges")
    return plain


def _require_sizes(plain: Mapping[str, Any]) -> None:
    """Say what is missing where there is no preset to fill it in."""
    for item in fields(RunConfig):
        needed = item.default is MISSING and item.default_factory is MISSING
        if needed and item.name not in ("layer_ranges", *plain):
            raise InvalidRun(f"run.{item.name}", "is missing, and no preset gives it")
    for item in fields(ModelConfig):
        if item.default is MISSING and item.name not in plain["model"]:
            raise InvalidRun(f"model.{item.name}", "is missing, and no preset gives it")


def _balanced(plain: Mapping[str, Any], stages: Any) -> list[list[int]]:
    from swarmd.partition import balance_layers

    if type(stages) is not int:
        raise InvalidRun("run.stages", "is missing, or no whole number")
    # One stage with all layers lets the checks of RunConfig speak before the layers are cut.
    layers = plain["model"]["layers"]
    last = layers - 1 if type(layers) is int and layers >= 1 else 0
    whole = _draft({**plain, "layer_ranges": [[0, last]]})
    ranges = balance_layers(whole.model, whole.boundary, stages, whole.sequence_tokens)
    return [list(item) for item in ranges]


def _draft(plain: Mapping[str, Any]) -> RunConfig:
    """The run as far as it is known before its data are measured. Raises InvalidRun."""
    samples = plain["data"].get("samples_total", 0)
    if type(samples) is not int or samples < 0:  # what stands in for it below would hide that
        raise InvalidRun("data.samples_total", "must be a whole number, 0 or more")
    return run_from_plain({**plain, "data": {**plain["data"], "epochs": 0, "samples_total": 0}})


def _measured(
    plain: dict[str, Any], cache_dir: Path, tell: Callable[[Any], None] | None
) -> dict[str, Any]:
    """With content hash and samples of the data, unless the file gives what is needed."""
    epochs = plain["data"].get("epochs", 0)
    if type(epochs) is not int or epochs < 0:
        raise InvalidRun("run.data_epochs", "must be a whole number, 0 or more")
    plain = {**plain, "data": _with_tokeniser(plain["data"], cache_dir)}
    run = _draft(plain)
    if run.data.content_hash and (not epochs or plain["data"].get("samples_total")):
        return plain
    from swarmd.data.corpus import measure_corpus

    size = measure_corpus(run.data, run.sequence_tokens, cache_dir, tell=tell)
    if size.vocab_size > run.model.vocab_size:
        raise InvalidRun(
            "model.vocab_size",
            f"is {run.model.vocab_size}, but the tokeniser has {size.vocab_size} tokens",
        )
    samples = epochs * size.samples_per_epoch
    data = replace(run.data, content_hash=size.content_hash)
    steps = run.total_steps
    if epochs:
        steps = min(steps, -(-samples // run.batch_samples))
    measured = {**asdict(data), "epochs": epochs, "samples_total": samples}
    return {**plain, "total_steps": steps, "data": measured}


def _with_tokeniser(data: dict[str, Any], cache_dir: Path) -> dict[str, Any]:
    """The tokeniser by its hash. A file gives its path, which is that of this machine alone;
    ready-made tokens bring theirs."""
    from swarmd.data.corpus import tokeniser_name

    source, given = data.get("source", ""), data.get("tokeniser")
    if not isinstance(source, str) or not isinstance(given, str | None):
        return data  # named as it deserves by the checks of RunConfig
    return {**data, "tokeniser": tokeniser_name(source, given, cache_dir)}


def _entries(sections: Sections) -> tuple[PeerAddress, ...]:
    listed = sections.get("run", {}).get("entry", [])
    if not isinstance(listed, list) or not all(type(item) is str for item in listed):
        raise InvalidRun("run.entry", "must be a list of peer addresses")
    try:
        return unique_entries(parse_peer_address(text) for text in listed)
    except BadValue as error:
        raise InvalidRun("run.entry", str(error)) from None


def _named(document: Document, error: InvalidRun) -> UserError:
    key = error.key
    for section in _SUBTABLES:  # `run.model.width`, as nested checks say it
        key = key.removeprefix("run.") if key.startswith(f"run.{section}.") else key
    if document.where(key) == str(document.path):
        key = _IN_FILES.get(key, key)
    return bad_config(document.where(key), f"{key}: {error.text}")
