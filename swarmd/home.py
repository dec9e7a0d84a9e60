"""Where everything of one peer lives, by the table of docs/cli.md section 8.

Finding a home touches nothing; `create` makes its directories, 0700 each. The order: `--home`,
SWARMD_HOME, the directories systemd names, the user's XDG directories. No path depends on the
current directory once it is found.

The runtime directory may be gone after a logout or differ between sessions; identity and training
state do not. The lock therefore also covers the state directory (home_lock.py).
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from swarmd.errors import UserError
from swarmd.store import store_error

SYSTEM_CONFIG = Path("/etc/swarmd/config.toml")
OLDER_STATE = (
    "incarnation",
    "last_exit.json",
    "events.jsonl",
    "known_peers.json",
    "ledger",
    "receipts",
)
"""Names in the state directory that tell of an earlier life (IDEN-03)."""


@dataclass(frozen=True, slots=True)
class Home:
    """The directories of one peer, and the files in them that several modules name."""

    config_file: Path
    state: Path
    data: Path
    cache: Path
    runtime: Path
    origin: str
    """flag, environment, service or user: what decided the place."""
    root: Path | None = None
    """With --home and SWARMD_HOME: the one directory above all of them."""

    def __str__(self) -> str:
        return str(self.root or self.state)

    @property
    def identity_key(self) -> Path:
        return self.state / "identity.key"

    @property
    def incarnation_file(self) -> Path:
        return self.state / "incarnation"

    @property
    def last_exit_file(self) -> Path:
        return self.state / "last_exit.json"

    @property
    def last_status_file(self) -> Path:
        """The daemon's last status, written as it ends: for whoever comes too late to ask."""
        return self.state / "last_status.json"

    @property
    def known_peers_file(self) -> Path:
        return self.state / "known_peers.json"

    @property
    def traffic_file(self) -> Path:
        """What this month's traffic was, for the quota."""
        return self.state / "traffic.json"

    @property
    def events_file(self) -> Path:
        return self.state / "events.jsonl"

    @property
    def log_file(self) -> Path:
        return self.state / "swarmd.log"

    @property
    def runs(self) -> Path:
        """Descriptions of the runs this home knows."""
        return self.state / "runs"

    @property
    def checkpoints(self) -> Path:
        return self.data / "checkpoints"

    @property
    def guarded(self) -> Path:
        """Snapshots of stages that others hold, as checkpoints."""
        return self.data / "guarded"

    @property
    def devices(self) -> Path:
        """Homes of the daemons of further devices (node/companions.py)."""
        return self.data / "devices"

    @property
    def control_socket(self) -> Path:
        return self.runtime / "control.sock"

    @property
    def lock_file(self) -> Path:
        return self.runtime / "lock"

    def directories(self) -> tuple[Path, ...]:
        return (self.state, self.data, self.cache, self.runtime)

    def places(self) -> dict[str, Path]:
        """What `swarmd paths` shows."""
        return {
            "config": self.config_file,
            "state": self.state,
            "data": self.data,
            "cache": self.cache,
            "runtime": self.runtime,
            "identity": self.identity_key,
            "log": self.log_file,
            "events": self.events_file,
            "checkpoints": self.checkpoints,
            "guarded": self.guarded,
            "socket": self.control_socket,
            "lock": self.lock_file,
        }

    def has_older_state(self) -> bool:
        """Whether a peer has lived here before."""
        return any((self.state / name).exists() for name in OLDER_STATE) or (
            self.checkpoints.is_dir() and any(self.checkpoints.iterdir())
        )

    def create(self) -> list[str]:
        """Make what is missing. Returns what had to be repaired, for people.

        Raises UserError if a directory cannot be made, written or trusted.
        """
        try:
            if self.root is not None:
                self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            return [text for folder in self.directories() for text in _make_private(folder)]
        except OSError as error:
            trouble = store_error(Path(error.filename or str(self)), error)
            raise UserError(
                f"the home cannot be used: {trouble}",
                code="home_unusable",
                exit_code=1,
                hint="give another one with `--home DIR`",
            ) from error


