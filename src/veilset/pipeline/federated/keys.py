"""The server's own keys: an authority and a certificate for the addresses under which sites reach the server.

An organisation that has an authority of its own needs none of this (`--certificate`, `--certificate-key`,
`--authority`). Keys of sites are made at the sites (`admission.py`).
"""

import ipaddress
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from veilset.core.errors import InputError
from veilset.core.files import write_whole
from veilset.pipeline.federated.admission import write_secret

AUTHORITY, AUTHORITY_KEY, CERTIFICATE, KEY = "authority.pem", "authority.key", "server.pem", "server.key"
_AUTHORITY_VALID = timedelta(days=3650)
_VALID = timedelta(days=365)


def write_authority(folder: Path) -> None:
    """A new authority for one federation; its key stays on the server, to renew the certificate."""
    folder.mkdir(parents=True, exist_ok=True)
    own = ec.generate_private_key(ec.SECP384R1())
    name = _name("veilset federation")
    root = (
        _builder(name, name, own.public_key(), _AUTHORITY_VALID)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(own.public_key()), critical=False)
        .sign(own, hashes.SHA256())
    )
    write_secret(folder / AUTHORITY_KEY, _private(own))
    write_whole(folder / AUTHORITY, root.public_bytes(Encoding.PEM))


def write_certificate(folder: Path, hosts: Sequence[str]) -> datetime:
    """A new key and certificate of the server, for these names and addresses; until when it is valid."""
    try:
        issuer = x509.load_pem_x509_certificate((folder / AUTHORITY).read_bytes()).subject
        authority = load_pem_private_key((folder / AUTHORITY_KEY).read_bytes(), None)
    except (OSError, ValueError) as error:
        raise InputError(
            f"The authority of this federation is not in {folder}: {error}. Certificates of another authority are "
            "renewed there."
        ) from error
    assert isinstance(authority, ec.EllipticCurvePrivateKey)
    server = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _builder(_name(hosts[0]), issuer, server.public_key(), _VALID)
        .add_extension(x509.SubjectAlternativeName([_host(host) for host in dict.fromkeys(hosts)]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .sign(authority, hashes.SHA256())
    )
    write_secret(folder / KEY, _private(server))
    write_whole(folder / CERTIFICATE, certificate.public_bytes(Encoding.PEM))
    return certificate.not_valid_after_utc


def hosts_of(folder: Path) -> list[str]:
    """The names and addresses in the server's certificate."""
    certificate = x509.load_pem_x509_certificate((folder / CERTIFICATE).read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress))]


def _private(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


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


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, valid: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + valid)
    )
