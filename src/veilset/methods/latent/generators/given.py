"""A ready public generator that the settings name: its file, the release that it may be from, and its network."""

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from veilset.core.files import sha256_of
from veilset.models.generators.headers import generator_file, latent_size_in
from veilset.models.generators.sides import LatentsName
from veilset.release.inputs import InputRelease, inputs_at

if TYPE_CHECKING:
    from veilset.models.generators.style import LatentGenerator


class GivenGenerator:
    """Read once, and not before it is asked for: what a run compares with the vault is what it uses."""

    def __init__(self, place: str, *, is_of_others: bool) -> None:
        self._place, self._is_of_others = place, is_of_others

    @cached_property
    def network(self) -> "LatentGenerator":
        """The generator itself."""
        from veilset.models.generators.files import load_generator

        return load_generator(Path(self._place), sha256=self.sha256)

    @cached_property
    def sha256(self) -> str:
        """Of its file, taken once: the network is of the file that the certificate names."""
        return sha256_of(generator_file(Path(self._place)))

    @cached_property
    def inputs(self) -> tuple[InputRelease, ...]:
        """The release that it is from, verified, if it is from one."""
        return inputs_at(self._place, is_of_others=self._is_of_others)

    def latent_size(self, shape: tuple[int, int, int], latents: LatentsName) -> int:
        """The length of its latents, by its header; refused where it cannot make images of `shape`, or has no such."""
        return latent_size_in(Path(self._place), shape, latents)

    def certified(self) -> dict[str, Any]:
        """The file's name and SHA-256, for its path."""
        return {"generator": generator_file(Path(self._place)).name, "generator_sha256": self.sha256}
