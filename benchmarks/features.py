"""What our extraction of pretrained features costs beside a plain forward pass of the same network.

    PYTHONPATH=src python benchmarks/features.py [--name lite0] [--side 128] [--images 256] [--rounds 9]

One interleaved run: every round takes each variant in turn, and a ratio is the median over rounds of two neighbours'
times, so that other work on the machine falls on both. `plain` is the published network as it was trained (norms as
layers of their own) on images that are already of the right size, in the same small batches; `plain_at_once` takes them
all together; `alone` is what a private head uses, which keeps an image's bits the same in any company.
"""

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import veilset.training  # noqa: F401  (thread settings, before torch)

import torch  # isort: skip
from torch import Tensor

from machine import append
from veilset.models.features import DEFAULT_SIDE, build_features
from veilset.models.features.pretrained import _AT_ONCE, published_network
from veilset.privacy.rows import alone
from veilset.privacy.vault import PublicFacts
from veilset.training.threads import set_thread_count

RESULTS = Path(__file__).parent / "results" / "features.jsonl"


def variants(name: str, side: int, count: int) -> dict[str, Callable[[], object]]:
    """Ways to the pooled features of the same random images."""
    coins = torch.Generator().manual_seed(0)
    stored = torch.randint(0, 256, (count, side, side, 3), generator=coins, dtype=torch.uint8)
    labels = torch.zeros(count, dtype=torch.int64)
    images = stored.permute(0, 3, 1, 2).float() / 255
    features, plain = build_features(name, (side, side, 3), side=side), published_network(name).eval()

    def row(batch: Tensor, _: Tensor) -> Tensor:
        found: Tensor = features(batch.permute(0, 3, 1, 2).float() / 255)
        return found

    in_one_shape, _ = alone(row, PublicFacts(units=count, unit="record", shape=(side, side, 3), class_names=("0", "1")))
    return {
        "plain": lambda: [plain.maps(part)[-1].mean(dim=(2, 3)) for part in torch.split(images, _AT_ONCE)],
        "plain_at_once": lambda: plain.maps(images)[-1].mean(dim=(2, 3)),
        "pooled": lambda: features.pooled(images),
        "rows": lambda: features(images),
        "alone": lambda: in_one_shape(stored, labels),
    }


@torch.no_grad()
def main() -> None:
    """Measure, and add a line to the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="lite0")
    parser.add_argument("--side", type=int, default=DEFAULT_SIDE)
    parser.add_argument("--images", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    set_thread_count()
    ways = variants(asked.name, asked.side, asked.images)
    taken: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(asked.rounds + 1):
        for way, run in ways.items():
            begin = time.perf_counter()
            run()
            if number:  # the first round warms up
                taken[way].append(time.perf_counter() - begin)
    pairs = {way: zip(seconds, taken["plain"], strict=True) for way, seconds in taken.items()}
    append(
        {
            "features": asked.name,
            "side": asked.side,
            "images": asked.images,
            "rounds": asked.rounds,
            "images_per_second": {way: round(asked.images / statistics.median(s)) for way, s in taken.items()},
            "seconds_over_plain": {way: round(statistics.median(a / b for a, b in pairs[way]), 3) for way in ways},
        },
        RESULTS,
    )


if __name__ == "__main__":
    main()
