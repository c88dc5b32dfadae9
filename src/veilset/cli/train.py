"""`veilset train`: any student on a release."""

import json
from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console, RichProgress
from veilset.cli.options import AsJson, Device, Epochs, Out, Seed, Student, check_device


def train(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    out: Out,
    student: Student = "auto",
    epochs: Epochs = None,
    rate: Annotated[float | None, typer.Option("--learning-rate", help="At its peak.", show_default="0.004")] = None,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Softens labels and logits alike; 1 leaves them as released.")
    ] = 1.0,
    changes: Annotated[
        str, typer.Option("--changes", help="Of images in training: mild, none, or auto, as the release asks for.")
    ] = "auto",
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a student on the released images alone and save it as safetensors."""
    from veilset.core.errors import InputError
    from veilset.core.files import require_absent, whole_directory
    from veilset.models import build_network
    from veilset.release.format import load_release
    from veilset.release.students import student_name, student_recipe
    from veilset.training.classifier import train_classifier
    from veilset.training.settings import CHANGES, TrainingConfig

    if changes not in CHANGES:
        raise InputError(f"Expected --changes {', '.join(CHANGES)}, got {changes!r}.")
    wanted = TrainingConfig(
        epochs=epochs or "auto",
        learning_rate="auto" if rate is None else rate,
        temperature=temperature,
        augmentation=CHANGES[changes],
    )
    require_absent(out)
    check_device(device)
    source = load_release(release)
    facts = source.certificate.facts
    student = student_name(source.certificate, student)
    network = build_network(student, shape=facts.shape, classes=facts.classes, seed=seed)
    train_classifier(
        network,
        source.images,
        source.labels,
        source.soft_labels,
        config=student_recipe(source.certificate, wanted),
        seed=seed,
        device=device,
        progress=RichProgress(),
    )
    description = {
        "student": student,
        "shape": list(facts.shape),
        "classes": facts.classes,
        "class_names": list(facts.class_names),
        "seed": seed,
        "trained_on": release.resolve().name,
        # The student saw the release alone, so by post-processing it has the release's guarantee and no other.
        "guarantee": source.certificate.guarantee,
        "epsilon": source.certificate.epsilon,
        "delta": source.certificate.delta,
    }
    from safetensors.torch import save_file

    with whole_directory(out) as building:
        weights = {name: value.detach().cpu().contiguous().clone() for name, value in network.state_dict().items()}
        save_file(weights, building / "student.safetensors")
        (building / "student.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    console = Console(as_json=as_json)
    console.say(f"Student: {out}")
    console.result({"out": str(out), **description})
