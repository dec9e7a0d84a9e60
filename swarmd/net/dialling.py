"""A dial: the addresses of one peer, one after another with a small head start each.

A dead address thus costs the head start and not its deadline, and the first that answers wins. Two
channels may come up at nearly the same time; only one says HELLO, so the peer sees one of us.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence

import trio

from swarmd.net.frames import Hello
from swarmd.net.link import LinkLimits
from swarmd.net.pump import Wakeup
from swarmd.net.underlay import CarrierEnded, Channel, DialFailed, Underlay
from swarmd.protocols.errors import RemoteProtocolError
from swarmd.protocols.ids import PeerId, short_id

log = logging.getLogger("swarmd.net")


class DialRace:
    """One dial, until it ends. Cancel `scope` to give it up."""

    def __init__(
        self,
        underlay: Underlay,
        peer: PeerId,
        limits: LinkLimits,
        greet: Callable[[Channel], Awaitable[Hello]],
        on_violation: Callable[[PeerId, RemoteProtocolError], None],
    ) -> None:
        self.scope = trio.CancelScope()
        self.causes: dict[str, str] = {}
        """Why each address gave nothing."""
        self.greeting = False
        """Our HELLO is out on a channel that we opened."""
        self.yielded = False
        """The peer's own dial is faster: this one ends without a word."""
        self._underlay, self._peer, self._limits = underlay, peer, limits
        self._greet, self._on_violation = greet, on_violation
        self._news = Wakeup()
        self._won: tuple[Channel, Hello] | None = None

    async def run(
        self, addresses: tuple[str, ...], detours: Callable[[], Sequence[str]]
    ) -> tuple[Channel, Hello] | None:
        """The channel and what the peer said on it, or None. `detours`: if all addresses fail."""
        try:
            with self.scope:
                await self._try_all(addresses)
                if self._won is None and not self.yielded:
                    await self._try_all(tuple(detours()))
        except BaseException:
            self._give_up()
            raise
        if self.scope.cancelled_caught:
            self._give_up()
        return self._won

    async def _try_all(self, addresses: tuple[str, ...]) -> None:
        async with trio.open_nursery() as nursery:
            for address in addresses:
                nursery.start_soon(self._try, address, nursery.cancel_scope)
                with trio.move_on_after(self._limits.dial_stagger_s):
                    while address not in self.causes:
                        await self._news.wait()

    def _give_up(self) -> None:
        if self._won is not None:
            self._won[0].close_now()
            self._won = None

    async def _try(self, address: str, race: trio.CancelScope) -> None:
        channel, greeted = None, False
        try:
            with trio.fail_after(self._limits.dial_each_s):
                channel = await self._underlay.dial(self._peer, address)
                if self.greeting:
                    self.causes[address] = "error"
                    return
                self.greeting = greeted = True
                self._won = (channel, await self._greet(channel))
                channel = None
                race.cancel()
        except DialFailed as failed:
            self.causes[address] = failed.cause
            log.debug("dial_failed peer=%s at=%s error=%s", short_id(self._peer), address, failed)
        except CarrierEnded as ended:
            self.causes[address] = "timeout" if ended.cause == "stalled" else "refused"
            if ended.text == "duplicate":
                self.yielded = True
                race.cancel()
        except RemoteProtocolError as error:
            self.causes[address] = "error"
            self._on_violation(self._peer, error)
        except trio.TooSlowError:
            self.causes[address] = "timeout"
        finally:
            if channel is not None:
                channel.close_now()
                if greeted:
                    self.greeting = False
            self._news.set()
