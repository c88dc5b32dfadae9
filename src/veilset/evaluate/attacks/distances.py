"""Attacks that need nothing but the released images: distances in pixels.

GAN-Leaks: Chen et al., "GAN-Leaks: A Taxonomy of Membership Inference Attacks against Generative Models" (CCS 2020).
Full black-box: a member lies closer to its nearest released image. Calibrated: compared with how close other images
come; the paper trains a reference generator for that, here the attacker's own nonmembers stand in for it.

Nearest neighbour: from the release's side. For each released image the nearest candidate and the second nearest;
where the first is much nearer, the image was copied from it (the ratio test of Yoon et al., "Diffusion Probabilistic
Models Generalize when They Fail to Memorize", 2023, whose third we take).
"""

import numpy as np
import torch
from numpy.typing import NDArray

from veilset.core.records import Images, Labels
from veilset.evaluate.attacks.base import Attack, Outcome, Setting
from veilset.evaluate.attacks.measures import Scores, best_threshold
from veilset.evaluate.attacks.splitting import Candidates
from veilset.evaluate.metrics import wilson_interval

COPY_RATIO = 1 / 3  # a released image this much nearer to one candidate than to any other is called a copy
PAIRS_SHOWN = 12
_BLOCK_VALUES = 2**25


def nearest(
    queries: Images, base: Images, count: int = 1, *, not_itself: bool = False
) -> tuple[Scores, NDArray[np.int64]]:
    """L2 distances (N, count) of each query to its nearest base images, pixels in [0, 1], and which they are.

    With `not_itself` base images equal to the query are passed over.
    """
    left, right = (torch.from_numpy(np.array(part)).flatten(1).float() / 255 for part in (queries, base))
    lengths = right.square().sum(dim=1)
    found = min(len(right), count + int(not_itself))
    distances, places = [], []
    step = max(1, _BLOCK_VALUES // len(right))
    for part in torch.split(left, step):
        # |q|^2 is the same for every base image and is left out of the comparison.
        near = (lengths - 2 * part @ right.T).topk(found, largest=False).indices
        exact = torch.stack([(part - right[column]).norm(dim=1) for column in near.T], dim=1)
        if not_itself:
            exact = torch.where(exact == 0, torch.inf, exact)
        exact, order = exact.sort(dim=1)
        distances.append(exact[:, :count])
        places.append(near.gather(1, order)[:, :count])
    return torch.cat(distances).double().numpy(), torch.cat(places).numpy()


def _gan_leaks(setting: Setting) -> Outcome:
    known, attacked = setting.split.known, setting.split.attacked
    scores = [-nearest(part.images, setting.released)[0][:, 0] for part in (known, attacked)]
    return Outcome(candidates=attacked, scores=scores[1], threshold=best_threshold(scores[0], known.is_member))


def _gan_leaks_calibrated(setting: Setting) -> Outcome:
    known, attacked = setting.split.known, setting.split.attacked
    reference = known.images[~known.is_member]

    def scores(candidates: Candidates) -> Scores:
        released = nearest(candidates.images, setting.released)[0][:, 0]
        usual = nearest(candidates.images, reference, not_itself=True)[0][:, 0]
        difference: Scores = usual - released
        return difference

    threshold = best_threshold(scores(known), known.is_member)
    return Outcome(candidates=attacked, scores=scores(attacked), threshold=threshold)


def memorisation(released: Images, candidates: Images) -> tuple[Scores, NDArray[np.int64]]:
    """For each released image, nearest over second nearest distance to the candidates, and its nearest candidate."""
    distances, places = nearest(released, candidates, count=2)
    return distances[:, 0] / np.maximum(distances[:, 1], 1e-9), places[:, 0]


def _nearest_neighbour(setting: Setting) -> Outcome:
    known, attacked = setting.split.known, setting.split.attacked

    def scored(candidates: Candidates) -> tuple[Scores, Scores, NDArray[np.int64]]:
        ratios, places = memorisation(setting.released, candidates.images)
        scores = np.zeros(len(candidates.labels))
        np.maximum.at(scores, places, 1 - ratios)
        return scores, ratios, places

    scores, ratios, places = scored(attacked)
    to_members = int(attacked.is_member[places].sum())
    copied = ratios < COPY_RATIO
    return Outcome(
        candidates=attacked,
        scores=scores,
        threshold=best_threshold(scored(known)[0], known.is_member),
        details={
            "released_images": len(ratios),
            "nearest_is_a_member": to_members / len(ratios),
            "nearest_is_a_member_interval": list(wilson_interval(to_members, len(ratios))),
            "copies_of_members": int((copied & attacked.is_member[places]).sum()),
            "copies_of_nonmembers": int((copied & ~attacked.is_member[places]).sum()),
        },
        # Where no released image is nearest to a member there is no pair to show.
        pictures={"closest-pairs": _closest_pairs(setting.released, attacked, ratios, places)} if to_members else {},
    )


def _closest_pairs(
    released: Images, attacked: Candidates, ratios: Scores, places: NDArray[np.int64]
) -> tuple[Images, Labels]:
    """The released images that resemble one member most, above, and those members, below."""
    of_members = np.flatnonzero(attacked.is_member[places])
    shown = of_members[np.argsort(ratios[of_members])[:PAIRS_SHOWN]]
    images = np.concatenate([released[shown], attacked.images[places[shown]]])
    return images, np.repeat(np.arange(2, dtype=np.int64), len(shown))


GAN_LEAKS = Attack(
    name="gan-leaks",
    title="Distance to the nearest released image",
    needs="images only",
    run=_gan_leaks,
    paper="Chen et al., CCS 2020",
)
GAN_LEAKS_CALIBRATED = Attack(
    name="gan-leaks-calibrated",
    title="The same, less the distance to other real images",
    needs="images only",
    run=_gan_leaks_calibrated,
    paper="Chen et al., CCS 2020",
)
NEAREST_NEIGHBOUR = Attack(
    name="nearest-neighbour",
    title="Released images that resemble one record alone",
    needs="images only",
    run=_nearest_neighbour,
    paper="Yoon et al., ICML workshop 2023",
)
