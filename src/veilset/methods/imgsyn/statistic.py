"""What a teacher sees on an image, as one row of numbers: the statistic that alignment matches.

DP-ImgSyn (Soufleri et al., 2024) matches mean and variance of what each norm layer reads: the `channel` form here. The
`map` form keeps the position as well, which tells a lung from a face where an average over the image does not. The
`code` form is what a linear head reads, along public directions, and its square: a few hundred numbers instead of
thousands, so that the same noise hides far less of them.
"""

import threading
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from veilset.core.errors import InputError
from veilset.core.randomness import derive_seed, numpy_generator
from veilset.methods.base import Context
from veilset.methods.imgsyn.config import Form
from veilset.methods.shared.starting_images import public_pictures, starting_images
from veilset.models.features.base import Features
from veilset.models.features.code import Code
from veilset.models.features.wavelets import ScatteringFeatures
from veilset.privacy.vault import Public
from veilset.teachers.teacher import Teacher

# Maps of a network are averaged down to this side; a scattering transform's have at most this one.
_MAP_SIDE = 8
# Public rows longer than this quantile of them would be shortened: half, because noise grows with the bound.
_CLIP_QUANTILE = 0.5
# Public pictures that fix centres and scales.
_PICTURES, _AT_ONCE = 1000, 100
_NORMS = (nn.GroupNorm, nn.LayerNorm, nn.InstanceNorm2d, nn.BatchNorm2d)


