import stat

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from veilset.core.errors import InputError, VerificationError
from veilset.release.signing import (
    check_signature,
    generate_key,
    load_private_key,
    load_public_key,
    signature_file,
)


def test_a_generated_key_is_private_and_signs(tmp_path):
    public = generate_key(tmp_path / "keys" / "key.pem")
    assert public == tmp_path / "keys" / "key.pem.pub"
    assert stat.S_IMODE((tmp_path / "keys" / "key.pem").stat().st_mode) == 0o600
    signature = tmp_path / "certificate.sig"
    signature.write_bytes(signature_file(b"text", load_private_key(tmp_path / "keys" / "key.pem")))
    trusted = load_public_key(public)
    assert check_signature(b"text", signature, trusted) == check_signature(b"text", signature, None)
    with pytest.raises(VerificationError, match="altered"):
        check_signature(b"other", signature, trusted)


def test_a_key_is_never_overwritten(tmp_path):
    generate_key(tmp_path / "key")
    before = (tmp_path / "key").read_bytes()
    with pytest.raises(InputError, match="never overwritten"):
        generate_key(tmp_path / "key")
    assert (tmp_path / "key").read_bytes() == before
    (tmp_path / "other.pub").write_text("mine")
    with pytest.raises(InputError, match="never overwritten"):
        generate_key(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_files_that_are_no_ed25519_keys_are_refused(tmp_path):
    place = tmp_path / "key"
    generate_key(tmp_path / "good")
    other = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    locked = BestAvailableEncryption(b"word")
    for content, message in [
        (b"hello", "not a private key"),
        (b"", "not a private key"),
        ((tmp_path / "good.pub").read_bytes(), "not a private key"),
        (other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), "another kind"),
        (Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, locked), "encrypted"),
    ]:
        place.write_bytes(content)
        with pytest.raises(InputError, match=message):
            load_private_key(place)
    for content, message in [
        (b"hello", "not a public key"),
        ((tmp_path / "good").read_bytes(), "is a private key"),
        (other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), "another kind"),
    ]:
        place.write_bytes(content)
        with pytest.raises(InputError, match=message):
            load_public_key(place)
    for load in (load_private_key, load_public_key):
        with pytest.raises(InputError, match="Cannot read the key"):
            load(tmp_path / "gone")
