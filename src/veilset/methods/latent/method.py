"""Latents: find the private images inside a public generator, and release the Gaussian of where they are.

Bie, "Find your private dataset inside StyleGAN: leveraging public GANs for in-domain private image synthesis" (2020).
What we changed: the clip norm comes from public samples or from a paid quantile, not from private norms; mean and
covariance are one release of one clipped vector, for each class in its own block; latents are straightened and scaled
by public samples; what the inversion loses is undone by what it loses on public images; the noisy covariance is shrunk
towards the public one; samples start from those of the generator's own latents that fit. The preset `paper` does
without the last three. Without a ready generator, public images along their principal directions are one.

Privacy: unit as in the vault; relation add/remove-one; sensitivity sqrt(1 + b^2) of the sum (b counts; training/
latent_fit.py), the same of each round of an optional mixture (latent_mixture.py) and 1 of the optional histogram;
events one Gaussian each, un-subsampled; assumes that generator, search and coordinates come from public data, which
`fit` shows. docs/latent.md has the argument.
"""

import math
from collections.abc import Mapping
from functools import cached_property, partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from veilset.core.errors import InputError
from veilset.core.randomness import numpy_generator, torch_generator
from veilset.core.records import Records
from veilset.data.images import ImageSet
from veilset.methods.base import Context, Method, ReleasedModel, Samples
from veilset.methods.latent.config import LatentConfig
from veilset.methods.latent.generators.making import latent_size_of, make_generator
from veilset.methods.latent.mixture import MeanRows, Mixture
from veilset.methods.latent.moments import Discriminant, MomentRows, Seen, direction_count
from veilset.methods.latent.sampling import ClassLatents
from veilset.methods.latent.search import (
    InversionConfig,
    LatentSearch,
    public_answers,
    require_shape,
    search_named,
    train_inversion,
)
from veilset.methods.latent.space import LatentSpace
from veilset.models.descriptions import described
from veilset.models.generators.eigen import SHOWS_PUBLIC, EigenGenerator
from veilset.models.generators.files import (
    description_of,
    latent_size_in,
    load_generator,
    rebuild,
    save_generator,
)
from veilset.models.generators.style import LatentGenerator
from veilset.privacy.accounting import calibrate
from veilset.privacy.budget import Budget
from veilset.privacy.events import Event, Plan
from veilset.privacy.session import Session
from veilset.privacy.vault import Public, PublicFacts
from veilset.release.inputs import InputRelease, inputs_at, require_carried

_MOMENTS, _CLIP, _COMPONENTS = "latent moments", "latent clip norm", "latent components"
_COMPONENTS_SHARE = 0.2  # of the privacy for the rounds of a mixture; the covariance needs the rest
_COUNT_WEIGHT = 0.1
_OWN_DRAWS = 20_000
_EDGES = 64  # of the histogram for the clip norm
_WIDEST = 4.0  # its last edge, in longest public lengths
_AT_ONCE = 500
# What a resumed run must go on with, because its paid sum was made with it; and a training on its way.
_GENERATOR, _SPACE, _NETWORK = "latent-generator.safetensors", "latent-space.pt", "latent-inversion.pt"
_CHECKPOINT = "latent-generator.pt"


