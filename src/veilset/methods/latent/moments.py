"""The private fit: one noisy sum of first and second moments, and the Gaussians that follow from it (Section 4.2).

A row is psi(u) = (alpha u, beta svec(u u'), delta t, gamma e) with u = clip(v, M) / M, t and e the coordinates and the
strengths of tails.py, each no longer than 1, and alpha^2 + beta^2 + delta^2 + gamma^2 = 1, and where there are several
classes one constant that counts; see docs/methods/latent.md. After the sum all is post-processing: means, and
covariances that are shrunk towards the public one. Samples are drawn in sampling.py.

Privacy: unit as in the vault; relation add/remove-one; sensitivity `MomentRows.sensitivity` = sqrt(1 + b^2), b the
constant; event one Gaussian; assumes that v depends on its own image alone.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from veilset.methods.latent.choices import Repair, Restore
from veilset.methods.latent.tails import LEAST_SEEN, TailMeans, TailRows, clipped, scaled
from veilset.methods.shared.class_counts import sensible_counts
from veilset.methods.shared.findings import counts_of_kinds, noise_of_kinds

_TAIL_WEIGHT = 0.1  # gamma: half a per cent more noise on all the rest
_SMALLEST_VARIANCE = 0.02  # of a direction that is sampled, against 1 of the public population


@dataclass(frozen=True, kw_only=True)
class MomentRows:
    """How coordinates become the rows of the one sum.

    Args:
        size: k, the directions that are estimated: the first of the coordinates.
        clip_norm: M, from public samples or from a paid quantile.
        count_weight: b, the constant that counts; 0 with one class, whose count is public.
        mean_share: alpha^2 + delta^2 where somebody chose it. Two releases of noise s / alpha for u and s / beta for
            svec(u u') cost what this one of noise s costs and have the same noise, so the paper's two are one with a
            share.
        tail_means: the class means of directions after these; None leaves them at the public ones, and delta is 0.
        tail: the strengths of the directions after these; None leaves them at the public ones, and gamma is 0.
    """

    size: int
    clip_norm: float
    count_weight: float
    mean_share: float | None = None
    tail_means: TailMeans | None = None
    tail: TailRows | None = None

    @property
    def tail_weight(self) -> float:
        """gamma."""
        return 0.0 if self.tail is None else _TAIL_WEIGHT

    @property
    def mean_weight(self) -> float:
        """alpha. Unless a share is given, the expected divergence from the true Gaussian is least: 2 / (k + 2).

        With noise s a number, the mean costs k^2 s^2 / 2 alpha^2, the covariance k^4 s^2 / 8 beta^2 and l further means
        cost l^2 s^2 / 2 delta^2 (all in public units, where M^2 is about k). The squares are then as k, k^2 / 2 and l.
        """
        return math.sqrt(self._share_of_means * self.size / self._means * (1 - self.tail_weight**2))

    @property
    def second_weight(self) -> float:
        """beta."""
        return math.sqrt((1 - self._share_of_means) * (1 - self.tail_weight**2))

    @property
    def tail_mean_weight(self) -> float:
        """delta."""
        return math.sqrt(self._share_of_means * (1 - self.size / self._means) * (1 - self.tail_weight**2))

    @property
    def _share_of_means(self) -> float:
        """Of the squares of alpha and delta in those of alpha, beta and delta together."""
        return self._means / (self._means + self.size**2 / 2) if self.mean_share is None else self.mean_share

    @property
    def _means(self) -> int:
        """Directions whose class means are summed."""
        return self.size + (0 if self.tail_means is None else self.tail_means.size)

    @property
    def sensitivity(self) -> float:
        """The most that one unit moves the whole sum."""
        return math.hypot(1, self.count_weight)

    def __call__(self, v: Tensor) -> Tensor:
        """Rows (b, k + k(k+1)/2 [+ l] [+ bands] [+ 1]) of coordinates (b, d), in float64."""
        u = clipped(v[:, : self.size], self.clip_norm) / self.clip_norm
        parts = [self.mean_weight * u, self.second_weight * svec(u)]
        if self.tail_means is not None:
            parts.append(self.tail_mean_weight * self.tail_means(v))
        if self.tail is not None:
            parts.append(self.tail_weight * self.tail(v))
        if self.count_weight:
            parts.append(torch.full_like(u[:, :1], self.count_weight))
        return torch.cat(parts, dim=1)

    def tail_as_found(self, shifts: Tensor, scales: Tensor) -> tuple[Tensor, Tensor] | tuple[()]:
        """Means and variances (classes, l) of the tail in what a search finds, of shifts and scales of the tail."""
        tail = self.tail_means
        if tail is None:
            return ()
        return tail.public + shifts, tail.variances * scales[:, : tail.size].square()

    def tail_undone(self, shifts: Tensor, scales: Tensor, restore: Restore) -> tuple[Tensor | None, Tensor]:
        """Means and scales (classes, d - k) of the populations behind what the search shows of the tail."""
        if self.tail_means is None:
            return None, scales
        means = self.tail_means.undone(shifts, restore)
        if self.tail is not None:
            scales = self.tail.around(scales, means)
        return functional.pad(means, (0, self.tail_means.left)), scales

    def read(
        self,
        sums: Tensor,
        units: int,
        noise_multiplier: float,
        *,
        findings: bool = False,
        repair: Repair = "linear",
    ) -> "Moments":
        """What the noisy sums (classes, width) say; `noise_multiplier` is that of their event.

        Of findings the classes are the kinds of methods/shared/findings.py, and the second half of them is a difference
        of two sums, with the noise of both.
        """
        counts = torch.full((1,), float(units), dtype=torch.float64)
        if self.count_weight:
            # The public total keeps noisy counts within reason, as in the other methods.
            noisy = sums[:, -1] / self.count_weight
            counts = counts_of_kinds(noisy, units) if findings else sensible_counts(noisy, units)
        # What is not there has no numbers, and the count comes after all.
        bands = 0 if self.tail is None else self.tail.bands
        widths = [self.size, self.size * (self.size + 1) // 2, self._means - self.size, bands]
        first, second, tail_means, strengths = torch.split(sums[:, : sum(widths)] / counts[:, None], widths, dim=1)
        means = self.clip_norm * first / self.mean_weight
        seconds = self.clip_norm**2 * smat(second, self.size) / self.second_weight
        noise = noise_multiplier * self.sensitivity / counts
        if findings:
            noise = noise * noise_of_kinds(len(counts))
        tails = torch.ones(len(counts), 1, dtype=torch.float64)
        if self.tail is not None:
            tails = self.tail.scales(strengths / self.tail_weight, noise / self.tail_weight)
        tail_shifts = tail_means
        if self.tail_means is not None:
            weight = self.tail_mean_weight
            tail_shifts = self.tail_means.shifts(tail_means / weight, noise / weight, counts, repair)
        spread = noise * self.clip_norm
        return Moments(
            counts=counts,
            means=means,
            covariances=seconds - means[:, :, None] * means[:, None, :],
            mean_noises=spread / self.mean_weight,
            noises=spread * self.clip_norm / self.second_weight / math.sqrt(2),
            tail_shifts=tail_shifts,
            tails=tails,
        )


@dataclass(frozen=True, kw_only=True)
class Moments:
    """Noisy moments of each class, in float64."""

    counts: Tensor  # (classes,)
    means: Tensor  # (classes, k)
    covariances: Tensor  # (classes, k, k), symmetric, perhaps not positive
    mean_noises: Tensor  # (classes,): deviation of the privacy noise on a number of the mean
    noises: Tensor  # (classes,): and on an entry of the covariance off the diagonal
    tail_shifts: Tensor  # (classes, l): by how much means of the tail differ from the public ones, repaired
    tails: Tensor  # (classes, d - k), or (classes, 1) for all alike: stretch public coordinates to the private strength

    # Finite samples move a mean like noise of variance v/m and an entry of a covariance like v^2/m, where variances are
    # about v, that of the public.

    def shifts_from(self, public: "Seen", repair: Repair) -> Tensor:
        """Means less the public one, (classes, k), scaled by the share of them that noise does not explain."""
        shifts = self.means - public.mean
        if repair == "replace":
            return shifts
        expected = (self.mean_noises.square() + public.variance / self.counts) * shifts.shape[1]
        return torch.stack([scaled(d, e) for d, e in zip(shifts, expected.tolist(), strict=True)])

    def deviations_from(self, public: "Seen", repair: Repair) -> Tensor:
        """Covariances less the public one, (classes, k, k), with as little noise as `repair` manages to leave."""
        deviations = self.covariances - public.covariance
        spreads = (self.noises.square() + public.variance**2 / self.counts).sqrt()
        return torch.stack([_repaired(d, s, repair) for d, s in zip(deviations, spreads.tolist(), strict=True)])


def svec(u: Tensor) -> Tensor:
    """The upper half of u u' (b, k(k+1)/2), off-diagonal entries times sqrt 2: its length is that of u squared."""
    rows, columns = torch.triu_indices(u.shape[1], u.shape[1])
    return u[:, rows] * u[:, columns] * torch.where(rows == columns, 1.0, math.sqrt(2)).to(u)


def smat(halves: Tensor, size: int) -> Tensor:
    """The symmetric matrices (b, k, k) whose `svec` are the rows of `halves`."""
    rows, columns = torch.triu_indices(size, size)
    values = halves / torch.where(rows == columns, 1.0, math.sqrt(2)).to(halves)
    matrices = halves.new_zeros(len(halves), size, size)
    matrices[:, rows, columns] = values
    matrices[:, columns, rows] = values
    return matrices


def _repaired(deviation: Tensor, spread: float, repair: Repair) -> Tensor:
    """A noisy deviation from the public covariance, made likelier.

    replace: as it is; the negative eigenvalues of the covariance are replaced later, as in the paper.
    linear: scaled by the share of its energy that noise does not explain (Ledoit and Wolf 2004, the noise known).
    spiked: eigenvalues y become sqrt(y^2 - 4 s^2 k), or 0 below that edge: the best for few strong directions in
        symmetric noise of deviation s (Donoho, Gavish and Johnstone 2018).
    """
    if repair == "replace":
        return deviation
    size = len(deviation)
    if repair == "linear":
        return scaled(deviation, spread**2 * size * (size + 1))
    values, vectors = torch.linalg.eigh(deviation)
    shrunk = values.sign() * (values.square() - 4 * spread**2 * size).clamp(min=0).sqrt()
    return _recomposed(shrunk, vectors)


def positive(matrix: Tensor, least: float = _SMALLEST_VARIANCE) -> Tensor:
    """The nearest symmetric matrix without eigenvalues below `least`."""
    values, vectors = torch.linalg.eigh(matrix)
    return _recomposed(values.clamp(min=least), vectors)


def symmetric_root(matrix: Tensor) -> Tensor:
    """The positive square root of a positive matrix."""
    values, vectors = torch.linalg.eigh(matrix)
    return _recomposed(values.clamp(min=0).sqrt(), vectors)


def _recomposed(values: Tensor, vectors: Tensor) -> Tensor:
    """The symmetric matrix of these eigenvalues and eigenvectors."""
    return (vectors * values) @ vectors.T


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What a search makes of the public population, whose coordinates have mean 0 and covariance 1."""

    mean: Tensor  # (k,)
    covariance: Tensor  # (k, k)

    @classmethod
    def of(cls, found: Tensor, rows: MomentRows) -> "Seen":
        """By coordinates (b, d) that the search found for public images, clipped as private ones are."""
        v = clipped(found[:, : rows.size], rows.clip_norm)
        return cls(mean=v.mean(dim=0), covariance=torch.cov(v.T).reshape(rows.size, rows.size))

    @property
    def variance(self) -> float:
        """That of a usual direction."""
        return float(self.covariance.diagonal().mean())

    def undone(self, means: Tensor, covariances: Tensor, restore: Restore) -> tuple[Tensor, Tensor]:
        """Means and covariances of the populations behind those that the search shows.

        An inversion network answers with the expected v, which is pulled towards the public mean. If v is normal and
        what the network sees of it is linear, its answers have covariance C for public images, a shift d of the
        population shows as C d, and a deviation D as C D C. "shift" undoes both, but not where next to nothing is seen;
        "mean" undoes the first, "spread" neither: they only give public images their covariance 1 back.
        """
        if restore == "none":
            return means, covariances
        shifts, deviations = means - self.mean, covariances - self.covariance
        inverse = torch.linalg.inv(positive(self.covariance, LEAST_SEEN))
        if restore in ("mean", "shift"):
            shifts = shifts @ inverse
        if restore == "shift":
            deviations = inverse @ deviations @ inverse
        return shifts, deviations + torch.eye(shifts.shape[1], dtype=shifts.dtype)
