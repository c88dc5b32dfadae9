"""`veilset plan`: what a run would spend, without any data."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from veilset.cli.console import Console, epsilon_text
from veilset.cli.options import AsJson, Balance, Delta, EpsilonOrNone, Preset, Settings, settings_of, with_balance
from veilset.core.errors import InputError

if TYPE_CHECKING:
    from veilset.privacy.vault import PublicFacts


def plan(
    *,
    method: Annotated[
        str | None,
        typer.Option("--method", "-m", help="A method; see `veilset methods`.", show_default="one is recommended"),
    ] = None,
    epsilon: EpsilonOrNone = None,
    records: Annotated[int, typer.Option("--records", "-n", min=1, help="How many records (or groups) there are.")],
    delta: Delta = None,
    shape: Annotated[str, typer.Option("--shape", help="Height x width x channels of the images.")] = "28x28x1",
    classes: Annotated[int, typer.Option("--classes", min=1, help="How many classes there are.")] = 10,
    unit: Annotated[str, typer.Option("--unit", help="record or group.")] = "record",
    preset: Preset = "default",
    settings: Settings = None,
    balance: Balance = None,
    samples: Annotated[int | None, typer.Option("--samples", min=1, help="How many images to release.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a run would spend, how long it takes and what rules decided, without any data.

    Without --method or --epsilon one is recommended; `veilset choose` asks more before it recommends.
    """
    from veilset.pipeline.choosing import Answers, recommend
    from veilset.pipeline.costs import estimate
    from veilset.pipeline.job import Job, draw_plan, method_of
    from veilset.privacy.accounting import epsilon_of

    facts = facts_of(records, shape, classes, unit)
    console = Console(as_json=as_json)
    reasons: tuple[str, ...] = ()
    if method is None or epsilon is None:
        advice = recommend(Answers(facts=facts, epsilon=epsilon))
        reasons = advice.reasons if method is None else advice.reasons[1:]
        method, epsilon = method or advice.method, advice.epsilon
        for reason in reasons:
            console.say(reason)
    chosen = with_balance(settings_of(settings), method, balance)
    job = Job(method=method, epsilon=epsilon, delta=delta, preset=preset, settings=chosen)
    drawn = draw_plan(job, facts)
    costs = {name: epsilon_of(drawn.events, drawn.budget.delta, name) for name in ("pld", "rdp")}
    samples = samples or method_of(job).default_samples(facts)
    cost = estimate(method, preset, facts, samples)
    if not as_json:
        columns = ["event", "noise multiplier", "sampling rate", "times", "epsilon alone"]
        # Shards that are alike share a line.
        alike = Counter(replace(event, shard=None if event.shard is None else 0) for event in drawn.events)
        rows = [
            [
                ("" if e.source is None else "spent before: ")
                + (e.label if count == 1 else f"{e.label}, each of {count} shards"),
                f"{e.noise_multiplier:.4g}",
                f"{e.sampling_rate:.4g}",
                str(e.count) if e.bands == 1 else f"{e.count} ({e.steps} steps, {e.bands} bands)",
                f"{epsilon_of([e], drawn.budget.delta):.3f}",
            ]
            for e, count in alike.items()
        ]
        console.table(f"{method} on {records} {unit}s", columns, rows)
        console.say(
            f"Together: epsilon {epsilon_text(costs['pld'])} at delta {drawn.budget.delta:g} "
            f"(by RDP {epsilon_text(costs['rdp'])})."
        )
        if cost is None:
            console.say(f"Time: no run of {method} was measured.")
        else:
            console.say(f"{samples:,} images. {cost.sentence()}")
        for name, value in drawn.facts.items():
            console.say(f"  {name}: {value:.4g}" if isinstance(value, float) else f"  {name}: {value}")
        if drawn.decided:
            console.say("Decided by rules:")
        for name, found in drawn.decided.items():
            console.say(f"  {name} = {found.value}, because {found.why}")
    console.result(
        {
            "method": method,
            "epsilon": costs["pld"],
            "epsilon_rdp": costs["rdp"],
            "delta": drawn.budget.delta,
            "unit": unit,
            "events": [event.to_json() for event in drawn.events],
            "facts": dict(drawn.facts),
            "samples": samples,
            "seconds": None if cost is None else round(cost.seconds),
            "memory_mb": None if cost is None else round(cost.memory_mb),
            "recommended": list(reasons),
            "decided": {name: {"value": found.value, "why": found.why} for name, found in drawn.decided.items()},
        }
    )


def facts_of(records: int, shape: str, classes: int, unit: str, *, findings: bool = False) -> "PublicFacts":
    """What will be declared public of data that nobody has read yet."""
    from veilset.privacy.vault import PublicFacts

    if unit not in ("record", "group"):
        raise InputError(f"Expected --unit record or group, got {unit!r}.")
    return PublicFacts(
        units=records,
        unit="group" if unit == "group" else "record",
        shape=shape_of(shape),
        class_names=tuple(str(k) for k in range(classes)),
        findings=findings,
    )


def shape_of(text: str) -> tuple[int, int, int]:
    """`--shape 28x28x1` as numbers."""
    parts = text.lower().split("x")
    if len(parts) in (2, 3) and all(part.isdigit() and int(part) > 0 for part in parts):
        height, width, channels = (*map(int, parts), 1)[:3]
        if channels in (1, 3):
            return height, width, channels
    raise InputError(f"Expected --shape HEIGHTxWIDTH or HEIGHTxWIDTHx1 or x3, got {text!r}.")
