"""Documents, in the same order and with the same bytes on every machine that has the same data.

A source is named `KIND:WHAT`, as in a run file:

    builtin:python             the standard library of the running interpreter (its own .py files)
    builtin:python:N           the same, of which N samples are trained on
    text:GLOB                  text files, also .gz and .zst
    jsonl:GLOB#FIELD           one JSON object a line, also .gz and .zst; the text is in FIELD
    parquet:GLOB#COLUMN        Parquet files; the text is in COLUMN
    hf:NAME#SPLIT,COLUMN       a data set as the `datasets` library finds it, read as a stream;
    hf:NAME:CONFIG#...         NAME may be a folder. Without #: split train, column text
    tokens:DIR                 what `swarmd data tokenize` wrote; nothing is tokenised again

What a document is, and how texts are mended: documents.py. A source is read as a stream: one
document, or one batch of rows, is in memory at a time. What is missing, cut short or not as it was
named is refused by name (DataMissing); rows without text are left out and counted.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from swarmd.data.columns import hf_documents, parquet_documents
from swarmd.data.documents import EXIT_BAD_CONFIG, ContentDigest, DataMissing, Document
from swarmd.data.reading import Reading
from swarmd.data.text_files import jsonl_documents, text_documents, text_file
from swarmd.errors import UserError

EXCLUDED_FOLDERS = frozenset(
    ("site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__", "lib-dynload")
)
"""Not the interpreter's own, or large and unlike other sources."""

GENERATED_PREFIXES = ("_sysconfigdata", "_sysconfig_vars", "sitecustomize", "usercustomize")
"""Written when Python is built or by the distribution: different on every platform."""

KINDS = "builtin:python, text:GLOB, jsonl:GLOB#FIELD, parquet:GLOB#COLUMN, hf:NAME and tokens:DIR"


@dataclass(frozen=True, slots=True)
class Source:
    """A parsed source: `documents()` starts again from the beginning each time."""

    spec: str
    read: Callable[[Reading], Iterator[Document]]
    samples_max: int = 0
    """Train on that many samples only; 0: on all."""
    folder: Path | None = None
    """Tokens instead of documents: where they are."""
    passes: list[Reading] = field(default_factory=list)
    """The one under way, or the last."""

    @property
    def reading(self) -> Reading:
        return self.passes[0] if self.passes else Reading()

    def documents(self) -> Iterator[Document]:
        """Raises DataMissing."""
        self.passes[:] = [Reading()]
        return self.read(self.passes[0])


def parse_source(spec: str) -> Source:
    """Understand `KIND:WHAT`. Raises UserError (bad_config) without reading any file."""
    kind, _, what = spec.partition(":")
    if kind == "builtin":
        name, _, count = what.partition(":")
        if name != "python" or (count and not (count.isdecimal() and int(count) > 0)):
            raise _bad_source(spec, "built in are builtin:python and builtin:python:N")
        return Source(spec, _python_documents, samples_max=int(count or 0))
    if kind == "text" and what:
        return Source(spec, lambda reading: text_documents(what, reading))
    if kind == "jsonl" and what:
        pattern, field_name = _with_field(spec, what, "jsonl:GLOB#FIELD")
        return Source(spec, lambda reading: jsonl_documents(pattern, field_name, reading))
    if kind == "parquet" and what:
        pattern, column = _with_field(spec, what, "parquet:GLOB#COLUMN")
        return Source(spec, lambda reading: parquet_documents(pattern, column, reading))
    if kind == "hf" and what:
        named = _hf_parts(spec, what)
        return Source(spec, lambda reading: hf_documents(*named, reading))
    if kind == "tokens" and what:
        return Source(spec, lambda _: _no_documents(spec), folder=Path(what).expanduser())
    if Path(spec).expanduser().exists():
        is_folder = Path(spec).expanduser().is_dir()
        raise _bad_source(spec, f"for the texts there write text:{spec}{'/**/*' * is_folder}")
    raise _bad_source(spec, f"known are {KINDS}")


def content_hash(source: Source) -> str:
    """64 hexadecimal digits: BLAKE2b-256 over every document in order. Reads the whole source.

    Raises DataMissing.
    """
    digest = ContentDigest()
    for document in source.documents():
        digest.add(document.digest())
    return digest.hexdigest()


def _with_field(spec: str, what: str, form: str) -> tuple[str, str]:
    pattern, _, name = what.rpartition("#")
    if not pattern or not name:
        raise _bad_source(spec, f"write {form}, with the one that holds the text")
    return pattern, name


def _hf_parts(spec: str, what: str) -> tuple[str, str, str, str]:
    """(name, config, split, column)."""
    named, _, rows = what.partition("#")
    name, _, config = named.partition(":")
    split, _, column = rows.partition(",")
    if not name or ("#" in what and not split) or ("," in rows and not column):
        raise _bad_source(spec, "write hf:NAME, hf:NAME:CONFIG, hf:NAME#SPLIT,COLUMN or all of it")
    return name, config, split or "train", column or "text"


def _no_documents(spec: str) -> Iterator[Document]:
    raise DataMissing(f"{spec} has tokens, not documents", path=spec)


def _python_documents(reading: Reading) -> Iterator[Document]:
    root = Path(sysconfig.get_paths()["stdlib"])
    names = sorted(_python_files(root))
    if not names:
        raise DataMissing(
            f"no Python sources in {root}",
            path=str(root),
            hint="this interpreter comes without its library's sources; use text:GLOB",
        )
    for name, path in reading.files([(name, root / name) for name in names]):
        yield from text_file(name, path, reading)


def _python_files(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in EXCLUDED_FOLDERS and not name.startswith("config-")
        ]
        for name in files:
            if name.endswith(".py") and not name.startswith(GENERATED_PREFIXES):
                yield (Path(folder) / name).relative_to(root).as_posix()


def _bad_source(spec: str, hint: str) -> UserError:
    return UserError(
        f"cannot use {spec!r} as data", code="bad_config", exit_code=EXIT_BAD_CONFIG, hint=hint
    )
