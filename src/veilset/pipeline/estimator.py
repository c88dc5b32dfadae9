"""`Method(...).fit(images, labels)`: a release in two calls, as scikit-learn's estimators are used.

It opens the same vault, draws the same plan, and charges the same account as `synthesize` and the command line.
"""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from veilset.core.errors import InputError
from veilset.core.progress import SILENT, Progress
from veilset.pipeline.job import Job, draw_plan, method_of
from veilset.pipeline.public_images import PublicSource
from veilset.pipeline.run import synthesize_job
from veilset.privacy.account import Account
from veilset.privacy.budget import Budget
from veilset.privacy.events import Plan
from veilset.privacy.vault import Vault
from veilset.release.format import Release

_SOME_DELTA = 1e-6  # that any number of records could have


class Method:
    """A method with its budget and settings, to be fitted to private images.

    Args:
        name: one of `veilset methods`.
        epsilon: how much may be spent; 1 is strong, 10 is weak.
        delta: the chance that the bound fails; None is a safe default for the number of records.
        preset: fast, default, or another that the method has.
        settings: settings of the method by name; `veilset methods NAME` lists them.
        samples: how many images to release; None is enough for a student to learn from.
        seed: reproduces everything but the privacy noise.
        device: cpu, cuda or cuda:N.

    Everything is checked when it is made, before any data is there:

    >>> import veilset as vs
    >>> method = vs.Method("merf", epsilon=1.0, samples=60)
    >>> method
    Method('merf', epsilon=1.0, samples=60)
    >>> vs.Method("merv", epsilon=1.0)
    Traceback (most recent call last):
    veilset.core.errors.InputError: Unknown method 'merv'. Did you mean merf? Available: ...

    `fit` gives back a release:

    >>> digits = vs.open_images("builtin:digits:train")
    >>> release = vs.Method("merf", epsilon=1.0, preset="smoke", samples=60).fit(digits)
    >>> release
    Release(60 images 16x16x1, guarantee dp, epsilon 0.9999)
    """

    def __init__(
        self,
        name: str,
        *,
        epsilon: float,
        delta: float | None = None,
        preset: str = "default",
        settings: Mapping[str, Any] | None = None,
        samples: int | None = None,
        seed: int = 0,
        device: str = "cpu",
    ) -> None:
        self.name, self.epsilon, self.delta = name, epsilon, delta
        self.preset, self.settings = preset, settings
        self.samples, self.seed, self.device = samples, seed, device
        method_of(self._job())
        Budget(epsilon, _SOME_DELTA if delta is None else delta)

    def fit(
        self,
        images: Any,
        labels: Any = None,
        *,
        groups: Any = None,
        public: PublicSource | None = None,
        account: Account | None = None,
        progress: Progress = SILENT,
    ) -> Release:
        """Spend the budget on private images, once, and give back the release; save it with `release.save(path)`.

        Args:
            images: an array (N, H, W[, C]) with `labels` 0..K-1, a torch or Hugging Face dataset, the path of images,
                what `open_images` gives, or a `Vault`.
            labels: of an array of images, and of nothing else.
            groups: to whom each image belongs: then a person is protected, not an image. For a path or a Hugging Face
                dataset the name of a column.
            public: public images that help: an array (N, H, W[, C]), a path, or what `open_images` gives.
            account: where it is paid from; None is the account that is kept for this data.
            progress: where work is reported.
        """
        vault = vault_of(images, labels, groups)
        return synthesize_job(vault, self._job(), public=public, account=account, progress=progress)

    def plan(self, vault: Vault) -> Plan:
        """What `fit` would spend on this vault. Costs nothing and reads no record."""
        return draw_plan(self._job(), vault.facts)

    def get_params(self, deep: bool = True) -> dict[str, Any]:  # noqa: ARG002  # as scikit-learn asks
        """The arguments that it was made with."""
        return {name: getattr(self, name) for name in list(inspect.signature(type(self)).parameters)}

    def set_params(self, **params: Any) -> Self:
        """Change arguments; all are checked again."""
        known = self.get_params()
        unknown = [name for name in params if name not in known]
        if unknown:
            raise InputError(f"Method has no argument {unknown[0]!r}. It has: {', '.join(known)}.")
        type(self)(**(known | params))
        for name, value in params.items():
            setattr(self, name, value)
        return self

    def __repr__(self) -> str:
        defaults = {name: given.default for name, given in inspect.signature(type(self)).parameters.items()}
        chosen = {
            name: value for name, value in self.get_params().items() if name != "name" and value != defaults[name]
        }
        return f"Method({self.name!r}, {', '.join(f'{name}={value!r}' for name, value in chosen.items())})"

    def _job(self) -> Job:
        return Job(
            method=self.name,
            epsilon=self.epsilon,
            delta=self.delta,
            preset=self.preset,
            settings=self.settings or {},
            samples=self.samples,
            seed=self.seed,
            device=self.device,
        )


def vault_of(images: Any, labels: Any = None, groups: Any = None) -> Vault:
    """A vault of whatever people have images in."""
    if labels is not None:
        if isinstance(images, Vault | str | Path):
            raise InputError(f"A {type(images).__name__} has labels of its own. Leave labels out.")
        return Vault.from_arrays(images, labels, groups=groups)
    if isinstance(images, Vault):
        if groups is not None:
            raise InputError("A vault has its groups already. Name them where it is opened, and leave them out here.")
        return images
    if isinstance(images, str | Path):
        return Vault.open(str(images), groups=groups)
    if hasattr(images, "read") and hasattr(images, "class_names"):  # records, as from open_images
        if groups is not None:
            raise InputError("These images have groups already, or none. Name them in open_images(..., groups=...).")
        return Vault(images, unit="record" if images.groups is None else "group")
    if type(images).__module__.partition(".")[0] in ("numpy", "torch") and hasattr(images, "dtype"):
        raise InputError("An array of images needs labels: fit(images, labels).")
    return Vault.from_dataset(images, groups=groups)
