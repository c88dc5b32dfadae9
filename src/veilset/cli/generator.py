"""`veilset generator`: train a public generator for the method latent, or convert one."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast, get_args

import typer

from veilset.cli.archives import reads_archives
from veilset.cli.console import Console, RichProgress, guarded
from veilset.cli.options import (
    AsJson,
    Channels,
    Device,
    LabelName,
    Limit,
    Out,
    Seed,
    Size,
    check_device,
    data_options,
)
from veilset.core.errors import InputError

if TYPE_CHECKING:
    from veilset.core.records import Images
    from veilset.data.archives.reading import Reading

app = typer.Typer(help="Train or convert a public generator for the method latent.", no_args_is_help=True)


@reads_archives
def train(
    public: Annotated[str, typer.Argument(metavar="PUBLIC", help="Public images: npz[:split], folder, ...")],
    *,
    out: Out,
    kind: Annotated[
        str,
        typer.Option(
            "--kind",
            help="style: trained against a critic. projected: against one that sees images through pretrained "
            "features (needs the extra pretrained). eigen: seconds, and shows public images.",
        ),
    ] = "style",
    preset: Annotated[str, typer.Option("--preset", "-p", help="Of a training: fast, default or large.")] = "default",
    steps: Annotated[
        int | None, typer.Option("--steps", min=1, help="Of a training.", show_default="the preset's")
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option("--minutes", min=0.0, help="Stop a training after so long; --resume goes on with it."),
    ] = None,
    mirrored: Annotated[bool, typer.Option("--mirrored", help="Mirror half of the images: faces, not digits.")] = False,
    size: Size = None,
    channels: Channels = None,
    limit: Limit = None,
    labels: LabelName = None,
    seed: Seed = 0,
    device: Device = "cpu",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an interrupted training.")] = False,
    as_json: AsJson = False,
    reading: "Reading | None" = None,
) -> None:
    """Train a generator on PUBLIC images; no privacy is spent or claimed.

    Every few minutes of a training a picture of what it makes is written beside --out.
    """
    from veilset.core.files import require_absent
    from veilset.core.registry import unknown_name
    from veilset.data.opening import open_images
    from veilset.methods.latent.generators.game import Watch
    from veilset.methods.latent.generators.making import make_generator
    from veilset.methods.latent.generators.recipes import STYLES, GeneratorKind, recipe_of
    from veilset.models.generators.files import description_of, save_generator
    from veilset.release.inputs import refuse_release_as_public
    from veilset.training.threads import set_thread_count

    _check_out(out)
    checkpoint = out.with_name(f"{out.name}.veilset-training")
    if not (resume and checkpoint.exists()):  # a training that a clock has stopped left what it had reached
        require_absent(out)
    refuse_release_as_public(public)
    check_device(device)
    if kind not in get_args(GeneratorKind):
        raise unknown_name("kind", kind, list(get_args(GeneratorKind)))
    if preset not in STYLES:
        raise unknown_name("preset", preset, list(STYLES))
    if checkpoint.exists() and not resume:
        raise InputError(f"An unfinished training is in {checkpoint}. Pass --resume, or remove it to start anew.")
    options = data_options(size, channels, limit, labels, None, seed, reading)
    images = open_images(public, progress=RichProgress(), needs_classes=False, **options)
    set_thread_count()
    stopped: list[int] = []
    watch = Watch(minutes=minutes, show=partial(_write_pictures, out.with_suffix(".png")), stopped=stopped.append)
    generator = make_generator(
        images,
        recipe_of(cast(GeneratorKind, kind), preset=preset, steps=steps or "auto", mirrored=mirrored),
        seed=seed,
        device=device,
        checkpoint=checkpoint,
        watch=watch,
        progress=RichProgress(),
    )
    save_generator(generator, out)
    if stopped:
        Console(as_json=as_json).say(f"Stopped after {stopped[0]} steps. To go on: the same command with --resume.")
    else:
        checkpoint.unlink(missing_ok=True)
    _say(out, description_of(generator), as_json=as_json)


def convert(
    source: Annotated[Path, typer.Argument(metavar="FILE.pkl", help="NVIDIA's StyleGAN2 pickle (PyTorch).")],
    *,
    out: Out,
    as_json: AsJson = False,
) -> None:
    """Convert NVIDIA's StyleGAN2 pickle to safetensors without running any of it."""
    from veilset.core.files import require_absent
    from veilset.models.generators.files import description_of, save_generator
    from veilset.models.generators.stylegan2_conversion import convert_stylegan2

    _check_out(out)
    require_absent(out)
    generator = convert_stylegan2(source)
    save_generator(generator, out)
    _say(out, description_of(generator), as_json=as_json)


def _write_pictures(path: Path, images: "Images") -> None:
    from veilset.core.files import write_whole
    from veilset.evaluate.pictures import beside, png_of

    write_whole(path, png_of(beside([images], columns=12, rows=4)))


def _check_out(out: Path) -> None:
    if out.suffix != ".safetensors":
        raise InputError(f"Expected --out to end in .safetensors, got {out.name}.")


def _say(out: Path, description: dict[str, object], *, as_json: bool) -> None:
    console = Console(as_json=as_json)
    console.say(f"Generator: {out}. Use it with: veilset synthesize ... --method latent --set generator={out}")
    console.result({"generator": str(out), **description})


for command in (train, convert):
    app.command()(guarded(command))
