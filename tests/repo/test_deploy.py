"""What deploy/ holds, as far as it can be checked without a container engine or a cluster.

Files parse, every command line in them is one that swarmd takes, times fit each other, and the
dashboard asks for metrics that exist. None of it has been run in Docker or Kubernetes here.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import doc_blocks
import pytest
import yaml
from status_samples import rendered_peers, rendered_status

from swarmd.cli.framework import Session
from swarmd.metrics_text import metrics_text
from swarmd.named_limits import WAN
from swarmd.run_file import KEYS
from swarmd.schemas import record_named, schema_of
from swarmd.toml_file import parse_toml

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
YAML = sorted(DEPLOY.glob("*.yaml"))
LINK = "swarmd://" + "ab" * 32


def documents(name: str) -> list[dict[str, Any]]:
    return [found for found in yaml.safe_load_all((DEPLOY / name).read_text()) if found]


def parse(words: list[str]) -> None:
    """Raises what click raises for a command line that swarmd does not take."""
    tree = doc_blocks.command_tree()
    command = tree[f"swarmd {words[0]}"]
    command.make_context(
        words[0], list(words[1:]), obj=Session(words), parent=click.Context(command)
    )


def command_lines() -> Iterator[list[str]]:
    for name in ("compose.yaml", "compose-swarm.yaml"):
        for service in documents(name)[0]["services"].values():
            words = [str(word) for word in service.get("command", [])]
            if "entrypoint" in service:
                words = words[0].split()
                words = words[words.index("swarmd") + 1 :]
                words = words[: words.index(">")] if ">" in words else words
            yield words
    for found in documents("kubernetes.yaml"):
        if found["kind"] == "StatefulSet":
            (container,) = found["spec"]["template"]["spec"]["containers"]
            yield container["args"]
            for probe in ("readinessProbe", "livenessProbe"):
                program, *words = container[probe]["exec"]["command"]
                assert program == "swarmd"
                yield words


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_every_file_is_yaml_and_says_how_it_is_used(path: Path) -> None:
    assert documents(path.name)
    assert path.read_text().startswith("# ")


def test_every_command_line_is_one_that_swarmd_takes() -> None:
    lines = list(command_lines())
    assert len(lines) >= 6
    for words in lines:
        plain = [LINK if "$" in word else word for word in words]
        plain = ["/ip4/203.0.113.7/tcp/4710" if before == "--announce" else word
                 for before, word in zip(["", *plain], plain, strict=False)]  # fmt: skip
        parse([word for word in plain if not word.endswith('/link/run)"')])
    with pytest.raises(click.UsageError):
        parse(["join", "--no-such-flag"])


def test_run_of_the_composed_swarm_is_a_run() -> None:
    text = documents("compose-swarm.yaml")[0]["configs"]["run"]["content"]
    values = parse_toml(Path("run.toml"), text.encode()).values
    assert set(values["run"]) <= set(KEYS["run"])
    assert values["run"]["peers_min"] == 4


def test_time_to_stop_is_longer_than_a_drain() -> None:
    least = WAN.drain_deadline_s + WAN.stop_grace_s
    graces = re.findall(r"(?:stop_grace_period|terminationGracePeriodSeconds): (\d+)",
                        "".join(path.read_text() for path in YAML))  # fmt: skip
    assert len(graces) == 3
    assert all(int(grace) > least for grace in graces)


def test_pods_run_without_rights() -> None:
    (found,) = (one for one in documents("kubernetes.yaml") if one["kind"] == "StatefulSet")
    pod = found["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    dockerfile = (DEPLOY.parent / "Dockerfile").read_text()
    assert f"--uid {pod['securityContext']['runAsUser']} " in dockerfile


@pytest.mark.process
def test_link_of_the_composed_swarm_appears_whole_once_there_is_one(tmp_path: Path) -> None:
    """The shell line itself, with a founder that needs two tries."""
    (line,) = documents("compose-swarm.yaml")[0]["services"]["link"]["command"]
    program = tmp_path / "bin" / "swarmd"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/sh\necho . >> {tmp_path}/tries\n[ $(wc -l < {tmp_path}/tries) -ge 2 ] || exit 3\n"
        f'[ "$*" = "run link" ] && echo {LINK}\n'
    )
    program.chmod(0o755)
    (tmp_path / "link").mkdir()
    (tmp_path / "bin" / "sleep").symlink_to("/bin/true")
    done = subprocess.run(
        ["sh", "-ec", line.replace("/link/", f"{tmp_path}/link/")],
        env={**os.environ, "PATH": f"{program.parent}:{os.environ['PATH']}"},
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    assert [path.name for path in (tmp_path / "link").iterdir()] == ["run"]
    assert (tmp_path / "link" / "run").read_text() == f"{LINK}\n"


# ------------------------------------------------------------------------------------ the dashboard


def metric_names() -> set[str]:
    """Those of a full status and its peers, and every field that may be known one day."""
    schema = schema_of(record_named("status"))
    fields = {
        "swarmd_" + leaf.strip("`").replace(".", "_")
        for name, body in schema["properties"].items()
        for leaf in doc_blocks._leaves(body, schema, f"{name}.")
        if "[]" not in leaf
    }
    text = metrics_text(rendered_status(), rendered_peers())
    return fields | {re.split(r"[{ ]", line)[0] for line in text.splitlines() if line[0] != "#"}


def test_dashboard_asks_for_metrics_that_exist() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    asked = {
        name
        for panel in board["panels"]
        for target in panel["targets"]
        for name in re.findall(r"swarmd_\w+", target["expr"])
    }
    assert len(asked) > 20
    assert asked <= metric_names(), asked - metric_names()


def test_panels_of_the_dashboard_do_not_overlap() -> None:
    board = json.loads((DEPLOY / "grafana.json").read_text())
    taken: set[tuple[int, int]] = set()
    for panel in board["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells
