"""Certificates of the libp2p TLS specification: a key for one start, signed by the peer's own key.

    extension 1.3.6.1.4.1.53594.1.1 = SEQUENCE { OCTET STRING key, OCTET STRING signature }
    key        protobuf of the ed25519 public key, as in the peer id
    signature  over "libp2p-tls-handshake:" and the certificate's public key, DER

Every certificate has a name of its own, because OpenSSL looks trusted ones up by name. It is dated
back for peers whose clock is behind and does not expire in practice: it proves a key, not a date,
and it ends with the process.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import NameOID

from swarmd.peer_id import public_key_of
from swarmd.protocols.ids import PeerId

EXTENSION = x509.ObjectIdentifier("1.3.6.1.4.1.53594.1.1")
PREFIX = b"libp2p-tls-handshake:"
VALID = timedelta(days=365 * 100)
DATED_BACK = timedelta(days=7)
_KEY_HEAD = bytes.fromhex("08011220")
_KEY_BYTES = len(_KEY_HEAD) + 32
_SIGNATURE_BYTES = 64
_BODY_HEAD = bytes([0x30, 2 + _KEY_BYTES + 2 + _SIGNATURE_BYTES, 0x04, _KEY_BYTES])
_BODY_MIDDLE = bytes([0x04, _SIGNATURE_BYTES])


def make_certificate(seed: bytes, *, now: datetime | None = None) -> tuple[str, str]:
    """A certificate of the key with this 32-byte seed, and the private TLS key. Both PEM."""
    identity = ed25519.Ed25519PrivateKey.from_private_bytes(seed)
    key = ec.generate_private_key(ec.SECP256R1())
    public = identity.public_key().public_bytes_raw()
    body = _encode(public, identity.sign(PREFIX + _spki(key.public_key())))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, os.urandom(8).hex())])
    begin = (now or datetime.now(UTC)) - DATED_BACK
    certificate = (
        x509.CertificateBuilder()
        .serial_number(x509.random_serial_number())
        .subject_name(name)
        .issuer_name(name)
        .not_valid_before(begin)
        .not_valid_after(begin + VALID)
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=False)
        .add_extension(x509.UnrecognizedExtension(EXTENSION, body), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_pem = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    return certificate.public_bytes(serialization.Encoding.PEM).decode(), key_pem.decode()


def check_certificate(certificate: bytes, peer: PeerId, *, now: datetime | None = None) -> None:
    """Raises ValueError unless this DER certificate is good and signed by the key `peer` names.

    That the other side holds the TLS key, and its self-signature, the handshake proves.
    """
    try:
        found = x509.load_der_x509_certificate(certificate)
        extension = found.extensions.get_extension_for_oid(EXTENSION).value
        key = found.public_key()
    except x509.ExtensionNotFound:
        raise ValueError("the certificate names no peer") from None
    except Exception as error:  # cryptography raises many kinds for bytes that are no certificate
        raise ValueError(f"not a certificate: {type(error).__name__}") from None
    if not found.not_valid_before_utc <= (now or datetime.now(UTC)) <= found.not_valid_after_utc:
        raise ValueError("the certificate is out of date")
    if not isinstance(key, ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey):
        raise ValueError("the certificate's key is of another kind")
    assert isinstance(extension, x509.UnrecognizedExtension)
    public, signature = _decode(extension.value)
    if public != public_key_of(peer):
        raise ValueError("the certificate is another peer's")
    try:
        ed25519.Ed25519PublicKey.from_public_bytes(public).verify(signature, PREFIX + _spki(key))
    except InvalidSignature:
        raise ValueError("the certificate's signature is wrong") from None


def _spki(key: ec.EllipticCurvePublicKey | ed25519.Ed25519PublicKey) -> bytes:
    return key.public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _encode(public: bytes, signature: bytes) -> bytes:
    return _BODY_HEAD + _KEY_HEAD + public + _BODY_MIDDLE + signature


def _decode(body: bytes) -> tuple[bytes, bytes]:
    """Ed25519 keys have one length, so there is one form and nothing to parse."""
    public, signature = body[8:40], body[42:]
    if len(body) != 106 or _encode(public, signature) != body:
        raise ValueError("the certificate's extension is malformed")
    return public, signature
