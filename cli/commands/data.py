"""`swarmd data`: what is trained on, made ready beforehand, and the proof of what was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from swarmd.cli.framework import Parsed, Session, argument, group, option
from swarmd.cli.ledgers import FROM_FILE, OF_RUN, asked_of_daemon, ledger_on_disk
from swarmd.units import parse_size

if TYPE_CHECKING:
    from swarmd.ledger_file import LedgerFile


@group(section="Looking")
def data(session: Session) -> None:
    """The samples of a run, made ready beforehand, and the proof that each was counted once."""


@data.subcommand()
@option("--ledger", "file", metavar="FILE", help=FROM_FILE)
@option("--run", metavar="RUN", help=OF_RUN)
def audit(session: Session, file: str | None, run: str | None) -> int:
    """Prove from this peer's ledger that no sample is missing or counted twice. 1 if not.

    From a file or a checkpoint, every signature in it is checked first.
    """
    on_disk = ledger_on_disk(session, file, run)
    found = asked_of_daemon(session, "audit") if on_disk is None else _audit_of(on_disk)
    if session.is_json:
        session.printer.object(found)
        return 0 if found.get("clean") else 1
    from swarmd.cli import format as f
    from swarmd.json_record import from_plain
    from swarmd.records import Audit

    told = from_plain(Audit, found)
    session.printer.line(
        f"{f.count(told.samples_completed)} of {f.count(told.samples_total)} samples done"
        f" · {f.plural(told.open_leases, 'micro-batch', 'micro-batches')} under way"
        f" · {f.count(told.processed_twice)} samples worked on twice, counted once"
    )
    verdict = "clean: no gap, no repeat" if told.clean else "NOT clean"
    session.printer.line(f"{verdict}, up to sample {f.count(told.covered_until)}")
    for name, ranges in (("gap", told.gaps), ("repeat", told.repeats)):
        for first, last in zip(ranges[::2], ranges[1::2], strict=True):
            session.printer.line(f"{name}  samples {first} to {last}")
    return 0 if told.clean else 1


@data.subcommand()
@argument("file", metavar="FILE")
def ledger(session: Session, file: str) -> None:
    """Write the ledger with all signatures to FILE, so that others can check it offline."""
    import base64

    from swarmd.ledger_file import write_ledger

    found = session.ask("ledger")
    path = Path(file)
    if path.exists():
        session.confirm(f"Overwrite {path}?")
    body = base64.b64decode(found["data"]["body"])
    write_ledger(path, body)
    session.done(
        f"{len(body)} bytes in {path}; `swarmd data audit --ledger {path}` checks them",
        {"run_id": found["data"]["run_id"], "size_bytes": len(body)},
        path=str(path.absolute()),
    )


def _audit_of(found: LedgerFile) -> dict[str, Any]:
    from swarmd.json_record import render
    from swarmd.ledger_shown import audit_shown
    from swarmd.protocols.audit import audit as proof

    return render(audit_shown(proof(found.ledger, found.open_leases)))


@data.subcommand()
@argument("source", metavar="SOURCE")
@argument("folder", metavar="DIR")
@option(
    "--tokenizer",
    "tokeniser",
    metavar="FILE",
    default="bytes",
    help="A tokenizer.json. Default: each byte is a token.",
)
@option("--held-out-share", type=float, default=0.05, help="Of the documents; default 0.05.")
@option(
    "--held-out-tokens",
    type=int,
    default=65_536,
    help="Hold out so many at least, whatever the share says; default 65536.",
)
@option("--jobs", type=int, default=1, help="Processes that tokenise; default 1.")
def tokenize(
    session: Session,
    source: str,
    folder: str,
    tokeniser: str,
    held_out_share: float,
    held_out_tokens: int,
    jobs: int,
) -> None:
    """Write the tokens of a source into DIR, to train on as tokens:DIR."""
    from swarmd.cli import format as f
    from swarmd.cli.data_work import Recipe, UserError
    from swarmd.cli.data_work import tokenize as write
    from swarmd.data.encoding import JOBS_MAX

    if not 0 < held_out_share < 0.5:
        raise UserError("--held-out-share is above 0, below 0.5", code="usage", exit_code=2)
    if held_out_tokens < 1:
        raise UserError("--held-out-tokens is 1 at least", code="usage", exit_code=2)
    if not 1 <= jobs <= JOBS_MAX:
        raise UserError(f"--jobs is in 1..{JOBS_MAX}", code="usage", exit_code=2)
    recipe = Recipe(held_out_share=held_out_share, held_out_tokens_min=held_out_tokens, jobs=jobs)
    session.home.create()
    found = write(source, Path(folder), tokeniser, session.home.cache, recipe, session.printer.say)
    session.done(
        f"{f.count(found['train_tokens'])} tokens to train on, "
        f"{f.count(found['held_out_tokens'])} held out: {found['source']}",
        found,
        path=str(Path(folder).absolute()),
    )
    if mended := found["mended_documents"]:
        what = f.plural(mended, "document was", "documents were")
        first = "" if mended == 1 else "the first: "
        session.printer.say(f"{what} not all UTF-8 text and mended: {first}{found['first_mended']}")
    if found["empty_texts"]:
        session.printer.say(f"{f.plural(found['empty_texts'], 'text was', 'texts were')} empty")


@data.subcommand()
@argument("source", metavar="SOURCE")
@argument("file", metavar="FILE")
@option("--vocab-size", type=int, default=32_768, help="Tokens in all; default 32768.")
@option(
    "--text",
    "text_bytes",
    type=Parsed("SIZE", parse_size),
    default="256MiB",
    help="Learn from so much of the source; default 256MiB.",
)
def train_tokenizer(
    session: Session, source: str, file: str, vocab_size: int, text_bytes: int
) -> None:
    """Learn a tokeniser (byte-pair encoding) from a source and write it to FILE."""
    from swarmd.cli import format as f
    from swarmd.cli.data_work import UserError, train

    if not text_bytes:
        raise UserError("--text 0 gives nothing to learn from", code="usage", exit_code=2)
    found = train(source, Path(file), vocab_size, text_bytes, session.printer.say)
    session.done(
        f"{f.count(found['vocab_size'])} tokens, learnt from {f.size(found['text_bytes'])}",
        found,
        path=str(Path(file).absolute()),
    )
    if found["vocab_size"] < vocab_size:
        session.printer.say(
            f"so little text gives no more: {f.count(vocab_size)} were asked for, and the run file "
            f"must say vocab_size = {found['vocab_size']}"
        )
