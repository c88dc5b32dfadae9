"""What a DP-SGD step costs beside a plain step and beside Opacus' hooks, in one interleaved run.

    PYTHONPATH=src python benchmarks/engine.py [--rounds 15] [--networks small wrn resnet18] [--memory]

Every round takes one step of each variant in turn, and a ratio is the median over rounds of two neighbours' times, so
that other work on the machine falls on both. A step is gradients, noise (torch's, in both private variants) and SGD.
Peak memory is the largest resident set of a fresh process that takes three steps of one variant.
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import veilset.training  # noqa: F401  (thread settings, before torch)

import torch  # isort: skip
from torch import Tensor, nn
from torch.nn import functional

from veilset.dpsgd import ClippedGradients
from veilset.models.classifiers.convnet import ConvNet
from veilset.models.classifiers.resnet import resnet18
from veilset.models.classifiers.wrn import WideResNet
from veilset.training.threads import set_thread_count

SEED = 3
RESULTS = Path(__file__).parent / "results" / "engine.jsonl"
VARIANTS = ("plain", "plain_channels_last", "ours", "opacus")
TARGETS = {"small": (1.5, 1.3, 1.8), "wrn": (1.7, 1.5, 1.2), "resnet18": (1.3, 1.2, 2.0)}

Step = Callable[[], None]


def network(name: str) -> tuple[nn.Module, int, tuple[int, int, int]]:
    """The network, its batch and the shape of an image."""
    torch.manual_seed(SEED)
    if name == "small":
        return ConvNet(channels=1, classes=10, size=28), 256, (1, 28, 28)
    if name == "wrn":
        return WideResNet(channels=3, classes=10, size=32), 64, (3, 32, 32)
    return resnet18(channels=3, classes=10, size=32), 64, (3, 32, 32)


def loss_of(outputs: Tensor, targets: Tensor) -> Tensor:
    """One cross-entropy for each row."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def make_step(variant: str, name: str) -> Step:
    """One training step of a variant on its own copy of the network, on one fixed random batch."""
    model, batch, shape = network(name)
    images, labels = torch.rand(batch, *shape), torch.randint(0, 10, (batch,))
    if variant == "plain_channels_last":
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        images = images.to(memory_format=torch.channels_last)
    if variant.startswith("plain"):
        return _plain(model, images, labels)
    return _ours(model, images, labels) if variant == "ours" else _opacus(model, images, labels)


def _plain(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(model(images), labels).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def _ours(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    engine = ClippedGradients(model, loss_of, 1.0)

    def step() -> None:
        for parameter, total in zip(engine.parameters, engine.sum(images, labels), strict=True):
            parameter.grad = total.float().add_(torch.randn(total.shape)).div_(len(images))
        optimizer.step()

    return step


def _opacus(model: nn.Module, images: Tensor, labels: Tensor) -> Step:
    from opacus import GradSampleModule  # type: ignore[import-untyped]
    from opacus.optimizers import DPOptimizer  # type: ignore[import-untyped]

    wrapped = GradSampleModule(model)
    optimizer = DPOptimizer(
        torch.optim.SGD(wrapped.parameters(), lr=1e-3),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
        expected_batch_size=len(images),
    )

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_of(wrapped(images), labels).mean().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def interleaved(steps: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    """Milliseconds of each variant in each round, after one step each to warm up."""
    for step in steps.values():
        step()
    taken: dict[str, list[float]] = {variant: [] for variant in steps}
    for _ in range(rounds):
        for variant, step in steps.items():
            begin = time.perf_counter()
            step()
            taken[variant].append((time.perf_counter() - begin) * 1e3)
    return taken


def ratio(taken: dict[str, list[float]], above: str, below: str) -> float:
    """The median over rounds of one variant's time over another's."""
    return statistics.median(a / b for a, b in zip(taken[above], taken[below], strict=True))


def peak_memory(variant: str, name: str) -> float:
    """Peak megabytes of a fresh process."""
    command = [sys.executable, "-W", "ignore", __file__, "--one", variant, name]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(done.stdout.split()[-1])


def _largest_resident_set() -> float:
    """Megabytes. Not getrusage, whose figure a new process inherits from its parent."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))


def main() -> None:
    """Run, print a table, append JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--networks", nargs="+", default=list(TARGETS), choices=list(TARGETS))
    parser.add_argument("--variants", nargs="+", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--memory", action="store_true")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--dry", action="store_true", help="write nothing")
    options = parser.parse_args()
    threads = set_thread_count()
    if options.one:
        step = make_step(*options.one)
        for _ in range(3):
            step()
        print(_largest_resident_set())
        return
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    for name in options.networks:
        taken = interleaved({variant: make_step(variant, name) for variant in options.variants}, options.rounds)
        record = {
            "benchmark": "engine",
            "network": name,
            "parameters": sum(value.numel() for value in network(name)[0].parameters()),
            "batch": network(name)[1],
            "rounds": options.rounds,
            "seed": SEED,
            "threads": threads,
            "torch": torch.__version__,
            "machine": f"{platform.machine()} {platform.processor() or platform.node()}".strip(),
            "commit": commit.stdout.strip() or "uncommitted",
            "milliseconds": {variant: round(statistics.median(times), 1) for variant, times in taken.items()},
            "over_plain": {v: round(ratio(taken, v, "plain"), 3) for v in taken if v != "plain"},
            "target_goal_speedup": TARGETS[name],
        }
        if "opacus" in taken:
            record["opacus_over_ours"] = round(ratio(taken, "opacus", "ours"), 3)
        if options.memory:
            record["peak_mb"] = {variant: round(peak_memory(variant, name)) for variant in options.variants}
        print(json.dumps(record))
        if not options.dry:
            RESULTS.parent.mkdir(exist_ok=True)
            with RESULTS.open("a") as file:
                file.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
