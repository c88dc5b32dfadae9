"""Models of disjoint shards that nobody sees: what they answer together leaves only as a noisy sum.

PATE (Papernot et al. 2017, 2018) and its kin train one model on each shard, without noise, and release noisy sums of
the models' answers. The models therefore live here, below everything that could keep them, and each answer is forced
into a set of known size before it is added.

A model is a function of its own shard to the last bit: the rows of a shard are read in batches of their own, in the
order of their own ids, and what training draws at random is seeded by the number of the shard.

One unit lies in one shard (privacy/unit_rows.py), so adding or removing it changes one model, in any way whatever, and
moves the sum by at most the diameter of that set. The sum mixes all shards: it is one event of the whole vault.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from veilset.core.errors import InputError, VeilsetError
from veilset.core.randomness import derive_seed
from veilset.core.records import Rows
from veilset.core.settings import require_clip_norm
from veilset.privacy.events import Event
from veilset.privacy.mechanisms.opened import Opened
from veilset.privacy.mechanisms.sums import GridSum
from veilset.privacy.rows import PerImage, below, require_alone, rows_of

TrainShard = Callable[[Tensor, Tensor], Any]
"""Feature rows (m, d) and labels (m,) of one shard, m >= 1 -> a model. It must keep nothing outside the model."""

Answer = Callable[[Any], Tensor]
"""A model -> its answer, of the same shape for every model."""

_READ_AT_ONCE = 512


class Ensemble:
    """`teachers` models, one for each shard. They are trained when the first answer is paid for.

    Privacy: unit as in the vault; relation add/remove-one; sensitivity as said at each mechanism; event one Gaussian
    over the whole vault for each query; assumes that `features` treats every image alone and that `train` and `answer`
    leave nothing behind but their results. A shard without units, or an answer that is not finite, counts as zero,
    which lies in every set of answers below.
    """

    def __init__(self, train: TrainShard, features: PerImage, opened: Opened, *, teachers: int) -> None:
        if opened.spending.place != (None, None):
            raise InputError("A shard cannot be divided again.")
        require_alone(features, opened.facts)
        units = opened.facts.units
        if not 2 <= teachers <= units:
            raise InputError(
                f"Expected 2 to {units} teachers for {units} units, got {teachers}. One teacher's answer would stand "
                "alone against noise that must hide all of it."
            )
        self.teachers = teachers
        self._train, self._features = train, features
        self._rows, self._spending = opened.rows, opened.spending
        self._noise, self._progress = opened.noise, opened.progress
        self._rank, self._size = opened.rank, opened.size
        self._models: list[Any] | None = None

    def votes(self, answer: Answer, event: Event, *, classes: int) -> Tensor:
        """How many models give each of `event.count` images each class, (queries, classes): GNMax before the maximum.

        `answer` gives scores (queries, classes), of which the largest in each row is the vote.

        Privacy: sensitivity sqrt(2) for each query, as one model moves its vote from one class to another; event
        as many Gaussians as `event` counts, with its noise multiplier times that as deviation.
        """

        def cast(scores: Tensor) -> Tensor:
            return torch.nn.functional.one_hot(scores.argmax(dim=1), classes).double()

        return self._release(answer, cast, (event.count, classes), event, 1.0, math.sqrt(2), sums=event.count)

    def agreement(self, answer: Answer, event: Event, *, classes: int) -> Tensor:
        """The number of votes of the class with most votes, (queries,): which images are worth a vote.

        Privacy: sensitivity 1 for each query, as the largest of several counts moves by at most 1 when one vote moves;
        event as many Gaussians as `event` counts.
        """
        queries = event.count
        kept = self._spending.pay(event, sums=queries)
        if kept is not None:
            return kept
        if self._size > 1:
            raise InputError("The agreement of teachers needs all of them in one process. Run it without torchrun.")
        counts = torch.zeros(queries, classes, dtype=torch.float64)
        for scores in self._answers(answer, (queries, classes)):
            counts += torch.nn.functional.one_hot(scores.argmax(dim=1), classes)
        # A power of two, so that a vote is a whole number of grid steps: cut to another grid, counts of n and n + 1
        # could lie a step more than a vote apart.
        total = GridSum(1, queries, 2.0 ** math.ceil(math.log2(self.teachers)))
        total.add(counts.amax(dim=1)[None], torch.zeros(1, dtype=torch.int64))
        released = total.release(self._noise, event.noise_multiplier, sensitivity=1.0, parts=queries, event=event)
        return self._spending.keep(released[0])

    def gradient(self, answer: Answer, event: Event, *, shape: tuple[int, int], norm_bound: float) -> Tensor:
        """The sum of the models' matrices, each scaled to Frobenius norm `norm_bound` as one vector.

        Privacy: sensitivity 2 `norm_bound`, from one point of a ball to another; event one Gaussian, however many rows
        the matrix has, because one unit moves them all together.
        """
        require_clip_norm(norm_bound, repr(event.label))

        def scale(matrix: Tensor) -> Tensor:
            length: Tensor = matrix.norm()
            return matrix * (below(norm_bound, matrix.numel()) / length.clamp_min(1e-12))

        return self._release(answer, scale, shape, event, norm_bound, 2.0)

    def signs(self, answer: Answer, event: Event, *, shape: tuple[int, int], keep: int) -> Tensor:
        """The sum of the signs of each model's `keep` largest entries (DataLens, Wang et al. 2021).

        Privacy: sensitivity 2 sqrt(`keep`), as `keep` entries may turn from +1 to -1; event one Gaussian.
        """
        if not 1 <= keep <= math.prod(shape):
            raise InputError(f"Expected to keep 1 to {math.prod(shape)} signs of a gradient, got {keep}.")

        def compress(matrix: Tensor) -> Tensor:
            flat = matrix.flatten()
            chosen = flat.abs().topk(keep).indices
            signs = torch.zeros_like(flat).index_copy(0, chosen, flat[chosen].sign())
            return signs.view_as(matrix)

        return self._release(answer, compress, shape, event, 1.0, 2.0 * math.sqrt(keep))

    def _release(
        self,
        answer: Answer,
        force: Callable[[Tensor], Tensor],
        shape: tuple[int, int],
        event: Event,
        step: float,
        sensitivity: float,
        *,
        sums: int = 1,
    ) -> Tensor:
        """Pay, ask, force each answer into its set, add, add noise of `sensitivity` steps."""
        kept = self._spending.pay(event, sums=sums)
        if kept is not None:
            return kept
        total = GridSum(1, math.prod(shape), step)
        for values in self._answers(answer, shape):
            total.add(force(values).reshape(1, -1), torch.zeros(1, dtype=torch.int64))
        released = total.release(
            self._noise, event.noise_multiplier, sensitivity=sensitivity * step, parts=event.count, event=event
        )
        return self._spending.keep(released[0].view(shape))

    def _answers(self, answer: Answer, shape: tuple[int, int]) -> list[Tensor]:
        if self._models is None:
            self._models = self._train_all()
        values = [answer(model).double() for model in self._models]
        for value in values:
            if tuple(value.shape) != shape:
                raise VeilsetError(f"Expected every answer to have the shape {shape}, got {tuple(value.shape)}.")
        return [value for value in values if bool(torch.isfinite(value).all())]

    def _train_all(self) -> list[Any]:
        """One model for each shard with a unit in it; under torchrun each process trains and asks its own share."""
        rank, size = self._rank, self._size
        # Public and fixed before any record is read; the same seed gives the same shards.
        seed = self._spending.ledger.header.get("seed")
        shards = self._rows.of_shards(self.teachers, f"{seed}/ensemble".encode()[:64])
        models = []
        with self._progress.task("teachers", self.teachers) as task:
            for shard in range(rank, self.teachers, size):
                if len(shards[shard]):
                    features, labels = self._read_shard(shards[shard])
                    with torch.random.fork_rng(devices=[]), torch.enable_grad():
                        torch.manual_seed(derive_seed(int(seed or 0), f"ensemble/{shard}"))
                        models.append(self._train(features, labels))
                task.advance(size)
        return models

    @torch.no_grad()
    def _read_shard(self, rows: Rows) -> tuple[Tensor, Tensor]:
        """Features and labels of one shard, in batches that hold nothing else."""
        parts, labels = [], torch.from_numpy(self._rows.labels(rows))
        for start in range(0, len(rows), _READ_AT_ONCE):
            images, own = self._rows.read(rows[start : start + _READ_AT_ONCE])
            parts.append(rows_of(self._features, torch.from_numpy(images), torch.from_numpy(own)))
        return torch.cat(parts), labels
