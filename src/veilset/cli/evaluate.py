"""`veilset evaluate`: what a release is worth on real test images, and how far it is from other images."""

import dataclasses
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilset.cli.archives import reads_archives
from veilset.cli.console import Console, RichProgress
from veilset.cli.options import (
    STUDENTS,
    AsJson,
    Channels,
    Classes,
    Delta,
    Device,
    Epochs,
    GroupName,
    LabelName,
    Limit,
    Seed,
    Size,
    check_device,
    data_options,
    view_of_release,
)
from veilset.core.errors import InputError

if TYPE_CHECKING:
    from veilset.core.records import Records
    from veilset.data.archives.reading import Reading
    from veilset.pipeline.evaluate import Evaluation


@reads_archives
def evaluate(
    release: Annotated[Path, typer.Argument(metavar="RELEASE", help="A release directory.")],
    *,
    test: Annotated[str, typer.Option("--test", help="Real test images: npz:split, folder, ...")],
    student: Annotated[
        str,
        typer.Option(
            "--student", help=f"Networks separated by commas; scratch is convnet, resnet18@16 and wrn@1: {STUDENTS}"
        ),
    ] = "auto",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="How many students of each kind to train.")] = 1,
    epochs: Epochs = None,
    private: Annotated[
        str | None, typer.Option("--private", help="The private training images, for likeness and the ceiling.")
    ] = None,
    public: Annotated[str | None, typer.Option("--public", help="Public images to compare with.")] = None,
    references: Annotated[
        bool, typer.Option("--references", help="Also the DP teacher, public images labelled by it, the ceiling.")
    ] = False,
    controls: Annotated[
        bool,
        typer.Option("--controls", help="Also the same students on labelled noise and on shuffled labels."),
    ] = False,
    extractor: Annotated[
        str,
        typer.Option("--extractor", help="Features for FID: wavelets, lite0, or a TorchScript file (Inception)."),
    ] = "auto",
    paid_epsilon: Annotated[
        float | None, typer.Option("--paid-epsilon", help="Buy an accuracy that may be published.")
    ] = None,
    delta: Delta = None,
    account: Annotated[
        Path | None, typer.Option("--account", help="The test set's account.", show_default="one kept for this data")
    ] = None,
    groups: GroupName = None,
    by: Annotated[
        str | None,
        typer.Option("--by", metavar="A,B", help="Also score each value of these columns of the test set: sex,age."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the result to this file, too.")] = None,
    size: Size = None,
    channels: Channels = None,
    limit: Limit = None,
    labels: LabelName = None,
    classes: Classes = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
    reading: "Reading | None" = None,
) -> None:
    """Train students on the release alone and score them on a real test set. The result is NOT for release.

    With --paid-epsilon one accuracy is counted with noise and paid from the test set's account: that may be published.
    """
    from veilset.data.opening import open_images
    from veilset.data.subgroups import read_subgroups
    from veilset.pipeline.evaluate import Evaluation
    from veilset.pipeline.evaluate import evaluate as measure

    check_device(device)
    _check_place(out, release, paid=paid_epsilon is not None)
    size, channels = view_of_release(release, size, channels)
    options = data_options(size, channels, limit, labels, classes, seed, reading) | {"groups": groups}
    wanted = Evaluation(
        students=tuple(name.strip() for name in student.split(",")),
        seeds=seeds,
        first_seed=seed,
        epochs=epochs,
        device=device,
        wants_references=references,
        wants_controls=controls,
        extractor=extractor,
    )
    progress, console = RichProgress(), Console(as_json=as_json)
    tested = open_images(test, progress=progress, **options)
    columns = [] if by is None else list(dict.fromkeys(name.strip() for name in by.split(",")))
    parts = read_subgroups(test, columns, tested, **options)
    if paid_epsilon is not None:
        if private or public or references or controls or by:
            raise InputError(
                "A paid accuracy stands alone. Leave --private, --public, --references, --controls and --by out."
            )
        wanted = _for_unit_of(tested, wanted)
        result = _pay(release, wanted, tested, paid_epsilon, delta, account, out or Path("evaluation.json"))
        _say_paid(console, result["paid"])
    else:
        if delta is not None or account is not None:
            raise InputError("--delta and --account belong to --paid-epsilon. Add it or leave them out.")
        train = None if private is None else open_images(private, progress=progress, **options)
        other = (
            None
            if public is None
            else open_images(public, size=size, channels=channels, progress=progress, needs_classes=False)
        )
        wanted = _for_unit_of(tested if train is None else train, wanted)
        result = measure(release, wanted, test=tested, train=train, public=other, by=parts, progress=progress)
        _say(console, result)
    if out is not None:
        _write(out, result)
        console.say(f"Written to {out}.")
    console.result({key: value for key, value in result.items() if key != "pictures"})


def _for_unit_of(records: "Records", wanted: "Evaluation") -> "Evaluation":
    """Groups are what is protected where they are known, as for `synthesize`."""
    return dataclasses.replace(wanted, unit="record" if records.groups is None else "group")


def _check_place(out: Path | None, release: Path, *, paid: bool) -> None:
    if out is not None and out.resolve().is_relative_to(release.resolve()):
        raise InputError("What was measured on private data does not go into the release. Choose another --out.")
    if paid and out is None:
        raise InputError("A paid accuracy must not get lost. Pass --out FILE.")


def _write(out: Path, result: dict[str, Any]) -> None:
    from veilset.core.files import write_whole

    write_whole(out, (json.dumps(result, indent=2, allow_nan=False) + "\n").encode())


def _pay(
    release: Path, wanted: Any, test: "Records", epsilon: float, delta: float | None, account: Path | None, out: Path
) -> dict[str, Any]:
    from veilset.pipeline.evaluate import pay_for_accuracy
    from veilset.privacy.account import Account

    workspace = out.with_name(f"{out.name}.veilset-run")
    result = pay_for_accuracy(
        release,
        wanted,
        test=test,
        epsilon=epsilon,
        delta=delta,
        account=None if account is None else Account(account),
        workspace=workspace,
        progress=RichProgress(),
    )
    _write(out, result)
    shutil.rmtree(workspace)
    return result


def _say_paid(console: Console, paid: dict[str, Any]) -> None:
    low, high = paid["interval"]
    console.say(f"Accuracy of {paid['student']}, counted with noise: {100 * paid['accuracy']:.2f} %")
    console.say(f"  95 % interval {100 * low:.2f} to {100 * high:.2f}, noise included; it may be published.")
    console.say(f"  It cost the {paid['n']} {paid['unit']}s of the test set epsilon {paid['epsilon']:.4g}.")


_OF_A_FINDING = {"AUC": "auc", "average precision": "average_precision", "balanced": "balanced_accuracy"}


def _say(console: Console, result: dict[str, Any]) -> None:
    for one in result["students"]:
        spread = f" +- {100 * one['accuracy_std']:.2f}" if len(one["seeds"]) > 1 else ""
        low, high = one["accuracy_interval"]
        console.say(
            f"Accuracy of {one['student']} on {one['test_images']} real images: {100 * one['accuracy']:.2f} %{spread}"
        )
        ranking = "" if one["auc"] is None else f"; AUC {one['auc']:.4f}"
        rest = f"; calibration error {one['calibration_error']:.3f}" if "calibration_error" in one else ""
        balanced = one["balanced_accuracy"]
        shown = "" if balanced is None else f"; balanced {100 * balanced:.2f} %"
        console.say(f"  95 % interval {100 * low:.2f} to {100 * high:.2f}{shown}{ranking}{rest}")
        for each in one.get("per_finding", []):
            scores = [f"{key} {each[name]:.3f}" for key, name in _OF_A_FINDING.items() if each[name] is not None]
            console.say(f"  {each['name']} ({each['n']} images): {', '.join(scores) or 'cannot be told'}")
        for part in one.get("by", []):
            console.say(f"  {part['column']} = {part['name']} ({part['n']} images): {_of_a_part(part)}")
    if len(result["students"]) > 1:
        console.say(f"Mean of the {len(result['students'])} networks: {100 * result['mean_accuracy']:.2f} %")
    for mark in result["controls"]:
        console.say(f"Control, {mark['student']}. {mark['title']}: {100 * mark['accuracy']:.2f} %")
    for mark in result["reference_scores"]:
        console.say(f"{mark['title']}: {100 * mark['accuracy']:.2f} %")
    for mark in result["reference_scores_skipped"]:
        console.say(f"No {mark['name']}: {mark['reason']}.")
    console.say(f"By the features of {result['extractor']}:")
    for score in result["fidelity"]:
        beside = "" if score["against"] == "none" else f" against {score['against']} images"
        console.say(f"{score['name']}{beside}: {score['value']:.4g}")
    console.say("  Measured on real data: for your eyes, not for release.")


def _of_a_part(part: dict[str, Any]) -> str:
    """What a line says of a subgroup: AUC where it can be told, and accuracy, with their intervals."""
    said = []
    if part.get("auc") is not None:
        low, high = part["auc_interval"]
        said.append(f"AUC {part['auc']:.3f} ({low:.3f} to {high:.3f})")
    if part.get("accuracy") is not None:
        low, high = part["accuracy_interval"]
        said.append(f"accuracy {100 * part['accuracy']:.1f} % ({100 * low:.1f} to {100 * high:.1f})")
    return ", ".join(said) or "cannot be told"
