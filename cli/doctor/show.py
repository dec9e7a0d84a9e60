"""The findings for people: one line each, the fix below where there is something to do."""

from __future__ import annotations

from swarmd.cli import format as f
from swarmd.cli.layout import wrap
from swarmd.cli.output import Printer
from swarmd.result_records import Doctor, Finding

_MARKS = {"ok": ("ok", ()), "warn": ("WARN", ("yellow",)), "error": ("ERROR", ("bold", "red"))}
_MARK_WIDTH = 7
_CHECK_WIDTH = 12
_INDENT = " " * (_MARK_WIDTH + _CHECK_WIDTH)


def lines_of(report: Doctor, printer: Printer) -> list[str]:
    width = printer.width
    lines = [line for finding in report.findings for line in _finding(finding, printer, width)]
    if report.verdict.text:
        head = "verdict".ljust(_MARK_WIDTH + _CHECK_WIDTH)
        lines += ["", *wrap(report.verdict.text, width, first=head, follow=_INDENT)]
    counts = [
        f.plural(count, word)
        for severity, word in (("error", "error"), ("warn", "warning"))
        if (count := sum(finding.severity == severity for finding in report.findings))
    ]
    return [*lines, ", ".join(counts) or "nothing is wrong"]


def _finding(finding: Finding, printer: Printer, width: int) -> list[str]:
    mark, styles = _MARKS[finding.severity]
    styled = printer.style(mark, *styles) if styles else mark
    head = styled + " " * (_MARK_WIDTH - len(mark)) + finding.check.ljust(_CHECK_WIDTH)
    first, *rest = wrap(finding.text, width, first=_INDENT, follow=_INDENT)
    lines = [head + first[len(_INDENT) :], *rest]
    if finding.fix:
        lines += wrap(finding.fix, width, first=f"{_INDENT}fix: ", follow=f"{_INDENT}     ")
    return lines
