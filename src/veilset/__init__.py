"""Veilset: publish a differentially private stand-in for an image dataset that you may not publish."""

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

from veilset._version import __version__
from veilset.core.registry import resolve
from veilset.training.threads import set_wait_policy

# Read by torch when it loads, so it has to be said before anything imports torch.
set_wait_policy()

if TYPE_CHECKING:
    from veilset.data.images import ImageSet
    from veilset.data.opening import open_images
    from veilset.pipeline.estimator import Method
    from veilset.pipeline.evaluate import Evaluation, evaluate
    from veilset.pipeline.job import Job
    from veilset.pipeline.job import draw_plan as plan
    from veilset.pipeline.run import synthesize
    from veilset.pipeline.train import train
    from veilset.privacy.account import Account
    from veilset.privacy.budget import Budget
    from veilset.privacy.vault import Vault
    from veilset.release.about import About
    from veilset.release.export import export_release as export
    from veilset.release.format import Release, load_release
    from veilset.release.verify import verify_release as verify

# Loaded on first use, so that `import veilset` and `veilset --help` stay quick.
_EXPORTS = {
    "About": "veilset.release.about:About",
    "ImageSet": "veilset.data.images:ImageSet",
    "Evaluation": "veilset.pipeline.evaluate:Evaluation",
    "Job": "veilset.pipeline.job:Job",
    "Method": "veilset.pipeline.estimator:Method",
    "evaluate": "veilset.pipeline.evaluate:evaluate",
    "export": "veilset.release.export:export_release",
    "plan": "veilset.pipeline.job:draw_plan",
    "Account": "veilset.privacy.account:Account",
    "Budget": "veilset.privacy.budget:Budget",
    "Release": "veilset.release.format:Release",
    "Vault": "veilset.privacy.vault:Vault",
    "load_release": "veilset.release.format:load_release",
    "open_images": "veilset.data.opening:open_images",
    "synthesize": "veilset.pipeline.run:synthesize",
    "train": "veilset.pipeline.train:train",
    "verify": "veilset.release.verify:verify_release",
}

__all__ = [
    "About",
    "Account",
    "Budget",
    "Evaluation",
    "ImageSet",
    "Job",
    "Method",
    "Release",
    "Vault",
    "__version__",
    "evaluate",
    "export",
    "load_release",
    "open_images",
    "plan",
    "synthesize",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in _EXPORTS:
        return resolve(_EXPORTS[name])
    raise AttributeError(f"module 'veilset' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


class _Package(ModuleType):
    """This package. `veilset.evaluate` is the function, also once the room of that name has been imported.

    Importing `veilset.evaluate.attacks` binds the name to the room, and a second call of `vs.evaluate` would call that.
    """

    @property
    def evaluate(self) -> Any:
        """Measure a release on real test images."""
        return resolve(_EXPORTS["evaluate"])

    @evaluate.setter
    def evaluate(self, room: ModuleType) -> None:
        """The room stays where the import system looks for it, in `sys.modules`."""


sys.modules[__name__].__class__ = _Package
