"""The dedicated bulk connection: TCP and TLS 1.3, bound to peer ids, pumped by hand. All of `ssl`.

Who may connect: each side says its certificate in the HELLO of the control plane, which is already
authenticated, and a TLS connection trusts exactly the certificates of present neighbours. It is the
standard library alone; the usual way (ask for a client certificate, skip the check, look at it
afterwards) needs a callback put into OpenSSL through ctypes and the memory layout of CPython, which
ends the process where `ssl` was linked against another libssl. Strangers fail inside the handshake.
The certificate itself is that of the libp2p TLS specification: a fresh P-256 key, signed by the
peer's ed25519 key; its signature was checked when the HELLO came.

Why by hand: `trio.SSLStream` refills in small reads and moves 180-270 MB/s where the pump moves
470-790 (measured on loopback, two shared cores) for half the CPU.

Rules: a send leaves whole or the connection is given up, because half a TLS record ruins it; it is
shielded from cancellation, with a deadline of its own; after the deadline nothing is awaited before
the error is out. What was received is decrypted straight into the caller's memory.
"""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Iterator, Sequence

import trio

from swarmd.net.sockets import READ_BYTES, RawStream
from swarmd.net.underlay import Buffer, CarrierEnded, DialFailed
from swarmd.protocols.ids import PeerId

ALPN = "swarmd-bulk/1"
FRAME_BYTES = 520 << 10
PIECE_BYTES = 128 << 10
"""So much is encrypted, or read and decrypted, in one go: it stays in the processor's cache, and
the far side begins while we go on."""
SMALL_BYTES = 8 << 10
"""Copying this is cheaper than a record of its own."""
STALL_S = 10.0
HANDSHAKE_S = 5.0
PEM_BYTES_MAX = 4096

Piece = list[Buffer]


class BulkKeys:
    """Our certificate, and those of the peers we are linked to."""

    def __init__(self, certificate_pem: str, key_pem: str) -> None:
        self._pem = key_pem + certificate_pem
        self.certificate = ssl.PEM_cert_to_DER_cert(certificate_pem)
        self._peers: dict[PeerId, bytes] = {}
        self._by_certificate: dict[bytes, PeerId] = {}
        self._server: ssl.SSLContext | None = None
        self._clients: dict[PeerId, ssl.SSLContext] = {}

    def trust(self, peer: PeerId, certificate: bytes) -> None:
        """`certificate` (DER) was proved to be the peer's."""
        self.distrust(peer)
        self._peers[peer] = certificate
        self._by_certificate[certificate] = peer

    def distrust(self, peer: PeerId) -> None:
        certificate = self._peers.pop(peer, None)
        if certificate is not None:
            self._by_certificate.pop(certificate, None)
        # Certificates cannot be taken out of a live context; a new one is made when next needed.
        self._server = None
        self._clients.pop(peer, None)

    def knows(self, peer: PeerId) -> bool:
        return peer in self._peers

    def peer_of(self, certificate: bytes | None) -> PeerId | None:
        return self._by_certificate.get(certificate) if certificate else None

    def server(self) -> ssl.SSLContext:
        """Accepts present neighbours."""
        if self._server is None:
            self._server = self._context(ssl.PROTOCOL_TLS_SERVER, list(self._peers.values()))
            # No resumption: every connection shows its certificate.
            self._server.num_tickets = 0
        return self._server

    def client(self, peer: PeerId) -> ssl.SSLContext:
        """Accepts that one peer. Raises KeyError if its certificate is not known."""
        if peer not in self._clients:
            self._clients[peer] = self._context(ssl.PROTOCOL_TLS_CLIENT, [self._peers[peer]])
        return self._clients[peer]

    def _context(self, protocol: int, trusted: Sequence[bytes]) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.set_alpn_protocols([ALPN])
        if trusted:
            context.load_verify_locations(cadata=b"".join(trusted))
        # The module reads keys from a path only; this one has mode 0600 and lives for a moment.
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(self._pem)
            file.flush()
            context.load_cert_chain(file.name)
        return context


