"""The documents say what the code does: tables, commands, flags, codes, sections, links.

What comes from the code is compared (tests/doc_blocks.py, made by scripts/docs). What people write
is held to it here: a command line in a document must parse, a code that exists must be explained,
and a section that a source file names must be there.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import doc_blocks
import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = doc_blocks.documents()
NAMES = [path.relative_to(ROOT).as_posix() for path in DOCUMENTS]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)
STARTS = re.compile(r"(?:^|^\S*/|^ExecStart=\S*/| exec peer )(swarmd(?: .*)?)$")
"""Where a command line of swarmd begins in a line for a shell, a unit or a container."""
INLINE = re.compile(r"`([^`\n]+)`")
SECTION = re.compile(r"^#+ (\d+(?:\.\d+)*) ", re.MULTILINE)
REFERENCE = re.compile(
    r"\b(?:docs/)?(?P<name>cli|algorithms|faults)\.md(?:,? sections? | )?(?P<number>\d+(?:\.\d+)*)?"
)
RECIPE = re.compile(r"\brecipes? ((?:S-A|[SFORBA]\d+)(?:(?:, | and | to )[SFORBA]\d+)*)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def prose(text: str) -> str:
    """Without code blocks and without what is made from the code."""
    return FENCE.sub("", doc_blocks.BLOCK.sub("", text))


def sources() -> Iterator[tuple[str, str]]:
    for top in ("protocols", "swarmd", "cli", "tests"):
        for file in sorted((ROOT / top).rglob("*.py")):
            parts = file.relative_to(ROOT).parts
            if parts[:2] not in (("swarmd", "cli"), ("swarmd", "protocols"), ("tests", "repo")):
                yield "/".join(parts), file.read_text(encoding="utf-8")


# ----------------------------------------------------------------------------------- made from code


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_what_is_made_from_the_code_is_what_the_code_says(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert doc_blocks.refreshed(text) == text, "run scripts/docs"


def test_every_block_that_can_be_made_is_used() -> None:
    used = {m["name"] for path in DOCUMENTS for m in doc_blocks.BLOCK.finditer(path.read_text())}
    assert used == set(doc_blocks.BLOCKS)


def test_the_message_table_names_every_message_field_and_number() -> None:
    from swarmd.protocols.messages import REGISTRY

    rows = [
        [cell.strip(" *`") for cell in line.strip("|").split("|")]
        for line in doc_blocks.messages().splitlines()
        if line.startswith("| ") and not line.startswith("| ---") and "| field |" not in line
    ]
    found: dict[str, list[str]] = {}
    numbers = {}
    for number, title, field, *_ in rows:
        if title:
            current, _, form = title.partition("** ")
            assert (form == "(in order)") == REGISTRY[int(number)].IN_ORDER
            numbers[current] = number
        found.setdefault(current, []).append(field)
    assert numbers == {kind.__name__: str(number) for number, kind in REGISTRY.items()}
    for kind in REGISTRY.values():
        assert found[kind.__name__] == [*kind.__dataclass_fields__]  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------ command lines


def command_lines(text: str) -> Iterator[str]:
    """Every command line of `swarmd` in code blocks for a shell, and in code between backticks."""
    for language, body in FENCE.findall(text):
        if language in ("sh", "console", "ini"):
            for line in body.replace("\\\n", " ").splitlines():
                found = STARTS.search(line.partition(" # ")[0])
                if found:
                    yield found[1]
            yield from re.findall(r"\$\((swarmd [^()]*)\)", body)
    for span in INLINE.findall(FENCE.sub("", text)):
        if span.startswith("swarmd ") and not span.startswith("swarmd VERB"):
            yield span


def faults_of(line: str) -> list[str]:
    """What is wrong with a command line, told from the command tree alone."""
    tree = doc_blocks.command_tree()
    words = shlex.split(re.sub(r"\$\([^()]*\)", "WORD", line.replace("[", "").replace("]", "")))
    path, faults, rest = words[0], [], words[1:]
    while rest:
        word = rest.pop(0)
        command = tree[path]
        if word in ("&&", "|", ">", ";", "-d"):
            break
        if word.startswith("-"):
            flag, _, value = word.partition("=")
            option = next((p for p in command.params if flag in p.opts + p.secondary_opts), None)
            if option is None and flag not in ("-h", "--help"):
                faults.append(f"{path} has no {flag}")
            elif isinstance(option, click.Option) and not option.is_flag and not value and rest:
                rest.pop(0)
        elif isinstance(command, click.Group):
            if f"{path} {word}" not in tree:
                return [*faults, f"there is no {path} {word}"]
            path = f"{path} {word}"
    return faults


def test_every_command_has_an_example_that_it_takes() -> None:
    from swarmd.cli.examples import EXAMPLES

    tree = doc_blocks.command_tree()
    words = {
        path.partition(" ")[2]
        for path, command in tree.items()
        if not isinstance(command, click.Group) or command.invoke_without_command
    }
    assert set(EXAMPLES) == words
    faults = [f"{fault}: {line}" for line in EXAMPLES.values() for fault in faults_of(line)]
    assert not faults
    strays = [
        name
        for name, line in EXAMPLES.items()
        if f"swarmd {name}" not in line and name != "run link"
    ]
    assert not strays


@pytest.mark.parametrize("name", NAMES)
def test_commands_in_documents_exist_with_their_flags(name: str) -> None:
    faults = []
    for line in command_lines(read(name)):
        faults += [f"{fault}: {line}" for fault in faults_of(line)]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("swarmd jion LINK", "there is no swarmd jion"),
        ("swarmd join LINK --frist", "swarmd join has no --frist"),
        ("swarmd run lnik", "there is no swarmd run lnik"),
        ('swarmd join "$(swarmd run link)" --detach', None),
        ("swarmd --home a wait --for training --timeout 10m", None),
    ],
)
def test_the_check_of_command_lines_can_fail(line: str, fault: str | None) -> None:
    assert faults_of(line) == ([fault] if fault else [])


def test_run_files_in_documents_are_runs() -> None:
    from swarmd.run_file import KEYS

    found = 0
    for name in NAMES:
        for language, body in FENCE.findall(read(name)):
            if language == "toml":
                for section, values in tomllib.loads(body).items():
                    assert set(values) <= set(KEYS[section]), f"{name}: {values}"
                    found += 1
    assert found


# ------------------------------------------------------------------------------------------- codes


def table_rows(text: str, heading: str) -> list[list[str]]:
    """Cells of the table rows below a heading."""
    section = re.split(r"^#+ ", text.partition(heading + "\n")[2], maxsplit=1, flags=re.MULTILINE)[
        0
    ]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_reason_and_health_code_is_explained_and_no_other() -> None:
    from swarmd.health import WARNINGS
    from swarmd.protocols.reasons import STATE_OF_CODE

    text = read("docs/troubleshooting.md")
    by_reason, _, by_health = text.partition("## By reason code")[2].partition("## By health code")
    for part, codes in ((by_reason, set(STATE_OF_CODE)), (by_health, set(WARNINGS))):
        cells = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", part, re.MULTILINE)
        explained = [code for cell in cells for code in re.findall(r"`(\w+)`", cell)]
        assert sorted(explained) == sorted(codes)


def test_exit_codes_are_those_of_the_command_line() -> None:
    from swarmd.cli import exits

    codes = {value: name.lower() for name, value in vars(exits).items() if name.isupper()}
    rows = table_rows(read("docs/cli.md"), "## 6. Exit codes")
    assert {int(code): name for code, name, _ in rows} == codes
    header = re.search(r"^\| 0 \| 1 \| 2 .*$", read("README.md"), re.MULTILINE)
    assert header
    listed = {int(code) for code in re.findall(r"\d+", header[0])}
    assert listed == set(codes)


# --------------------------------------------------------------------------------------- references


def test_sections_that_source_files_name_exist() -> None:
    sections = {
        name: set(
            SECTION.findall(re.sub(r"^(#+ \d+)\. ", r"\1 ", read(f"docs/{name}.md"), flags=re.M))
        )
        for name in ("cli", "algorithms", "faults")
    }
    missing = []
    for file, text in sources():
        for found in REFERENCE.finditer(text):
            if found["number"] and found["number"] not in sections[found["name"]]:
                missing.append(f"{file}: {found[0]}")
    assert not missing, "\n".join(missing)


def test_recipes_and_faults_that_source_files_name_exist() -> None:
    recipes = set(re.findall(r"^\| (S-A|[SFORBA]\d+) \|", read("docs/algorithms.md"), re.MULTILINE))
    recipes.add("A4")
    faults = set(doc_blocks.FAULT_ID.findall(prose(read("docs/faults.md"))))
    missing = []
    for file, text in sources():
        named = [name for found in RECIPE.findall(text) for name in re.findall(r"S-A|\w\d+", found)]
        missing += [f"{file}: recipe {name}" for name in named if name not in recipes]
        ids = set(doc_blocks.FAULT_ID.findall(text)) - faults
        missing += [f"{file}: {name}" for name in sorted(ids)]
    assert not missing, "\n".join(missing)


def test_documents_that_source_files_name_exist() -> None:
    missing = [
        f"{file}: {name}"
        for file, text in sources()
        for name in re.findall(r"\b((?:docs/)?[a-z]+\.md)\b", text)
        if not (ROOT / name).exists() and not (ROOT / "docs" / name).exists()
    ]
    assert not missing, "\n".join(missing)


def anchor(heading: str) -> str:
    """As the usual renderers make it."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_links_lead_somewhere(path: Path) -> None:
    dead = []
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", path.read_text(encoding="utf-8"))):
        file, _, mark = target.partition("#")
        found = (path.parent / file).resolve() if file else path
        if not found.exists():
            dead.append(target)
        elif mark:
            headings = re.findall(r"^#+ (.+)$", found.read_text(encoding="utf-8"), re.MULTILINE)
            if mark not in map(anchor, headings):
                dead.append(target)
    assert not dead


@pytest.mark.parametrize("path", DOCUMENTS, ids=NAMES)
def test_files_that_documents_name_exist(path: Path) -> None:
    spans = INLINE.findall(prose(path.read_text(encoding="utf-8")))
    named = [
        span for span in spans if re.fullmatch(r"(?:[\w.]+/)+[\w.]+\.(?:py|md|yaml|txt)", span)
    ]
    named += [span for span in spans if re.fullmatch(r"scripts/\w+", span)]
    missing = [name for name in named if not (ROOT / name).exists() and "*" not in name]
    assert not missing


def test_every_document_can_be_reached_from_the_readme() -> None:
    linked = {
        (ROOT / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)", read("README.md"))
    }
    others = {path for path in DOCUMENTS if path.name != "README.md" or path.parent != ROOT}
    assert others <= linked, [str(path) for path in others - linked]
