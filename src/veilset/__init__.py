"""Veilset: publish a differentially private stand-in for an image dataset that you may not publish."""

from typing import TYPE_CHECKING, Any

from veilset._version import __version__
from veilset.core.registry import resolve
from veilset.training.threads import set_wait_policy

# Read by torch when it loads, so it has to be said before anything imports torch.
set_wait_policy()

if TYPE_CHECKING:
    from veilset.data.opening import open_images
    from veilset.pipeline.run import synthesize
    from veilset.privacy.account import Account
    from veilset.privacy.budget import Budget
    from veilset.privacy.vault import Vault
    from veilset.release.format import Release, load_release
    from veilset.release.verify import verify_release as verify

# Loaded on first use, so that `import veilset` and `veilset --help` stay quick.
_EXPORTS = {
    "Account": "veilset.privacy.account:Account",
    "Budget": "veilset.privacy.budget:Budget",
    "Release": "veilset.release.format:Release",
    "Vault": "veilset.privacy.vault:Vault",
    "load_release": "veilset.release.format:load_release",
    "open_images": "veilset.data.opening:open_images",
    "synthesize": "veilset.pipeline.run:synthesize",
    "verify": "veilset.release.verify:verify_release",
}

__all__ = [
    "Account",
    "Budget",
    "Release",
    "Vault",
    "__version__",
    "load_release",
    "open_images",
    "synthesize",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return resolve(_EXPORTS[name])
    raise AttributeError(f"module 'veilset' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
