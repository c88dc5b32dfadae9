"""`veilset train`: any student on a release."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from veilset.cli.console import Console, RichProgress
from veilset.cli.options import AsJson, Device, Epochs, Out, Seed, Student, check_device


def recipe_of(
    optimizer: str, momentum: float, batch_size: int, weight_decay: float, milestones: str | None, epochs: int | None
) -> dict[str, Any]:
    """The settings of a paper's recipe; milestones are told in epochs, so these have to be told, too."""
    from veilset.core.errors import InputError

    named: dict[str, Any] = {
        "optimizer": optimizer, "momentum": momentum, "batch_size": batch_size, "weight_decay": weight_decay
    }  # fmt: skip
    if milestones is None:
        return named
    parts = milestones.split(",")
    if not epochs or not all(part.strip().isdigit() and 0 < int(part) < epochs for part in parts):
        raise InputError(f"Expected --milestones as epochs below --epochs, e.g. 120,150,180; got {milestones!r}.")
    return {**named, "schedule": "steps", "milestones": tuple(int(part) / epochs for part in parts)}


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
    optimizer: Annotated[str, typer.Option("--optimizer", help="adamw or sgd.")] = "adamw",
    momentum: Annotated[float, typer.Option("--momentum", help="Of sgd.")] = 0.9,
    batch_size: Annotated[int, typer.Option("--batch-size", help="Images of a step.")] = 128,
    weight_decay: Annotated[float, typer.Option("--weight-decay", help="Of matrices and kernels.")] = 0.02,
    milestones: Annotated[
        str | None,
        typer.Option("--milestones", help="Epochs after which the rate falls to a tenth, e.g. 120,150,180."),
    ] = None,
    changes: Annotated[
        str, typer.Option("--changes", help="Of images in training: mild, none, or auto, as the release asks for.")
    ] = "auto",
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a student on the released images alone and save it as safetensors."""
    from veilset.core.errors import InputError
    from veilset.core.files import require_absent, save_tensors, whole_directory
    from veilset.pipeline.train import train as train_student
    from veilset.release.format import load_release
    from veilset.release.students import student_name
    from veilset.training.settings import CHANGES, TrainingConfig

    if changes not in CHANGES:
        raise InputError(f"Expected --changes {', '.join(CHANGES)}, got {changes!r}.")
    wanted = TrainingConfig(
        epochs=epochs or "auto",
        learning_rate="auto" if rate is None else rate,
        temperature=temperature,
        augmentation=CHANGES[changes],
        **recipe_of(optimizer, momentum, batch_size, weight_decay, milestones, epochs),
    )
    require_absent(out)
    check_device(device)
    source = load_release(release)
    facts = source.certificate.facts
    student = student_name(source.certificate, student)
    network = train_student(source, student=student, recipe=wanted, seed=seed, device=device, progress=RichProgress())
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
    with whole_directory(out) as building:
        save_tensors(network.state_dict(), building / "student.safetensors")
        (building / "student.json").write_text(json.dumps(description, indent=2) + "\n", encoding="utf-8")
    console = Console(as_json=as_json)
    console.say(f"Student: {out}")
    console.result({"out": str(out), **description})
