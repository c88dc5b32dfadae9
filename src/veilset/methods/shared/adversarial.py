"""What the GANs share: a finished generator, its images and what is said of them."""

from abc import ABC

from veilset.methods.base import Method, ReleasedModel, Samples
from veilset.methods.shared.fitted_generator import FittedGenerator
from veilset.models.generators.conditional import description_of


class AdversarialMethod(Method, ABC):
    """A method whose `fit` leaves a `FittedGenerator`."""

    _fitted: FittedGenerator

    def sample(self, count: int, seed: int = 0) -> Samples:
        """Draw images, every class alike often; the classifier, where there is one, labels what it sees on them."""
        images, labels, soft_labels = self._generated().draw(count, seed)
        return Samples(images=images, labels=labels, soft_labels=soft_labels)

    def models(self) -> dict[str, ReleasedModel]:
        """The generator, with what rebuilds it and what it is fed."""
        fitted = self._generated()
        description = description_of(fitted.generator) | {"latent": "bernoulli" if fitted.bernoulli else "gaussian"}
        return {"generator": ReleasedModel(weights=fitted.generator.state_dict(), description=description)}

    def warnings(self) -> list[str]:
        """Collapse, classes that look alike and lost classes, seen on generated images."""
        return self._generated().warnings()

    def _generated(self) -> FittedGenerator:
        if not hasattr(self, "_fitted"):
            raise self.not_fitted()
        return self._fitted
