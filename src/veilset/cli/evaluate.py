"""`veilset evaluate`: how useful a release is on real test images."""

import json
from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console, RichProgress
from veilset.cli.options import (
    AsJson,
    Channels,
    Classes,
    Device,
    Epochs,
    LabelName,
    Limit,
    Seed,
    Size,
    Student,
    check_device,
    data_options,
)


def evaluate(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    test: Annotated[str, typer.Option("--test", help="Real test images: npz:split, folder, ...")],
    student: Student = "convnet",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many students to train.")] = 1,
    epochs: Epochs = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the result to this file, too.")] = None,
    size: Size = None,
    channels: Channels = None,
    limit: Limit = None,
    labels: LabelName = None,
    classes: Classes = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train students on the release alone and score them on a real test set. The result is NOT for release."""
    from veilset.core.errors import InputError
    from veilset.core.files import write_whole
    from veilset.data.opening import open_images
    from veilset.evaluate.utility import evaluate_utility
    from veilset.release.format import load_release
    from veilset.training.recipe import TrainingConfig

    check_device(device)
    if out is not None and out.resolve().is_relative_to(release.resolve()):
        raise InputError("What was measured on private data does not go into the release. Choose another --out.")
    source = load_release(release)
    result = evaluate_utility(
        source.images,
        source.labels,
        source.soft_labels,
        source.certificate.facts.classes,
        open_images(test, **data_options(size, channels, limit, labels, classes, seed)),
        student=student,
        seeds=seeds,
        first_seed=seed,
        config=TrainingConfig(epochs=epochs),
        device=device,
        progress=RichProgress(),
    ).to_json()
    console = Console(as_json=as_json)
    spread = f" +- {100 * result['accuracy_std']:.2f}" if seeds > 1 else ""
    low, high = result["accuracy_interval"]
    console.say(
        f"Accuracy of {student} on {result['test_images']} real images: {100 * result['accuracy']:.2f} %{spread}"
    )
    console.say(
        f"  95 % interval {100 * low:.2f} to {100 * high:.2f}; balanced {100 * result['balanced_accuracy']:.2f} %"
    )
    console.say("  Measured on real data: for your eyes, not for release.")
    if out is not None:
        write_whole(out, (json.dumps(result, indent=2) + "\n").encode())
        console.say(f"Written to {out}.")
    console.result(result)
