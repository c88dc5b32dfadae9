"""`veilset convert`: from a trained network alone to a release."""

from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console, RichProgress
from veilset.cli.options import (
    AsJson,
    Channels,
    Classes,
    Description,
    Device,
    Licence,
    Out,
    Publisher,
    Seed,
    Settings,
    Title,
    about_options,
    check_device,
    settings_of,
)
from veilset.core.errors import InputError


def convert(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL...",
            help="A release, a student of veilset train, or files of weights; several answer together.",
        ),
    ],
    *,
    out: Out,
    network: Annotated[
        str | None,
        typer.Option("--network", help="Of a file: convnet, convnet@16, module:function, torchvision:NAME, timm:NAME."),
    ] = None,
    size: Annotated[int | None, typer.Option("--size", min=16, max=64, help="Side of the images it knows.")] = None,
    channels: Channels = None,
    classes: Classes = None,
    mean: Annotated[str | None, typer.Option("--mean", help="What it subtracts from pixels in [0, 1].")] = None,
    deviation: Annotated[str | None, typer.Option("--deviation", help="What it divides them by.")] = None,
    samples: Annotated[int, typer.Option("--samples", min=1, help="How many images to release.")] = 20_000,
    settings: Settings = None,
    sign: Annotated[Path | None, typer.Option("--sign", help="Sign with this private key; see veilset keygen.")] = None,
    key: Annotated[
        Path | None, typer.Option("--key", help="The public key that signed the release MODEL; --sign needs it.")
    ] = None,
    title: Title = None,
    licence: Licence = None,
    publisher: Publisher = None,
    description: Description = None,
    seed: Seed = 0,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Make a release from a trained network alone: no private image is needed or read.

    A release's guarantee carries over to what is made of its classifier. Of any other network nobody here knows what it
    remembers, so that release says `guarantee: none`; several of them, trained on parts of the data, are no exception.
    """
    from veilset.core.files import require_absent
    from veilset.pipeline.convert import Conversion, convert_networks, convert_release
    from veilset.pipeline.model_files import Declared
    from veilset.release import layout
    from veilset.release.about import About
    from veilset.release.signing import load_private_key

    console = Console(as_json=as_json)
    require_absent(out)
    about = About(**about_options(title, licence, publisher, description))
    if sign is not None:
        load_private_key(sign)
    check_device(device)
    for model in models:
        if not model.exists():
            raise InputError(
                f"{model} does not exist. Pass a release, a student of veilset train, or a file of weights."
            )
    conversion = Conversion(samples=samples, seed=seed, device=device, settings=settings_of(settings))
    of_file = (network, size, channels, classes, mean, deviation)
    if len(models) == 1 and (models[0] / layout.CERTIFICATE).exists():
        if any(value is not None for value in of_file):
            raise InputError("A release says itself what its network is. Leave --network, --size, ... out.")
        if sign is not None and key is None:
            raise InputError(
                f"Your signature would vouch for what {models[0]} claims. Pass --key with the public key of whoever "
                "signed it, or leave --sign out."
            )
        release = convert_release(models[0], conversion, RichProgress(), public_key=key)
    else:
        if key is not None:
            raise InputError("--key belongs to a release as MODEL. Leave it out.")
        declared = Declared(
            network=network,
            size=size,
            channels=channels,
            class_names=None if classes is None else tuple(name.strip() for name in classes.split(",")),
            mean=_numbers(mean, "--mean"),
            deviation=_numbers(deviation, "--deviation"),
        )
        release = convert_networks(models, declared, conversion, RichProgress())
    release.save(out, sign_key=sign, about=about)
    certificate = release.certificate
    for reason in certificate.reasons:
        console.warn(f"No guarantee: {reason}")
    console.say(f"Release: {out} ({len(release)} images), guarantee {certificate.guarantee}.")
    console.result(
        {
            "release": str(out),
            "guarantee": certificate.guarantee,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "samples": len(release),
        }
    )


def _numbers(text: str | None, option: str) -> tuple[float, ...] | None:
    if text is None:
        return None
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError as error:
        raise InputError(f"Expected {option} as numbers separated by commas, got {text!r}.") from error
