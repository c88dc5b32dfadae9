"""Keys of a federation: an authority, the server's certificate, and a key pair for each site.

The server keeps its folder; each site gets its own private key and the authority's certificate, and nothing else.
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat
from cryptography.x509.oid import NameOID

from veilset.core.errors import InputError
from veilset.core.files import require_absent

AUTHORITY, CERTIFICATE, KEY = "authority.pem", "server.pem", "server.key"
_VALID = timedelta(days=365)


def write_keys(folder: Path, sites: Sequence[str], hosts: Sequence[str]) -> None:
    """Write the keys for a server that is reached under `hosts`, and for `sites` by name."""
    require_absent(folder)
    if len(set(sites)) != len(sites) or not all(name.replace("-", "").replace("_", "").isalnum() for name in sites):
        raise InputError(f"Expected different site names of letters, digits, - and _, got {', '.join(sites)}.")
    folder.mkdir(parents=True)
    authority = ec.generate_private_key(ec.SECP384R1())
    issuer = _name("veilset federation")
    root = (
        _builder(issuer, issuer, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    server = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _builder(_name(hosts[0]), issuer, server.public_key())
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    (folder / AUTHORITY).write_bytes(root.public_bytes(Encoding.PEM))
    (folder / CERTIFICATE).write_bytes(certificate.public_bytes(Encoding.PEM))
    _write_secret(folder / KEY, server.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    for name in sites:
        own = ec.generate_private_key(ec.SECP384R1())
        secret = own.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        _write_secret(folder / f"{name}.key", secret)
        public = own.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        (folder / f"{name}.pub").write_bytes(public + b"\n")


def _write_secret(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + _VALID)
    )
