"""`veilset attack`: what an attacker can tell from a release about who was in its data."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilset.cli.archives import reads_archives
from veilset.cli.console import Console, RichProgress
from veilset.cli.options import (
    AsJson,
    Channels,
    Classes,
    Device,
    Epochs,
    GroupName,
    LabelName,
    Seed,
    Size,
    check_device,
    data_options,
    view_of_release,
)

if TYPE_CHECKING:
    from veilset.data.archives.reading import Reading
    from veilset.evaluate.attacks import AttackReport


@reads_archives
def attack(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    members: Annotated[str, typer.Option("--members", help="The real images that the release was made from.")],
    nonmembers: Annotated[str, typer.Option("--nonmembers", help="Others of their kind: npz:split, folder, ...")],
    attacks: Annotated[str, typer.Option("--attacks", help="fast, all, or names separated by commas.")] = "fast",
    student: Annotated[
        str | None, typer.Option("--student", help="Train this network on the release and attack it.")
    ] = None,
    records: Annotated[
        int, typer.Option("--records", min=20, help="Attack at most this many members, and as many nonmembers.")
    ] = 10_000,
    shadow_records: Annotated[
        int, typer.Option("--shadow-records", min=20, help="The same for attacks with shadow models.")
    ] = 2_000,
    shadows: Annotated[int, typer.Option("--shadows", min=2, help="How many shadow models to train.")] = 8,
    epochs: Epochs = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the result to this file, too.")] = None,
    pictures: Annotated[
        Path | None, typer.Option("--pictures", help="A folder for pictures. They show PRIVATE images.")
    ] = None,
    size: Size = None,
    channels: Channels = None,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="The --limit that the release was made with, for --members.")
    ] = None,
    labels: LabelName = None,
    groups: GroupName = None,
    classes: Classes = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
    reading: "Reading | None" = None,
) -> None:
    """Try to tell from the release who was in its data. The result is NOT for release, and passing proves nothing."""
    from veilset.core.errors import InputError
    from veilset.core.files import write_whole
    from veilset.data.matching import in_class_order
    from veilset.data.opening import open_images
    from veilset.evaluate.attacks import AttackConfig, attack_split, release_target
    from veilset.evaluate.attacks.registry import chosen_attacks
    from veilset.evaluate.attacks.splitting import make_split
    from veilset.evaluate.pictures import write_grid
    from veilset.pipeline.evaluate import identity
    from veilset.release.format import load_release
    from veilset.training.settings import TrainingConfig

    check_device(device)
    for place in (out, pictures):
        if place is not None and place.resolve().is_relative_to(release.resolve()):
            raise InputError("What was measured on private data does not go into the release. Choose another place.")
    chosen_attacks(attacks)
    config = AttackConfig(records=records, shadow_records=shadow_records, shadows=shadows, seed=seed)
    source = load_release(release)
    size, channels = view_of_release(release, size, channels)
    # With a limit the groups decide who is in, as they did for the release.
    ours = open_images(members, groups=groups, **data_options(size, channels, limit, labels, classes, seed, reading))
    others = open_images(nonmembers, **data_options(size, channels, None, labels, classes, seed, reading))
    names = source.certificate.facts.class_names
    ours, others = in_class_order(ours, names, "the members"), in_class_order(others, names, "the nonmembers")
    # Before a student is trained: most of what can be wrong is wrong here.
    split = make_split(ours, others, pairs=records, seed=seed)
    split.require_fit(source.certificate.facts.shape, source.certificate.facts.classes)
    progress = RichProgress()
    target = release_target(
        source,
        student=student,
        recipe=TrainingConfig(epochs=epochs or "auto"),
        seed=seed,
        device=device,
        progress=progress,
    )
    report = attack_split(target, split, attacks=attacks, config=config, progress=progress)
    result = {"release": identity(release, source), **report.to_json()}
    console = Console(as_json=as_json)
    _show(console, report)
    if out is not None:
        write_whole(out, (json.dumps(result, indent=2) + "\n").encode())
        console.say(f"Written to {out}.")
    if pictures is not None:
        for found in report.results:
            for name, (images, rows) in found.pictures.items():
                write_grid(pictures / f"{name}.png", images, rows)
        console.say(f"Pictures in {pictures}. They show private images: for your eyes only.")
    console.result(result)


def _show(console: Console, report: "AttackReport") -> None:
    console.say(f"Attacked: {report.target}. Measured on real data: for your eyes, not for release.")
    for found in report.results:
        console.say(f"  {found.attack.name} ({found.attack.title.lower()}): {found.verdict}")
    for name, reason in report.skipped.items():
        console.say(f"  {name}: left out, because {reason}.")
    for note in dict.fromkeys(note for found in report.results for note in found.notes):
        console.say(f"  Note: {note}")
    console.say(report.summary)