def find_home(flag: str | None = None, environ: Mapping[str, str] | None = None) -> Home:
    """Touches nothing. Raises UserError for an empty value, or where no place can be told."""
    env = os.environ if environ is None else environ
    if flag is not None:
        return _under(_directory(flag, "--home"), "flag")
    if "SWARMD_HOME" in env:
        return _under(_directory(env["SWARMD_HOME"], "SWARMD_HOME"), "environment")
    if env.get("STATE_DIRECTORY"):
        return _service(env)
    return _user(env)


def home_at(root: Path) -> Home:
    """The home below one directory, as with --home."""
    return _under(absolute(root), "flag")


def absolute(path: Path | str) -> Path:
    """As seen from the current directory. Raises UserError if that has been removed."""
    try:
        return Path(os.path.abspath(path))
    except FileNotFoundError:
        raise UserError(
            f"the current directory is gone, so {path} names no place",
            code="no_directory",
            exit_code=1,
            hint="go to a directory that exists, or give an absolute path",
        ) from None


def _under(root: Path, origin: str) -> Home:
    return Home(
        config_file=root / "config.toml",
        state=root / "state",
        data=root / "data",
        cache=root / "cache",
        runtime=root / "run",
        origin=origin,
        root=root,
    )


def _service(env: Mapping[str, str]) -> Home:
    state = Path(env["STATE_DIRECTORY"].split(":")[0])
    cache = env.get("CACHE_DIRECTORY", "").split(":")[0]
    runtime = env.get("RUNTIME_DIRECTORY", "").split(":")[0]
    return Home(
        config_file=SYSTEM_CONFIG,
        state=state,
        data=state / "data",
        cache=Path(cache) if cache else state / "cache",
        runtime=Path(runtime) if runtime else state / "run",
        origin="service",
    )


def _user(env: Mapping[str, str]) -> Home:
    def place(variable: str, *fallback: str) -> Path:
        value = env.get(variable, "")
        # The XDG specification: a relative path is to be ignored.
        base = Path(value) if value.startswith("/") else _user_directory(env).joinpath(*fallback)
        return base / "swarmd"

    state = place("XDG_STATE_HOME", ".local", "state")
    return Home(
        config_file=place("XDG_CONFIG_HOME", ".config") / "config.toml",
        state=state,
        data=place("XDG_DATA_HOME", ".local", "share"),
        cache=place("XDG_CACHE_HOME", ".cache"),
        runtime=_runtime(env, state),
        origin="user",
    )


def _runtime(env: Mapping[str, str], state: Path) -> Path:
    """XDG_RUNTIME_DIR; else what it would be in a login session; else a folder of the state."""
    value = env.get("XDG_RUNTIME_DIR", "")
    if value.startswith("/"):
        return Path(value) / "swarmd"
    session = Path(f"/run/user/{os.getuid()}")
    try:
        is_ours = session.stat().st_uid == os.getuid()
    except OSError:
        is_ours = False
    return session / "swarmd" if is_ours else state / "run"


def _user_directory(env: Mapping[str, str]) -> Path:
    value = env.get("HOME", "")
    if value.startswith("/"):
        return Path(value)
    try:
        return Path(pwd.getpwuid(os.getuid()).pw_dir)
    except KeyError:
        raise UserError(
            "this user has no home directory, so there is no place for a peer",
            code="no_home",
            exit_code=2,
            hint="give one with `--home DIR`, or set SWARMD_HOME",
        ) from None


def _directory(text: str, name: str) -> Path:
    if not text.strip():
        raise UserError(
            f"{name} is empty",
            code="usage",
            exit_code=2,
            hint=f"an empty value never means the default; give a directory or leave {name} out",
        )
    path = Path(text)
    found = absolute(path.expanduser() if text.startswith("~/") else path)
    there = next(place for place in (found, *found.parents) if os.path.lexists(place))
    if not os.path.isdir(there):
        raise UserError(
            f"the home cannot be used: {there} is no directory",
            code="home_unusable",
            exit_code=1,
            hint="give another one with `--home DIR`",
        )
    return found


def _make_private(folder: Path) -> list[str]:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if not stat.S_IMODE(found.st_mode) & 0o077:
        return []
    if found.st_uid != os.geteuid():
        raise PermissionError(1, "others may enter it, and it is not ours", str(folder))
    folder.chmod(0o700)
    return [f"{folder} was open to others; its mode is 0700 now"]
