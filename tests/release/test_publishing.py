"""What must hold before a release goes out."""

import pytest

from veilset.core.errors import InputError, VerificationError
from veilset.release.about import About
from veilset.release.publishing import readiness, sign_release
from veilset.release.signing import generate_key
from veilset.release.verify import verify_release

ABOUT = About(title="Chests", licence="cc-by-4.0", publisher="A hospital", description="X-rays of 2020")


def failed(path, **options):
    return {check.name for check in readiness(path, **options).checks if not check.ok}


@pytest.fixture
def signed(make, tmp_path):
    key = tmp_path / "key"
    generate_key(key)
    return make.release().save(tmp_path / "release", key, about=ABOUT)


def test_a_signed_release_with_its_words_is_ready(signed, tmp_path):
    found = readiness(signed, key=tmp_path / "key.pub")
    assert found.ok
    assert found.about == ABOUT


def test_each_thing_that_lacks_is_named(make, signed, tmp_path):
    assert failed(make.saved()) == {"signed", "licence", "card"}
    assert failed(make.saved(), about=ABOUT) == {"signed"}
    (signed / ".DS_Store").write_text("x")
    assert failed(signed) == {"nothing else in the folder"}
    (signed / ".DS_Store").unlink()
    (tmp_path / "release.veilset-run").mkdir()
    assert failed(signed) == {"run finished"}
    (tmp_path / "release.veilset-run").rmdir()
    (signed / "report-internal.html").write_text("82 % on private images")
    assert "verified" in failed(signed)


def test_without_a_guarantee_nothing_goes_out(make):
    assert "guarantee" in failed(make.saved(noise="seeded"), about=ABOUT)


def test_a_key_of_another_is_noticed(signed, tmp_path):
    generate_key(tmp_path / "other")
    found = readiness(signed, key=tmp_path / "other.pub")
    assert not found.is_sound
    assert not found.ok


def test_a_release_can_be_signed_later(make, tmp_path):
    generate_key(tmp_path / "key")
    path = make.saved()
    signer = sign_release(path, tmp_path / "key")
    assert verify_release(path, tmp_path / "key.pub").signed_by == signer
    assert failed(path, about=ABOUT) == set()
    with pytest.raises(InputError, match="signed already"):
        sign_release(path, tmp_path / "key")


def test_what_does_not_verify_is_not_signed(make, tmp_path):
    generate_key(tmp_path / "key")
    path = make.saved()
    (path / "card.md").write_text("altered")
    with pytest.raises(VerificationError):
        sign_release(path, tmp_path / "key")
    assert not (path / "certificate.sig").exists()
