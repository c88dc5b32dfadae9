"""Words and cells that several pages share."""

from typing import Any

from tables.cells import Cell, Show
from veilset.report.published import published_for

NAMES = {
    "mnist": "MNIST",
    "fashion_mnist": "Fashion-MNIST",
    "cifar10_15k": "CIFAR-10, 15,000",
    "celeba_32": "CelebA gender, 8,000 at 32 px",
    "celeba_64": "CelebA gender, 8,000 at 64 px",
    "chest_xray_64": "chest X-ray 64 px",
    "chest_xray_224": "chest X-ray 224 px",
    "tinyimagenet_32": "TinyImageNet",
    "tinyimagenet_64": "TinyImageNet",
    "photos_224": "1,000 photographs",
}
SMALL = (("mnist", 1.0), ("mnist", 10.0), ("fashion_mnist", 1.0), ("fashion_mnist", 10.0))


def compared(name: str, data: str, epsilon: float, value: str = "accuracy", show: Show = "each") -> Cell:
    """A cell of the comparison `scripts/bench mnist_fashion`."""
    return Cell(
        results="mnist_fashion/results.jsonl",
        where={"name": name, "dataset": data, "epsilon": epsilon},
        value=value,
        times=100 if value.endswith("accuracy") else 1,
        digits=1 if value.endswith("accuracy") else 0,
        show=show,
    )


def published(data: str, epsilon: float, source: str, *methods: str) -> str:
    """Figures of a source, of these methods or of all, best first; a dash where there is none."""
    found = [row for row in published_for(data, epsilon) if row.source.startswith(source)]
    found = [row for row in found if not methods or row.method in methods]
    return ", ".join(f"{row.method} {row.accuracy:.1f}" for row in found) or "-"


def best_published(data: str, epsilon: float, holds: str) -> str:
    """The best published figure whose epsilon holds, does not, or was not checked."""
    found = [row for row in published_for(data, epsilon) if row.holds == holds]
    return f"{found[0].accuracy:.1f} ({found[0].method})" if found else "-"


def scored(results: str, **where: Any) -> dict[str, Any]:
    """Options of a cell on real test images."""
    return {"results": results, "where": {"scored_on": "test", **where}}