class TlsCarrier:
    """An authenticated connection as a carrier."""

    kind = "tls"
    frame_bytes = FRAME_BYTES

    def __init__(self, raw: RawStream, context: ssl.SSLContext, *, server_side: bool) -> None:
        self._raw = raw
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_side=server_side)
        self.tally = raw.tally

    async def handshake(self) -> None:
        """Raises CarrierEnded or ssl.SSLError."""
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    await self._flush()
                    await self._raw.receive(self._in.write, READ_BYTES)
        finally:
            # An alert tells the other side what was wrong.
            if not self._raw.closed and self._out.pending:
                with trio.move_on_after(1.0, shield=True):
                    await self._flush()
        if self._tls.selected_alpn_protocol() != ALPN:
            raise CarrierEnded("refused", f"does not speak {ALPN}")

    @property
    def certificate(self) -> bytes | None:
        """What the other side showed, DER."""
        return self._tls.getpeercert(binary_form=True)

    async def _flush(self) -> None:
        data = self._out.read()
        if data:
            await self._raw.send_all(data)

    async def send(self, parts: Sequence[Buffer]) -> None:
        # A cancelled caller leaves here, with no byte encrypted.
        await trio.lowlevel.checkpoint_if_cancelled()
        await self._raw.ready()
        if self._raw.closed:
            raise CarrierEnded("dropped")
        pieces = _pieces(parts)
        for piece in pieces:
            rest = self._raw.send_nowait(self._encrypted(piece))
            if rest:
                await self._send_slowly(rest, pieces)
                return
        await self._raw.take_turns()

    async def _send_slowly(self, rest: Buffer, pieces: Iterator[Piece]) -> None:
        """What is left of a frame, once the socket takes no more at once."""
        with trio.move_on_after(STALL_S, shield=True) as scope:
            await self._raw.send_all(rest)
            for piece in pieces:
                await self._raw.send_all(self._encrypted(piece))
        if scope.cancelled_caught:
            # No await before the raise: with the shield gone, a pending outer cancellation would
            # replace our error, and the caller would go on after half a record.
            self._raw.close_now()
            raise CarrierEnded("stalled", f"a frame did not leave within {STALL_S:.0f} s")

    def _encrypted(self, piece: Piece) -> bytes:
        try:
            for buffer in piece:
                self._tls.write(buffer)
        except ssl.SSLError as error:
            self._raw.close_now()
            raise CarrierEnded("lost", str(error)) from None
        return self._out.read()

    async def receive_into(self, view: memoryview) -> None:
        at = 0
        while at < len(view):
            try:
                count = self._tls.read(len(view) - at, view[at:])
            except ssl.SSLWantReadError:
                await self._raw.receive(self._in.write, READ_BYTES)
                continue
            except ssl.SSLError as error:
                self._raw.close_now()
                raise CarrierEnded("lost", f"bad record: {error}") from None
            if count == 0:
                raise CarrierEnded("lost", "end of TLS without a goodbye")
            at += count

    def close_now(self) -> None:
        self._raw.close_now()


def _pieces(parts: Sequence[Buffer]) -> Iterator[Piece]:
    """The parts, in order, as what leaves in one go.

    Each buffer is a record of its own, which both sides pay for: small ones are joined. A small one
    never leaves alone while a large one follows, or the far side would wake up for it.
    """
    small: list[Buffer] = []
    for part in parts:
        if len(part) <= SMALL_BYTES:
            small.append(part)
            continue
        view, at = memoryview(part), 0
        while at < len(view):
            end = at + PIECE_BYTES if len(view) - at > PIECE_BYTES + SMALL_BYTES else len(view)
            yield [b"".join(small), view[at:end]] if small else [view[at:end]]
            small, at = [], end
    if small:
        yield [b"".join(small)]


async def connect_tls(raw: RawStream, keys: BulkKeys, peer: PeerId) -> TlsCarrier:
    """The dialling side. The caller closes `raw` on any error. Raises DialFailed."""
    try:
        carrier = TlsCarrier(raw, keys.client(peer), server_side=False)
    except KeyError:
        raise DialFailed("error", "the peer's certificate is not known") from None
    try:
        with trio.fail_after(HANDSHAKE_S):
            await carrier.handshake()
    except ssl.SSLCertVerificationError as error:
        raise DialFailed("wrong_peer_id", str(error)) from None
    except ssl.SSLError as error:
        raise DialFailed("error", str(error)) from None
    except CarrierEnded as ended:
        raise DialFailed("refused", str(ended)) from None
    except trio.TooSlowError:
        raise DialFailed("timeout") from None
    return carrier


async def accept_tls(raw: RawStream, keys: BulkKeys) -> tuple[PeerId, TlsCarrier]:
    """The accepting side. Raises Refused with the reason to count."""
    carrier = TlsCarrier(raw, keys.server(), server_side=True)
    try:
        with trio.fail_after(HANDSHAKE_S):
            await carrier.handshake()
    except ssl.SSLCertVerificationError as error:
        raise Refused("bad_certificate", str(error)) from None
    except ssl.SSLError as error:
        no_certificate = "PEER_DID_NOT_RETURN" in str(error)
        raise Refused("bad_certificate" if no_certificate else "bad_tls", str(error)) from None
    except CarrierEnded as ended:
        raise Refused("handshake_failed", str(ended)) from None
    except trio.TooSlowError:
        raise Refused("handshake_timeout") from None
    peer = keys.peer_of(carrier.certificate)
    if peer is None:
        raise Refused("bad_certificate", "of nobody we are linked to")
    return peer, carrier


class Refused(Exception):
    """A stranger at the bulk port. `reason` is counted."""

    def __init__(self, reason: str, text: str = "") -> None:
        super().__init__(f"{reason}: {text}" if text else reason)
        self.reason = reason
