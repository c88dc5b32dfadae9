"""ed25519 signatures over the bytes of certificate.json, which lists the hash of every other file.

certificate.sig holds the signature and the public key that made it. A key inside the release shows only that the
release is intact; who signed it is known when the reader brings the custodian's key from elsewhere.
"""

import hashlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from veilset.core.errors import InputError, VerificationError
from veilset.release import strict_json

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

_SIZE_LIMIT = 1 << 16


def generate_key(path: Path) -> Path:
    """Write a new private key to `path`, for the owner alone, and its public key to `path`.pub, which is returned."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

    key = Ed25519PrivateKey.generate()
    public_path = path.with_name(path.name + ".pub")
    for place in (path, public_path):
        if place.exists():
            raise InputError(f"{place} exists already. Choose another name; a key is never overwritten.")
    _write_new(path, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
    public_pem = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        _write_new(public_path, public_pem, 0o644)
    except InputError:
        path.unlink()  # of no use without the other half
        raise
    return public_path


def load_private_key(path: Path) -> "Ed25519PrivateKey":
    """Read an unencrypted ed25519 private key in PEM form."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        key = load_pem_private_key(_read(path), password=None)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} is not a private key in PEM form: {error}") from error
    except TypeError as error:
        raise InputError(f"{path} is encrypted with a password. Expected an unencrypted ed25519 key.") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(f"{path} holds a key of another kind. Expected ed25519; make one with generate_key.")
    return key


def load_public_key(path: Path) -> "Ed25519PublicKey":
    """Read an ed25519 public key in PEM form."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    content = _read(path)
    if b"PRIVATE KEY" in content:
        raise InputError(f"{path} is a private key. Expected the public one, usually {path.name}.pub.")
    try:
        key = load_pem_public_key(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InputError(f"{path} is not a public key in PEM form: {error}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{path} holds a key of another kind. Expected ed25519.")
    return key


def signature_file(certificate: bytes, key: "Ed25519PrivateKey") -> bytes:
    """The content of certificate.sig for a certificate."""
    public = key.public_key().public_bytes_raw()
    return strict_json.dump({"public_key": public.hex(), "signature": key.sign(certificate).hex()})


def check_signature(certificate: bytes, signature_path: Path, trusted: "Ed25519PublicKey | None") -> str:
    """The fingerprint of the signer; a bad signature, or one by another key than `trusted`, raises."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    data = strict_json.load(signature_path, _SIZE_LIMIT)
    try:
        public, signature = bytes.fromhex(data["public_key"]), bytes.fromhex(data["signature"])
        key = Ed25519PublicKey.from_public_bytes(public)
    except (KeyError, TypeError, ValueError) as error:
        raise VerificationError(f"{signature_path.name} is not a signature file.") from error
    if trusted is not None and trusted.public_bytes_raw() != public:
        given = fingerprint(trusted.public_bytes_raw())
        raise VerificationError(f"The release was signed by {fingerprint(public)}, not by the given key {given}.")
    try:
        key.verify(signature, certificate)
    except InvalidSignature as error:
        raise VerificationError("The signature does not fit certificate.json: one of them was altered.") from error
    return fingerprint(public)


def fingerprint(public: bytes) -> str:
    """A short name for a public key, to compare by eye or telephone."""
    return "ed25519:" + hashlib.sha256(public).hexdigest()[:32]


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_SIZE_LIMIT)
    except OSError as error:
        raise InputError(f"Cannot read the key {path}: {error.strerror}.") from error


def _write_new(path: Path, content: bytes, mode: int) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            path.unlink(missing_ok=True)  # a part of a key is none
            raise
    except OSError as error:
        raise InputError(f"Cannot write the key {path}: {error.strerror}.") from error
