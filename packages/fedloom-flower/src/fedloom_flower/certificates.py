"""Keys and certificates of a federation: a small authority of its own, and a key for each node.

A convenience: whoever has an authority puts its files into the same places.
"""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from shlex import quote
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from fedloom.errors import ConfigError
from fedloom.storage.atomic import reason

from .folder import Folder, write, write_secret

DAYS = 825  # of the server's certificate; the authority's is valid ten times as long
SOON = 30  # days before its end from which it is to be renewed


def make_authority(fed: Folder, address: str) -> None:
    """Write ca.pem, server.pem and their keys. address: the server's name or number, as nodes
    reach it. Raises ConfigError.
    """
    ca = ec.generate_private_key(ec.SECP256R1())
    authority = [
        (x509.BasicConstraints(ca=True, path_length=0), True),
        (_usage("key_cert_sign", "crl_sign"), True),
        (x509.SubjectKeyIdentifier.from_public_key(ca.public_key()), False),
    ]
    _write(fed, "ca", "fedloom federation", ca, ca, 10 * DAYS, authority)
    _make_server(fed, address, ca)


def renew(fed: Folder) -> None:
    """Write another server.pem and key, of the same authority, so that nodes need nothing. Raises
    ConfigError.
    """
    path = fed.secret("ca")
    try:
        ca = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        why = reason(error) if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"the authority's key '{path}' cannot be read: {why}; put it back, or have whoever "
            "keeps it make server.pem and secret/server, which a running server takes"
        ) from None
    _make_server(fed, fed.settings().address, ca)


def _make_server(fed: Folder, address: str, ca: Any) -> None:
    """Write server.pem and its key, signed by an authority's key."""
    identity = x509.SubjectKeyIdentifier.from_public_key(ca.public_key())
    extensions = [
        (x509.BasicConstraints(ca=False, path_length=None), True),
        (_usage("digital_signature"), True),
        (x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]), False),
        (x509.SubjectAlternativeName(_alternative_names(address)), False),
        (x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identity), False),
    ]
    _write(fed, "server", address, ec.generate_private_key(ec.SECP256R1()), ca, DAYS, extensions)


def _write(
    fed: Folder,
    file: str,
    name: str,
    key: Any,
    signer: Any,
    days: int,
    extensions: list[tuple[Any, bool]],
) -> None:
    """Write a certificate and its key. extensions: each, and whether it is critical."""

    def common_name(name: str) -> Any:
        return x509.Name([x509.NameAttribute(x509.oid.NameOID.COMMON_NAME, name[:64])])

    now = datetime.datetime.now(datetime.UTC)
    builder: Any = x509.CertificateBuilder(common_name("fedloom federation"), common_name(name))
    builder = builder.public_key(key.public_key()).serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ
    builder = builder.not_valid_after(now + datetime.timedelta(days=days))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical=critical)
    raw = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    write_secret(fed.secret(file), key.private_bytes(*forms, serialization.NoEncryption()))
    write(fed.certificate(file), raw.decode())  # last: a running server takes both then


def _usage(*usages: str) -> Any:
    first = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment")
    more = ("key_agreement", "key_cert_sign", "crl_sign", "encipher_only", "decipher_only")
    names = (*first, *more)
    return x509.KeyUsage(**{name: name in usages for name in names})


def _alternative_names(address: str) -> list[Any]:
    """The names that a server's certificate is for: this one, and its own machine."""
    out: list[Any] = []
    for name in dict.fromkeys([address, "localhost", "127.0.0.1"]):
        try:
            out.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            out.append(x509.DNSName(name))
    return out


def make_node_key(path: Path) -> str:
    """Write a node's private key, and its public one beside it -> the public key's line."""
    key = ec.generate_private_key(ec.SECP384R1())
    forms = serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH
    write_secret(path, key.private_bytes(*forms, serialization.NoEncryption()))
    public = serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    line = str(key.public_key().public_bytes(*public).decode())
    write(path.with_suffix(".pub"), line + "\n")
    return line


def as_pem(line: str) -> bytes:
    """A public key as Flower has it, from its line in clients.toml. Raises ConfigError."""
    try:
        key = serialization.load_ssh_public_key(line.encode())
    except ValueError as error:
        raise ConfigError(f"clients.toml: '{line[:60]}...' is no public key: {error}") from None
    forms = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    pem: bytes = key.public_bytes(*forms)
    return pem


def days_left(path: Path) -> int:
    """How many days a certificate is still valid, below 0 if it is not. Raises ConfigError."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigError(f"the certificate '{path}' cannot be read: {error}") from None
    left = certificate.not_valid_after_utc - datetime.datetime.now(datetime.UTC)
    return int(left.days)


def validity(fed: Folder) -> str:
    """How long the server's certificate is valid, and the command to type if that is soon over.
    Raises ConfigError.
    """
    left = days_left(fed.certificate("server"))
    text = f"valid for {left} days" if left >= 0 else "has expired"
    return text if left >= SOON else f"{text}: fedloom deploy renew {quote(str(fed.path))}"