def public_pictures_of(public: Public | None, shape: tuple[int, int, int], context: Context) -> Iterator[Tensor]:
    """Public pictures that fix centres, scales and the bound of rows, or drawn ones that stand in for them."""
    seed, device = context.seed, context.device
    if public is not None:
        order = numpy_generator(seed, "imgsyn pictures").permutation(len(public.labels))[:_PICTURES]
        for start in range(0, len(order), _AT_ONCE):
            yield public_pictures(public, shape, order[start : start + _AT_ONCE]).to(device)
        return
    drawn = starting_images("drawn", shape, None, variation="none", blur=3, seed=derive_seed(seed, "pictures"))
    for number in range(_PICTURES // _AT_ONCE):
        yield drawn(number, _AT_ONCE).to(device)


class LayerMoments:
    """Rows of an image's moments in all layers of a teacher, centred and scaled by public pictures.

    Each layer is divided by the length that its rows have on public pictures, so that layers count alike; a row of all
    layers is then about sqrt(layers) long. `clip_norm` is the bound to clip rows to.

    Privacy: a row depends on its own image, on the teacher (released before) and on public pictures.
    """

    def __init__(self, teacher: Teacher, form: Form, pictures: Iterable[Tensor]) -> None:
        has_code = isinstance(getattr(teacher.network, "code", None), Code)
        if form == "code" and not has_code:
            raise InputError("Only a teacher with a head on fixed features has a code. Set statistics=map or channel.")
        self.teacher = teacher
        self._watching = threading.local()
        for module in teacher.network.modules():
            if isinstance(module, _NORMS):
                module.register_forward_pre_hook(self._watch)
        self.form: Form = ("code" if has_code else "map") if form == "auto" else form
        with torch.no_grad():
            parts = [self._raw(self._seen(part)[1]) for part in pictures]
            layers = [torch.cat(layer) for layer in zip(*parts, strict=True)]
            self.centres = [layer.mean(dim=0) for layer in layers]
            self.scales = [
                float((layer - centre).norm(dim=1).square().mean().sqrt().clamp_min(1e-6))
                for layer, centre in zip(layers, self.centres, strict=True)
            ]
            lengths = self._scaled(layers).norm(dim=1)
        self.width = sum(len(centre) for centre in self.centres)
        self.clip_norm = float(lengths.quantile(_CLIP_QUANTILE))

    def observe(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Logits, and the rows (b, width), clipped to `clip_norm`; gradients flow to the images.

        Several threads may ask at once.
        """
        logits, layers = self._seen(images)
        rows = self._scaled(self._raw(layers))
        lengths: Tensor = rows.norm(dim=1, keepdim=True)
        return logits, rows * (self.clip_norm / lengths.clamp_min(self.clip_norm))

    def _seen(self, images: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Logits, and what the layers read, (b, C, h, w) each, in the order of use."""
        code = getattr(self.teacher.network, "code", None)
        if isinstance(code, Code):
            features = code.extractor(images)
            projected = code.project(features)
            logits: Tensor = self.teacher.network.get_submodule("head")(functional.normalize(projected, dim=1))
            if self.form == "code":
                return logits, [projected[..., None, None]]
            if isinstance(code.extractor, ScatteringFeatures):
                scattering = code.extractor.scattering
                sides = (scattering.out_channels, scattering.out_size, scattering.out_size)
                return logits, [features.unflatten(1, sides)]
            if isinstance(code.extractor, Features):
                return logits, code.extractor.maps(images)
        seen: list[Tensor] = []
        self._watching.seen = seen
        try:
            logits = self.teacher(images)
        finally:
            self._watching.seen = None
        if not seen:
            raise InputError(
                "Expected a teacher with norm layers to take statistics from, found none. Set iterations=0."
            )
        return logits, seen

    def _watch(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        """Note what a norm layer reads, for the thread that asked."""
        seen = getattr(self._watching, "seen", None)
        if seen is not None:
            seen.append(_as_maps(inputs[0]))

    def distance(self, mean_row: Tensor, target: Tensor) -> Tensor:
        """How far the mean row of a batch is from the released one: Equation 1 of the paper, in public scales.

        Where rows hold second moments, these become deviations, as in the paper.
        """
        if self.form == "map":
            return (mean_row - target).square().sum(dim=-1).mean()
        pairs = zip(self._mean_and_deviation(mean_row), self._mean_and_deviation(target), self.scales[::2], strict=True)
        apart = [((ours - theirs) / scale).square().sum(dim=-1).mean() for ours, theirs, scale in pairs]
        return torch.stack(apart).sum()

    def _raw(self, layers: list[Tensor]) -> list[Tensor]:
        """Means of each layer and, but for the map form, mean squares, each as a part of the row of its own."""
        if self.form != "map":
            return [part.mean(dim=(2, 3)) for maps in layers for part in (maps, maps.square())]
        return [
            (maps if maps.shape[-1] <= _MAP_SIDE else functional.adaptive_avg_pool2d(maps, _MAP_SIDE)).flatten(1)
            for maps in layers
        ]

    def _scaled(self, layers: list[Tensor]) -> Tensor:
        parts = zip(layers, self.centres, self.scales, strict=True)
        return torch.cat([(layer - centre) / scale for layer, centre, scale in parts], dim=1)

    def _mean_and_deviation(self, row: Tensor) -> list[Tensor]:
        """For each layer its means beside its deviations.

        Noise can make a variance negative, so none falls below a tenth of what it is on public pictures.
        """
        parts = torch.split(row, [len(centre) for centre in self.centres], dim=-1)
        raw = [part * scale + centre for part, scale, centre in zip(parts, self.scales, self.centres, strict=True)]
        found = []
        for mean, square, centre, public_square in zip(
            raw[::2], raw[1::2], self.centres[::2], self.centres[1::2], strict=True
        ):
            floor = (0.1 * (public_square - centre.square())).clamp_min(1e-8)
            found.append(torch.cat([mean, torch.maximum(square - mean.square(), floor).sqrt()], dim=-1))
        return found


def _as_maps(values: Tensor) -> Tensor:
    """What a norm layer reads as (b, C, h, w): a transformer's tokens (b, t, C) are a column of pixels."""
    if values.ndim == 4:
        return values
    return values.transpose(1, 2)[..., None] if values.ndim == 3 else values[..., None, None]
