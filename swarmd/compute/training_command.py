"""What the programs that train a whole run in one process share: twin.py and lockstep.py."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from swarmd.data.corpus import Corpus, open_corpus
from swarmd.errors import SwarmdError, UserError
from swarmd.run_config import InvalidRun, RunConfig, run_from_canonical


class TrainingCommand:
    """Flags in, lines to standard output. Add further flags to `parser` before `open`."""

    def __init__(self, program: str) -> None:
        self.parser = argparse.ArgumentParser(prog=program)
        self.options = argparse.Namespace()
        add = self.parser.add_argument
        add("--run", type=Path, required=True, help="canonical bytes of a RunConfig")
        add("--cache", type=Path, required=True, help="where the corpus is packed")
        add("--data", default="", help="where the data are, if not where the run says")
        add("--threads", type=int, help="of torch")
        add("--json", action="store_true", help="a JSON object a line")

    def open(self, arguments: list[str]) -> tuple[RunConfig, Corpus] | int:
        """The run and its data, or the exit code, with a word on standard error."""
        self.options = self.parser.parse_args(arguments)
        if self.options.threads is not None:
            torch.set_num_threads(self.options.threads)
        try:
            run = run_from_canonical(self.options.run.read_bytes())
            return run, open_corpus(run, self.options.cache, source=self.options.data)
        except (OSError, InvalidRun, SwarmdError) as error:
            print(error, file=sys.stderr)
            return error.exit_code if isinstance(error, UserError) else 1

    def tell(self, fields: dict[str, Any]) -> None:
        words = "  ".join(f"{name} {value}" for name, value in fields.items())
        print(json.dumps(fields) if self.options.json else words, flush=True)
