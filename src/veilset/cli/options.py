"""Options that several commands share, each described once."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilset.core.errors import InputError
from veilset.models import NETWORKS

if TYPE_CHECKING:
    from veilset.data.archives.reading import Reading

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout; progress goes to stderr.")]
Method = Annotated[str, typer.Option("--method", "-m", help="A method; see `veilset methods`.")]
_EPSILON = typer.Option("--epsilon", "-e", help="How much may be spent; 1 is strong, 10 is weak.")
Epsilon = Annotated[float, _EPSILON]
EpsilonOrNone = Annotated[float | None, _EPSILON]
Delta = Annotated[
    float | None,
    typer.Option("--delta", help="Chance that the bound fails.", show_default="largest 10^-k below 1/(10 n)"),
]
Preset = Annotated[str, typer.Option("--preset", "-p", help="fast, default, or another that `veilset methods` lists.")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A setting of the method.")]
Seed = Annotated[int, typer.Option("--seed", help="Reproduces everything but the privacy noise.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda or cuda:N.")]
Size = Annotated[int | None, typer.Option("--size", min=8, max=1024, help="Resize images to this many pixels a side.")]
Channels = Annotated[int | None, typer.Option("--channels", help="Convert to grey (1) or colour (3).")]
Limit = Annotated[
    int | None, typer.Option("--limit", min=1, help="Use about this many records (or groups), drawn by --seed.")
]
Unit = Annotated[
    str | None,
    typer.Option(
        "--unit", help="What is protected: record, or group (a patient).", show_default="group where groups are known"
    ),
]
LabelName = Annotated[str | None, typer.Option("--labels", help="Another array or column of labels.")]
GroupName = Annotated[str | None, typer.Option("--groups", help="The array or column of groups, e.g. patients.")]
Classes = Annotated[str | None, typer.Option("--classes", help="The label values in order, separated by commas.")]
STUDENTS = (
    f"{', '.join(NETWORKS)}, one of another width (resnet18@16), your own as module:function, or auto, as the release "
    "asks for."
)
Student = Annotated[str, typer.Option("--student", help=f"A network: {STUDENTS}")]
Epochs = Annotated[int | None, typer.Option("--epochs", min=1, help="Passes of a student over the images.")]
Title = Annotated[str | None, typer.Option("--title", help="The title of what is published.")]
Licence = Annotated[
    str | None, typer.Option("--license", help="Its licence: cc-by-4.0, cc0-1.0, mit, ..., or an address.")
]
Publisher = Annotated[str | None, typer.Option("--publisher", help="Who publishes it.")]
Description = Annotated[
    str | None, typer.Option("--description", help="Whose images it stands for, and how those were collected.")
]
Balance = Annotated[
    str | None,
    typer.Option(
        "--balance",
        help="Of released classes or findings: even, or as-found (by a noisy count, which is paid for).",
        show_default="the method's",
    ),
]
_BALANCE, _BALANCES = "balance", {"even": "even", "as-found": "as_found"}
Out = Annotated[Path, typer.Option("--out", "-o", help="Where to write; must not exist yet.")]


def settings_of(pairs: list[str] | None, option: str = "--set") -> dict[str, str]:
    """`--set key=value` options as a mapping."""
    settings = {}
    for pair in pairs or []:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise InputError(f"Expected {option} KEY=VALUE, got {pair!r}.")
        settings[key] = value
    return settings


def with_balance(settings: dict[str, str], method: str, balance: str | None) -> dict[str, str]:
    """Settings with `--balance`, where it is given and the method can follow it."""
    from veilset.methods import METHODS

    if balance is None:
        return settings
    if balance not in _BALANCES:
        raise InputError(f"Expected --balance {' or '.join(_BALANCES)}, got {balance!r}.")
    if _BALANCE not in METHODS.get(method).settings_type.model_fields:
        able = [name for name in METHODS if _BALANCE in METHODS.get(name).settings_type.model_fields]
        raise InputError(f"{method} has one way to share its images out. --balance is for {', '.join(able)}.")
    if _BALANCE in settings:
        raise InputError(f"--balance {balance} and --set {_BALANCE}={settings[_BALANCE]} say it twice. Leave one out.")
    return {**settings, _BALANCE: _BALANCES[balance]}


def about_options(
    title: str | None, licence: str | None, publisher: str | None, description: str | None
) -> dict[str, str]:
    """What the publisher says, where anything is said."""
    said = {"title": title, "licence": licence, "publisher": publisher, "description": description}
    return {name: value for name, value in said.items() if value is not None}


def data_options(
    size: int | None,
    channels: int | None,
    limit: int | None,
    labels: str | None,
    classes: str | None,
    seed: int,
    reading: "Reading | None" = None,
) -> dict[str, Any]:
    """Keyword arguments for `open_images`."""
    if channels not in (None, 1, 3):
        raise InputError(f"Expected --channels 1 or 3, got {channels}.")
    names = None if classes is None else tuple(name.strip() for name in classes.split(","))
    chosen = {"size": size, "channels": channels, "limit": limit, "labels": labels, "classes": names, "seed": seed}
    return chosen if reading is None else chosen | {"reading": reading}


def view_of_release(release: Path, size: int | None, channels: int | None) -> tuple[int | None, int | None]:
    """The size and the colours to read real images with: those that are asked for, else those of the release."""
    from veilset.release import layout
    from veilset.release.certificate import read_certificate

    layout.require_release(release)
    height, width, depth = read_certificate(release / layout.CERTIFICATE).facts.shape
    return (height if height == width else None) if size is None else size, channels or depth


def check_device(device: str) -> None:
    """Refuse a device that is not there, before any work."""
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise InputError(f"Cannot use --device {device}: {str(error).splitlines()[0]}. Try --device cpu.") from error