class Latent(Method):
    """Private Gaussians in the latent space of a public generator."""

    name = "latent"
    title = "Private Gaussians inside a public generator"
    paper = "Bie, Find your private dataset inside StyleGAN, 2020"
    claim_of_paper = (
        "The paper's claim holds but for the clip norm, which is a percentile of private norms, as its author says."
    )
    guarantee = "dp"
    needs_public = True
    releases = ("images", "labels", "soft_labels", "generator")
    config_type = LatentConfig
    config: LatentConfig
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "default": {},
        "fast": {"generator_kind": "style", "generator_preset": "fast", "inversion_steps": 300},
        "paper": {
            "generator_kind": "style",
            "search": "opt_a",
            "repair": "replace",
            "restore": "none",
            "draws": "gaussian",
        },
    }

    def requires_public(self) -> bool:
        """Only to train a generator."""
        return not self.config.generator

    def public_pictures(self) -> Records | None:
        """Those that a given eigen generator holds."""
        if not self.config.generator or not isinstance(self._given, EigenGenerator):
            return None
        return ImageSet(self._given.kept_pictures(), np.zeros(self._given.pictures, dtype=np.int64))

    @cached_property
    def _given(self) -> LatentGenerator:
        """The generator of the settings, read once: what a run compares with the vault is what it uses."""
        return load_generator(Path(self.config.generator))

    def inputs(self) -> tuple[InputRelease, ...]:
        """The release that a given generator is from, if it is."""
        return self._inputs

    @cached_property
    def _inputs(self) -> tuple[InputRelease, ...]:
        return inputs_at(self.config.generator, is_of_others=self.config.generator_is_of_others)

    def plan(self, facts: PublicFacts, budget: Budget) -> Plan:
        """One Gaussian for the moments, each round of a mixture, and the histogram for a private clip norm."""
        latent_size = self._check_form(facts)
        config = self.config
        shares = [(_CLIP, config.clip_share)] if config.clip == "private" else []
        left = 1 - sum(share for _, share in shares)
        rounds = config.rounds if config.components > 1 else 0
        moments = left * (1 - _COMPONENTS_SHARE) if rounds else left
        shares += [(_MOMENTS, moments), *[(_COMPONENTS, left * _COMPONENTS_SHARE / max(rounds, 1))] * rounds]

        def events(noise: float) -> list[Event]:
            # Full Gaussian sums of noise s/sqrt(q), with q adding up to 1, cost exactly what one of noise s costs.
            return [Event(label=label, noise_multiplier=noise / math.sqrt(share)) for label, share in shares]

        noise = calibrate(budget, events)
        size = self._directions(facts, noise / math.sqrt(moments), latent_size)
        return Plan(budget=budget, events=tuple(events(noise)), facts={"directions estimated": size, "of": latent_size})

    def fit(self, session: Session, public: Public | None, context: Context) -> None:
        """Find latents inside the sum, and read Gaussians off its noisy result."""
        facts, noise = session.facts, session.planned(_MOMENTS).noise_multiplier
        require_carried(self.inputs(), session.plan)
        # 0. The public generator, its coordinates, and a search that was trained on its samples.
        generator = self._generator_for(facts, public, context)
        space = LatentSpace.of(generator, context.seed, _kept(context, _SPACE))
        search = self._search_in(space, context)
        # An eigen generator of few public images has fewer directions than the plan knew.
        size = min(self._directions(facts, noise, self._check_form(facts)), space.size)
        found = public_answers(search, public, context.seed)

        # 1. The clip norm, from public samples or by a paid quantile.
        clip_norm = float(found[:, :size].norm(dim=1).quantile(self.config.clip_quantile))
        if self.config.clip == "private":
            longest = float(found[:, :size].norm(dim=1).max())
            clip_norm = session.quantile(
                lambda images, labels: search(images)[:, :size].norm(dim=1, keepdim=True),  # noqa: ARG005
                self.config.clip_quantile,
                [_WIDEST * longest * step / _EDGES for step in range(_EDGES + 1)],
                label=_CLIP,
                noise_multiplier=session.planned(_CLIP).noise_multiplier,
                batch=search.batch,
            )

        # 2. Steps 1 and 2 of the paper in one sum: the latent of each image, its clipped moments, noise.
        by_class = facts.classes > 1
        rows = MomentRows(size=size, clip_norm=clip_norm, count_weight=_COUNT_WEIGHT if by_class else 0.0)
        sums = session.gaussian_sum(
            lambda images, labels: rows(search(images)),  # noqa: ARG005 (the session places rows by class)
            label=_MOMENTS,
            clip_norm=rows.sensitivity,
            noise_multiplier=noise,
            by_class=by_class,
            batch=search.batch,
        )
        moments = rows.read(sums if by_class else sums[None], facts.units, noise)
        seen = Seen.of(found, rows)
        means = seen.mean + moments.shifts_from(seen, self.config.repair)
        covariances = seen.covariance + moments.deviations_from(seen, self.config.repair)
        coins = torch_generator(context.seed, "latent components")
        mixture = Mixture.of(means, covariances, self.config.components, coins)
        if self.config.components > 1:
            mixture = self._moved(mixture, session, search, clip_norm)

        # 3. The populations behind what the search finds; everything from here on is post-processing.
        shares = moments.counts / moments.counts.sum()
        if self.config.balanced:
            shares = torch.full_like(shares, 1 / facts.classes)
        shares = (shares[:, None] * mixture.shares).flatten()
        means = mixture.means.flatten(0, 1)
        covariances = mixture.covariances.repeat_interleave(self.config.components, dim=0)
        self._discriminant = Discriminant.of(shares, means, covariances)
        means, covariances = seen.undone(means, covariances, self.config.restore)
        self._space, self._search, self._size, self._clip_norm = space, search, size, clip_norm
        normal, prefer = self.config.draws == "gaussian", self.config.draws == "chosen"
        draws = None if normal else self._source(_OWN_DRAWS, torch_generator(context.seed, "latent own draws"))
        self._latents = ClassLatents.of(shares, means, covariances, draws, prefer=prefer)

    def sample(self, count: int, seed: int = 0) -> Samples:
        """4. Draw latents of each component, show their images, and label what is stored."""
        if not hasattr(self, "_latents"):
            raise self.not_fitted()
        shares = self._latents.shares.double().numpy()
        drawn = numpy_generator(seed, "latent components").choice(len(shares), size=count, p=shares / shares.sum())
        coins = torch_generator(seed, "latent samples")
        images, soft = [], []
        for start in range(0, count, _AT_ONCE):
            chosen = torch.from_numpy(drawn[start : start + _AT_ONCE])
            v = self._latents.draw(partial(self._source, coins=coins), chosen, coins, self.config.truncation)
            pictures = self._space.stored(v.to(self._space.centre.device)).permute(0, 2, 3, 1)
            # The discriminant was fitted to what the search finds, so it judges that; a descent finds about v itself.
            answers = self._search(pictures) if self._search.config.steps == 0 else v
            images.append(pictures)
            likely = self._discriminant.probabilities(answers[:, : self._size])
            soft.append(likely.reshape(len(chosen), -1, self.config.components).sum(dim=2))
        soft_labels = torch.cat(soft).float().numpy()
        return Samples(
            images=np.ascontiguousarray(torch.cat(images).numpy()),
            labels=soft_labels.argmax(axis=1).astype(np.int64),
            soft_labels=soft_labels,
        )

    def warnings(self) -> list[str]:
        """That the samples show public images, where the generator is made of them."""
        return [SHOWS_PUBLIC] if isinstance(self._space.generator, EigenGenerator) else []

    def models(self) -> dict[str, ReleasedModel]:
        """The public generator with the private latent Gaussians; `rebuild_sampler` draws from them."""
        if not hasattr(self, "_latents"):
            raise self.not_fitted()
        space = self._space
        weights = {f"generator.{name}": value for name, value in space.generator.state_dict().items()}
        weights |= {f"space.{name}": getattr(space, name) for name in ("centre", "directions", "deviations")}
        weights |= {f"latents.{name}": value for name, value in vars(self._latents).items()}
        description = described(
            "latent_sampler",
            generator=description_of(space.generator),
            directions=self._size,
            components=self.config.components,
            draws=self.config.draws,
            clip_norm=self._clip_norm,
        )
        return {"generator": ReleasedModel(weights=weights, description=description)}

    def _source(self, count: int, coins: torch.Generator) -> Tensor:
        """What samples are moved from."""
        if self.config.draws == "gaussian":
            return torch.randn(count, self._space.size, generator=coins)
        return self._space.draw(count, coins).cpu()

    def _moved(self, mixture: Mixture, session: Session, search: LatentSearch, clip_norm: float) -> Mixture:
        """2b. Expectation-maximisation: each round sums what the components, already known, share out."""
        noise, by_class = session.planned(_COMPONENTS).noise_multiplier, session.facts.classes > 1
        rows = MeanRows(size=mixture.means.shape[2], clip_norm=clip_norm, count_weight=_COUNT_WEIGHT)
        for _ in range(self.config.rounds):
            sums = session.gaussian_sum(
                partial(mixture.rows_of, rows, search),
                label=_COMPONENTS,
                clip_norm=rows.sensitivity,
                noise_multiplier=noise,
                by_class=by_class,
                batch=search.batch,
            )
            mixture = mixture.moved(sums if by_class else sums[None], rows, noise)
        return mixture

    def _check_form(self, facts: PublicFacts) -> int:
        """Refuse images that the generator cannot make; the length of its latents."""
        height, width, _ = facts.shape
        if height != width:
            raise InputError(f"Expected square images, got {height}x{width}. Pass --size 32.")
        if not self.config.generator:
            return latent_size_of(self.config.generator_kind, self.config.generator_preset, facts.shape)
        return latent_size_in(Path(self.config.generator), facts.shape)

    def _directions(self, facts: PublicFacts, noise: float, latent_size: int) -> int:
        each = facts.units / facts.classes
        if not self.config.dimensions:
            return direction_count(latent_size, each, noise)
        if self.config.dimensions > min(latent_size, each):
            raise InputError(
                f"Expected dimensions of at most {min(latent_size, int(each))} for latents of {latent_size} numbers "
                f"and about {each:.0f} units a class, got {self.config.dimensions}. 0 chooses by a rule."
            )
        return self.config.dimensions

    def _generator_for(self, facts: PublicFacts, public: Records | None, context: Context) -> LatentGenerator:
        if self.config.generator:
            return self._given.to(context.device)
        kept = _kept(context, _GENERATOR)
        if kept is not None and kept.exists():
            return load_generator(kept).to(context.device)
        if public is None:
            raise InputError("Expected public images or a generator. Pass --public or --set generator=FILE.")
        require_shape(public, facts.shape)
        generator = make_generator(
            public,
            self.config.generator_kind,
            preset=self.config.generator_preset,
            steps=self.config.generator_steps,
            mirrored=self.config.mirrored,
            seed=context.seed,
            device=context.device,
            checkpoint=_kept(context, _CHECKPOINT),
            progress=context.progress,
        )
        if kept is None:
            return generator
        save_generator(generator, kept)
        return load_generator(kept).to(context.device)

    def _search_in(self, space: LatentSpace, context: Context) -> LatentSearch:
        config = search_named(self.config.search)
        if config.start == "average":
            return LatentSearch(space, None, config, self.config.distance)
        network = train_inversion(
            space,
            InversionConfig(steps=self.config.inversion_steps),
            seed=context.seed,
            checkpoint=_kept(context, _NETWORK),
            progress=context.progress,
        )
        return LatentSearch(space, network, config, self.config.distance)


def _kept(context: Context, name: str) -> Path | None:
    return None if context.workspace is None else context.workspace / name


def rebuild_sampler(description: Mapping[str, Any], weights: Mapping[str, Tensor]) -> tuple[LatentSpace, ClassLatents]:
    """The generator's coordinates and the Gaussians of a release; Gaussian i is of class i // components.

    `space.stored(latents.draw(source, chosen, coins))`, with a source of `space.draw` or, where the description says
    draws "gaussian", of normal rows.
    """

    def part(prefix: str) -> dict[str, Tensor]:
        return {name.removeprefix(prefix): value for name, value in weights.items() if name.startswith(prefix)}

    try:
        generator = rebuild(description["generator"], part("generator."))
        return LatentSpace(generator=generator, **part("space.")), ClassLatents(**part("latents."))
    except (KeyError, TypeError) as error:
        raise InputError(f"Not a release of latent: {type(error).__name__}: {error}") from error
