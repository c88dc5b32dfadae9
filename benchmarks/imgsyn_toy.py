"""The 2-D example of DP-ImgSyn's Figure 5: where alignment puts the points that a student learns from.

    scripts/bench imgsyn_toy

Writes docs/images/imgsyn-toy.png and one JSON line to benchmarks/results/imgsyn_toy.jsonl. As in the paper there is no
noise here: the picture shows the idea, not the guarantee. Points are images of one pixel with two channels, and the
code is that of the method.
"""

import json
from pathlib import Path

import veilset.training  # noqa: F401  (thread settings, before torch)

import numpy as np  # isort: skip
import torch
from PIL import Image, ImageDraw
from torch import Tensor, nn
from torch.nn import functional

from veilset.methods.imgsyn.alignment import align
from veilset.methods.imgsyn.config import AlignSettings
from veilset.methods.imgsyn.statistic import LayerMoments
from veilset.teachers.teacher import finished

ROOT = Path(__file__).resolve().parents[1]
PICTURE, RESULTS = ROOT / "docs" / "images" / "imgsyn-toy.png", ROOT / "benchmarks" / "results" / "imgsyn_toy.jsonl"
SEED, POINTS, SIDE = 0, 1000, 260
# The private square in the middle of the plane; the boundary is the paper's cubic within it.
LOW, HIGH = 0.25, 0.75


def classes_of(points: Tensor) -> Tensor:
    """Above or below the cubic."""
    x, y = ((points[:, :2].flatten(1) - LOW) / (HIGH - LOW)).unbind(1)
    return (y > -1.4 * x**3 + 0.9 * x**2 + 0.34).long()


def network(seed: int) -> nn.Module:
    """A small network on points, with norm layers to take statistics from."""
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(2, 64), nn.LayerNorm(64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.GELU(),
        nn.Linear(64, 2),
    )  # fmt: skip


def train(model: nn.Module, points: Tensor, targets: Tensor) -> nn.Module:
    """Full-batch Adam on classes or on soft labels."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(400):
        optimizer.zero_grad()
        functional.cross_entropy(model(points), targets).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return model.eval().requires_grad_(False)


def panel(model: nn.Module, points: Tensor, colours: list[tuple[int, int, int]]) -> Image.Image:
    """The model's confidence as a map, the points on it, the private square as a frame."""
    axis = (torch.arange(SIDE) + 0.5) / SIDE
    rows, columns = torch.meshgrid(axis.flip(0), axis, indexing="ij")
    share = model(torch.stack([columns, rows], dim=-1).reshape(-1, 2, 1, 1)).softmax(dim=1)[:, 1].reshape(SIDE, SIDE, 1)
    blue, yellow = torch.tensor([70.0, 105.0, 190.0]), torch.tensor([250.0, 225.0, 120.0])
    picture = Image.fromarray((blue * share + yellow * (1 - share)).numpy().astype(np.uint8))
    draw = ImageDraw.Draw(picture)
    draw.rectangle([LOW * SIDE, (1 - HIGH) * SIDE, HIGH * SIDE, (1 - LOW) * SIDE], outline=(20, 20, 20))
    for (x, y), colour in zip((points[:300].flatten(1) * SIDE).tolist(), colours, strict=False):
        draw.ellipse([x - 2, SIDE - y - 2, x + 2, SIDE - y + 2], fill=colour)
    return picture


def main() -> None:
    """Teacher, plain distillation, alignment, distillation from aligned points."""
    coins = torch.Generator().manual_seed(SEED)
    private = LOW + (HIGH - LOW) * torch.rand(POINTS, 2, 1, 1, generator=coins)
    truth = classes_of(private)
    teacher = finished(train(network(SEED), private, truth), {})
    centres = torch.tensor([[0.375, 0.375], [0.625, 0.625]])[torch.arange(POINTS) % 2]
    public = (centres + 0.125 * torch.randn(POINTS, 2, generator=coins)).clamp(0, 1)[..., None, None]
    moments = LayerMoments(teacher, "channel", [public])
    with torch.no_grad():
        target = moments.observe(private)[1].mean(dim=0, keepdim=True)
    config = AlignSettings(
        iterations=40, learning_rate=0.01, feature_weight=10.0, class_weight=0.01, variation_weight=0.0
    )
    aligned = align(public, torch.arange(POINTS) % 2, moments, target, config).images
    students = [train(network(SEED + 1), points, teacher(points).softmax(dim=1)) for points in (public, aligned)]
    fresh = LOW + (HIGH - LOW) * torch.rand(20_000, 2, 1, 1, generator=coins)
    agreement = [float((s(fresh).argmax(1) == teacher(fresh).argmax(1)).float().mean()) for s in students]
    by_class = [(30, 120, 60) if label else (215, 95, 30) for label in truth.tolist()]
    panels = [
        panel(teacher.network, private, by_class),
        panel(students[0], public, [(190, 30, 45)] * POINTS),
        panel(teacher.network, aligned, [(190, 40, 160)] * POINTS),
        panel(students[1], aligned, [(190, 40, 160)] * POINTS),
    ]
    sheet = Image.new("RGB", (2 * SIDE + 10, 2 * SIDE + 10), "white")
    for number, part in enumerate(panels):
        sheet.paste(part, ((number % 2) * (SIDE + 10), (number // 2) * (SIDE + 10)))
    sheet.save(PICTURE, optimize=True)
    line = {
        "benchmark": "imgsyn_toy",
        "seed": SEED,
        "agreement_with_teacher": {"public": agreement[0], "aligned": agreement[1]},
    }
    RESULTS.write_text(json.dumps(line) + "\n", encoding="utf-8")
    print(line)


if __name__ == "__main__":
    main()
