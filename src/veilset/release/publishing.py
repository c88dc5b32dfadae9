"""The last look at a release before it leaves the house."""

from dataclasses import dataclass
from pathlib import Path

from veilset.core.errors import InputError
from veilset.core.files import write_whole
from veilset.release import layout
from veilset.release.about import About
from veilset.release.format import read_about
from veilset.release.signing import fingerprint, load_private_key, signature_file
from veilset.release.verify import verify_release


@dataclass(frozen=True, kw_only=True)
class Check:
    """One thing that must hold, whether it does, and what to do where it does not."""

    name: str
    ok: bool
    text: str


@dataclass(frozen=True, kw_only=True)
class Readiness:
    """All checks of a release, and what its publisher says of it."""

    checks: tuple[Check, ...]
    about: About
    is_sound: bool  # whole, and its claim holds; anything else can be mended by words

    @property
    def ok(self) -> bool:
        """Whether the release can go out."""
        return all(check.ok for check in self.checks)


def readiness(path: Path, *, key: Path | None = None, about: About | None = None) -> Readiness:
    """Look at a release as a careful publisher would; `about` replaces what the release itself says."""
    layout.require_release(path)
    found = verify_release(path, key)
    about = (read_about(path) if found.ok else About()) if about is None else about
    beside = layout.foreign_files(path)
    unfinished = path.with_name(f"{path.name}.veilset-run")
    missing = about.missing()
    checks = [
        _check("verified", found.ok, "every file and the ledger fit", " ".join(found.problems)),
        _check(
            "guarantee",
            found.guarantee == "dp",
            f"epsilon {found.epsilon:.4g} at delta {found.delta:g} for each {found.unit}"
            if found.epsilon is not None and found.delta is not None
            else "",
            "it has none; what has no guarantee is not to be published as private data",
        ),
        _check(
            "signed",
            found.signed_by is not None,
            f"by {found.signed_by}",
            "it is not; make a key with `veilset keygen KEY` and sign it with `veilset sign RELEASE --key KEY`",
        ),
        _check(
            "nothing else in the folder",
            not beside,
            "only files of the release",
            f"{', '.join(beside)} would go out with it; move it away",
        ),
        _check(
            "run finished",
            not unfinished.exists(),
            "no folder of an unfinished run beside it",
            f"{unfinished} holds an unfinished run; finish it with --resume, or remove it",
        ),
        _check(
            "licence", about.licence is not None, str(about.licence), "none is chosen; pass --license, e.g. cc-by-4.0"
        ),
        _check("card", not missing, "complete", f"it lacks {'; '.join(missing)}"),
    ]
    return Readiness(checks=tuple(checks), about=about, is_sound=found.ok)


def sign_release(path: Path, key_file: Path) -> str:
    """Sign a release that nobody has signed yet, once it is verified; the fingerprint of the key."""
    key = load_private_key(key_file)
    layout.require_release(path)
    if (path / layout.SIGNATURE).exists():
        raise InputError(f"{path} is signed already. Remove {layout.SIGNATURE} first, if it is yours to sign.")
    content = (path / layout.CERTIFICATE).read_bytes()
    verify_release(path).raise_if_failed()
    write_whole(path / layout.SIGNATURE, signature_file(content, key))
    return fingerprint(key.public_key().public_bytes_raw())


def _check(name: str, ok: bool, good: str, bad: str) -> Check:
    return Check(name=name, ok=ok, text=good if ok else bad)
