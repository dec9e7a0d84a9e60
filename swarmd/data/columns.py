"""Texts in a column: Parquet files, and data sets that the `datasets` library can find.

Both libraries are large and are loaded only when such a source is read. Rows come in batches, so
memory is that of a batch (Parquet: of a batch and of the pages under it) and not of a file.

A document's name is the file's (or the data set's) name and the row's number, so neither batches
nor the machine matter. What the libraries raise for a file that is cut short or altered is theirs;
here it becomes DataMissing with the file's name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from swarmd.data.documents import DataMissing, Document, pieces_of_text
from swarmd.data.reading import Reading
from swarmd.data.text_files import matching_files, needs_package

BATCH_ROWS = 256


def parquet_documents(pattern: str, column: str, reading: Reading) -> Iterator[Document]:
    """The texts of a column of every file that matches. Raises DataMissing."""
    try:
        import pyarrow as arrow
        import pyarrow.parquet as parquet
    except ImportError:
        raise needs_package(f"parquet:{pattern}", "pyarrow", pattern) from None
    damage = (OSError, arrow.ArrowException)
    for name, path in reading.files(matching_files(pattern)):
        try:
            with parquet.ParquetFile(
                path, pre_buffer=False, page_checksum_verification=True
            ) as file:
                _require_text(file.schema_arrow, column, str(path), arrow)
                texts = _column_of(file, column, path.stat().st_size, reading)
                yield from _rows(name, texts, reading)
        except damage as error:
            raise DataMissing(f"{path} is cut short or damaged: {error}", path=str(path)) from None


def _column_of(file: Any, column: str, size_bytes: int, reading: Reading) -> Iterator[Any]:
    done, rows = 0, max(1, file.metadata.num_rows)
    for batch in file.iter_batches(BATCH_ROWS, columns=[column], use_threads=False):
        yield from batch.column(0).to_pylist()
        done += batch.num_rows
        reading.place = partial(int, size_bytes * done // rows)


def hf_documents(
    name: str, config: str, split: str, column: str, reading: Reading
) -> Iterator[Document]:
    """The texts of a column of a data set, read as a stream. Raises DataMissing."""
    try:
        import datasets
    except ImportError:
        raise needs_package(f"hf:{name}", "datasets", name) from None
    place = os.path.expanduser(name)
    try:
        rows = datasets.load_dataset(place, config or None, split=split, streaming=True)
        if rows.column_names is not None and column not in rows.column_names:
            raise _no_column(name, column, rows.column_names)
        yield from _rows(Path(name).name, _texts_of(rows, name, column), reading)
    except DataMissing:
        raise
    except Exception as error:  # its own, the file system's, the network's and the formats'
        raise DataMissing(
            f"cannot read the data set {name}: {type(error).__name__}: {error}",
            path=name,
            hint="`datasets` must find it by this name, config and split, here or on the network",
        ) from None


def _texts_of(rows: Any, name: str, column: str) -> Iterator[Any]:
    for row in rows:
        if column not in row:
            raise _no_column(name, column, list(row))
        yield row[column]


def _rows(name: str, texts: Iterator[Any], reading: Reading) -> Iterator[Document]:
    for number, text in enumerate(texts):
        if not text:
            reading.empty_texts += 1
            continue
        if not isinstance(text, str):
            where = f"{name}, row {number}"
            raise DataMissing(f"{where} holds a {type(text).__name__}, not a text", path=where)
        yield from pieces_of_text(f"{name}:{number}", text)


def _require_text(schema: Any, column: str, where: str, arrow: Any) -> None:
    if column not in schema.names:
        raise _no_column(where, column, schema.names)
    kind = schema.field(column).type
    if not (arrow.types.is_string(kind) or arrow.types.is_large_string(kind)):
        raise DataMissing(f"{where}: the column {column!r} holds {kind}, not texts", path=where)


def _no_column(where: str, column: str, known: list[str]) -> DataMissing:
    return DataMissing(
        f"{where} has no column {column!r}",
        path=where,
        hint=f"its columns are {', '.join(known)}",
    )
