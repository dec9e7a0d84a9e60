"""`swarmd version`."""

from __future__ import annotations

import platform

from swarmd import __version__
from swarmd.cli.framework import Session, command


@command(section="Keeping house")
def version(session: Session) -> None:
    """Version, protocol range, platform."""
    from swarmd.json_record import render
    from swarmd.protocols.greeting import PROTOCOL_MAX, PROTOCOL_MIN
    from swarmd.records import Version
    from swarmd.versions import is_supported, platform_text

    found = Version(
        version=__version__,
        protocol_min=PROTOCOL_MIN,
        protocol_max=PROTOCOL_MAX,
        python=platform.python_version(),
        platform=platform_text(),
        supported=is_supported(),
    )
    if session.is_json:
        session.printer.object(render(found))
        return
    supported = "supported" if found.supported else "not supported"
    session.printer.line(f"swarmd    {found.version}")
    session.printer.line(f"protocol  {found.protocol_min}..{found.protocol_max}")
    session.printer.line(f"python    {found.python}")
    session.printer.line(f"platform  {found.platform}, {supported}")
