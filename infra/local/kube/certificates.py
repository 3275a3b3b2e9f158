"""Certificates of the local API server and its keys for service accounts.

Made once; made again when the server certificate nears its end.
"""

from __future__ import annotations

import ipaddress
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALID_DAYS = 3650
_RENEW_BEFORE_DAYS = 30


def write_certificates(folder: Path, address: str) -> None:
    """Write ca.crt, server.{crt,key} and service-account.{pub,key} unless they stand already."""
    if _stands(folder):
        return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    ca_key, server_key, account_key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))
    ca_name = _name("soperator local authority")
    ca = (
        _builder(ca_name, ca_name, ca_key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), False)
        .sign(ca_key, hashes.SHA256())
    )
    names = [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("localhost")]
    server = (
        _builder(_name("kube-apiserver"), ca_name, server_key)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(_usage(certificates=False), critical=True)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False
        )
        .sign(ca_key, hashes.SHA256())
    )
    _write(folder / "ca.crt", ca.public_bytes(serialization.Encoding.PEM))
    _write(folder / "server.key", _private(server_key))
    _write(folder / "service-account.key", _private(account_key))
    _write(folder / "service-account.pub", _public(account_key))
    # Last: its presence says that all others stand.
    _write(folder / "server.crt", server.public_bytes(serialization.Encoding.PEM))


def _stands(folder: Path) -> bool:
    names = ("ca.crt", "server.key", "service-account.key", "service-account.pub", "server.crt")
    if not all((folder / name).exists() for name in names):
        return False
    server = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    return server.not_valid_after_utc > datetime.now(UTC) + timedelta(days=_RENEW_BEFORE_DAYS)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=certificates,
        crl_sign=certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def _public(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def _write(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
