"""`swarmd completion`: for the shell."""

from __future__ import annotations

import click

from swarmd.cli.framework import Session, command


@command(section="Keeping house")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(session: Session, shell: str) -> None:
    """A shell script that completes commands and flags.

    For bash: `eval "$(swarmd completion bash)"`.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = click.get_current_context().find_root().command
    script = kind(root, {}, "swarmd", "_SWARMD_COMPLETE").source()
    session.done(script, {"script": script})
