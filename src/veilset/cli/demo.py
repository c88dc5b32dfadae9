"""`veilset demo`: the whole story on built-in data."""

import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson, Seed

_PRIVATE, _HELD_OUT = "builtin:mnist5k:train", "builtin:mnist5k:test"
_PUBLIC = "builtin:photos"
_METHOD, _PRESET, _EPSILON, _DELTA = "imgsyn", "fast", 5.0, 1e-5
# Enough for good students in a minute or two; `veilset synthesize` makes 60,000 images unless told otherwise.
_SAMPLES, _EPOCHS = 16_000, 8
_STUDENTS = "convnet,scatternet"


def demo(
    *,
    out: Annotated[Path, typer.Option("--out", "-o", help="A folder for the results.")] = Path("veilset-demo"),
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Play the whole story on 4,000 built-in digits: synthesize, verify, evaluate, report."""
    from veilset.cli.evaluate import evaluate
    from veilset.cli.report import report
    from veilset.cli.synthesize import synthesize
    from veilset.cli.verify import verify
    from veilset.core.files import require_absent
    from veilset.evaluate.pictures import write_grid
    from veilset.release.format import load_release

    require_absent(out)
    console = Console(as_json=as_json)
    release, picture, scores = out / "release", out / "samples.png", out / "evaluation.json"
    page, inside = out / "report.html", out / "report-internal.html"
    # The commands below speak to people; with --json their words go to stderr, and stdout keeps one object.
    with contextlib.redirect_stdout(sys.stderr) if as_json else contextlib.nullcontext():
        console.say(
            f"1. Synthesize: 4,000 digits go into a vault; epsilon {_EPSILON:g} is spent on them, once. "
            "What comes out are photographs of something else."
        )
        # Its own account, so that trying the demo twice is not counted against the built-in digits.
        account = out / "account.sqlite"
        synthesize(
            _PRIVATE,
            method=_METHOD,
            public=_PUBLIC,
            samples=_SAMPLES,
            preset=_PRESET,
            epsilon=_EPSILON,
            delta=_DELTA,
            out=release,
            account=account,
            seed=seed,
        )
        console.say("\n2. Verify: anyone can recompute the guarantee from the release alone.")
        verify(release)
        console.say("\n3. Evaluate: two students that see only the release are tested on 1,000 real digits.")
        evaluate(release, test=_HELD_OUT, student=_STUDENTS, epochs=_EPOCHS, out=scores, seed=seed)
        synthetic = load_release(release)
        write_grid(picture, synthetic.images, synthetic.labels)
        console.say("\n4. Report: one page for everyone, and one with the scores for you alone.")
        report(release, out=page)
        report(release, evaluation=[scores], internal=True, out=inside)
        console.say(f"\nOpen {inside} in a browser, then look at {picture} and {release / 'card.md'}.")
        console.say(
            "Then try your own data: veilset synthesize YOUR_IMAGES --public OTHER_IMAGES --method imgsyn --epsilon 1 "
            "--out release"
        )
    console.result(
        {
            "out": str(out),
            "release": str(release),
            "picture": str(picture),
            "evaluation": str(scores),
            "report": str(page),
            "internal_report": str(inside),
        }
    )
