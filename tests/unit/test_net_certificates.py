"""Certificates bind a TLS key to a peer id, as the libp2p TLS specification wants it."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.peer.id import ID
from libp2p.security.tls.certificate import (
    create_cert_template,
    generate_certificate,
    verify_certificate_chain,
)

from swarmd.net.certificates import EXTENSION, check_certificate, make_certificate
from swarmd.net.libp2p_host import peer_id_of_seed

SEED, OTHER = bytes(range(32)), bytes(range(1, 33))


def der(pem: str) -> bytes:
    return ssl.PEM_cert_to_DER_cert(pem)


def test_ours_is_accepted_by_us_and_by_libp2p() -> None:
    certificate = der(make_certificate(SEED)[0])
    check_certificate(certificate, peer_id_of_seed(SEED))
    key = verify_certificate_chain([x509.load_der_x509_certificate(certificate)])
    assert str(ID.from_pubkey(key)) == peer_id_of_seed(SEED)


def test_the_librarys_is_accepted_by_us() -> None:
    keys = create_new_key_pair(SEED)
    pem, _ = generate_certificate(keys.private_key, create_cert_template())
    check_certificate(der(pem), peer_id_of_seed(SEED))


def test_no_two_have_one_name() -> None:
    names = {
        x509.load_pem_x509_certificate(make_certificate(SEED)[0].encode()).subject for _ in "ab"
    }
    assert len(names) == 2


def test_another_peers_is_refused() -> None:
    with pytest.raises(ValueError, match="another peer's"):
        check_certificate(der(make_certificate(OTHER)[0]), peer_id_of_seed(SEED))


def test_one_out_of_date_is_refused() -> None:
    made = datetime.now(UTC) + timedelta(days=30)
    certificate = der(make_certificate(SEED, now=made)[0])
    with pytest.raises(ValueError, match="out of date"):
        check_certificate(certificate, peer_id_of_seed(SEED))
    check_certificate(certificate, peer_id_of_seed(SEED), now=made)


def test_an_extension_copied_from_another_certificate_is_refused() -> None:
    victim = x509.load_der_x509_certificate(der(make_certificate(SEED)[0]))
    extension = victim.extensions.get_extension_for_oid(EXTENSION).value
    with pytest.raises(ValueError, match="signature is wrong"):
        check_certificate(self_signed(extension), peer_id_of_seed(SEED))


@pytest.mark.parametrize("body", [b"", b"\x30", bytes(106), bytes(5000)], ids=len)
def test_a_malformed_extension_is_refused(body: bytes) -> None:
    extension = x509.UnrecognizedExtension(EXTENSION, body)
    with pytest.raises(ValueError, match="malformed"):
        check_certificate(self_signed(extension), peer_id_of_seed(SEED))


@pytest.mark.parametrize("body", [b"", b"\x30\x82", bytes(2000)], ids=len)
def test_bytes_that_are_no_certificate_are_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="not a certificate"):
        check_certificate(body, peer_id_of_seed(SEED))


def test_one_without_the_extension_is_refused() -> None:
    with pytest.raises(ValueError, match="names no peer"):
        check_certificate(self_signed(None), peer_id_of_seed(SEED))


def self_signed(extension: x509.ExtensionType | None) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = create_cert_template().public_key(key.public_key())
    if extension is not None:
        builder = builder.add_extension(extension, critical=False)
    certificate = builder.sign(key, hashes.SHA256())
    return certificate.public_bytes(serialization.Encoding.DER)
