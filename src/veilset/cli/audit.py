"""`veilset audit`: try to break a claim."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilset.cli.console import Console, RichProgress
from veilset.cli.options import AsJson
from veilset.core.errors import AuditContradictionError, InputError, VeilsetError

if TYPE_CHECKING:
    from veilset.audit.game import Finding

_ONE_RUN = "teacher_one_run"


def audit(
    *,
    method: Annotated[str | None, typer.Option("--method", "-m", help="A method; see `veilset methods`.")] = None,
    mechanism: Annotated[
        str | None, typer.Option("--mechanism", help=f"One way to touch private rows, {_ONE_RUN}, or all.")
    ] = None,
    sabotage: Annotated[bool, typer.Option("--sabotage", help="Audit broken twins: each must be caught.")] = False,
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", min=0.1, help="The claim that is tested.")] = 4.0,
    runs: Annotated[int | None, typer.Option("--runs", min=50, help="Runs with the record, and without it.")] = None,
    confidence: Annotated[float, typer.Option("--confidence", help="Of the lower bound.")] = 0.95,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the result as JSON, for a report.")] = None,
    as_json: AsJson = False,
) -> None:
    """Play a game against the real code, on toy records, and bound epsilon from below. Exit code 4 when it breaks."""
    if (method and mechanism) or not (method or mechanism or sabotage):
        raise InputError("Expected --method, --mechanism or --sabotage. Try: veilset audit --mechanism gaussian_sum")
    if not 0.5 <= confidence < 1:
        raise InputError(f"Expected --confidence of at least 0.5 and below 1, got {confidence}.")
    if out is not None:
        from veilset.core.files import require_absent

        require_absent(out)
    console = Console(as_json=as_json)
    result: dict[str, Any] = {}
    if method is not None or mechanism is not None:
        findings = _findings(method, mechanism, epsilon, runs, confidence)
        breaches, moved = _breaches(), _moved(method, mechanism)
        worst = max(findings, key=lambda finding: finding.lower_bound / finding.claimed_epsilon)
        contradicted = any(finding.contradicted for finding in findings) or bool(breaches or moved)
        result |= worst.to_json() | {
            "confidence": confidence,
            "contradicted": contradicted,
            "findings": [finding.to_json() for finding in findings if finding is not worst],
            "code_breaches": breaches,
            "neighbours": moved,
        }
        _explain(console, findings, breaches, moved)
    missed: list[str] = []
    if sabotage:
        twins = _sabotages(runs, confidence)
        result["sabotages"] = [finding.to_json() for finding in twins]
        missed = [finding.name for finding in twins if not finding.contradicted]
        _show_sabotages(console, twins)
    if out is not None:
        from veilset.core.files import write_whole

        write_whole(out, json.dumps(result, indent=2).encode())
        console.say(f"Written to {out}.")
    console.result(result)
    if result.get("contradicted"):
        raise typer.Exit(AuditContradictionError.exit_code)
    if missed:
        raise VeilsetError(f"The audit did not catch {', '.join(missed)}. Pass more --runs; if it stays, report this.")


def _findings(
    method: str | None, mechanism: str | None, epsilon: float, runs: int | None, confidence: float
) -> "list[Finding]":
    from veilset.audit.game import audit as play
    from veilset.audit.game import confidence_of_each
    from veilset.audit.mechanisms import MECHANISMS, mechanism_subject
    from veilset.training.threads import set_thread_count

    set_thread_count()
    progress = RichProgress()
    if mechanism == _ONE_RUN:
        from veilset.audit.one_run import audit_teacher

        progress.note("training one teacher on canaries")
        return audit_teacher(epsilon, confidence=confidence_of_each(confidence, 2))
    if method is not None:
        from veilset.audit.methods import method_subjects

        subjects = method_subjects(method, epsilon)
    else:
        names = list(MECHANISMS) if mechanism == "all" else [str(mechanism)]
        subjects = [mechanism_subject(name, epsilon) for name in names]
    # One verdict is given on all of them: without this, fifteen sound mechanisms would fail about every other time.
    confidence = confidence_of_each(confidence, len(subjects))
    with progress.task("audits", len(subjects)) as task:
        findings = []
        for subject in subjects:
            findings.append(play(subject, runs=runs, confidence=confidence))
            task.advance()
    return findings


def _moved(method: str | None, mechanism: str | None) -> list[str]:
    """What differs between neighbouring datasets and was not paid for."""
    from veilset.audit.mechanisms import MECHANISMS
    from veilset.audit.neighbour_methods import WORLDS, mechanism_neighbours, method_neighbours, preset_neighbours
    from veilset.audit.neighbours import neighbour_run
    from veilset.methods import METHODS

    if method is not None:
        subjects = [subject for worlds in WORLDS.values() for subject in method_neighbours(method, worlds())]
        subjects += [preset_neighbours(method, preset, WORLDS["groups"]()) for preset in METHODS.get(method).presets]
    else:
        subjects = [mechanism_neighbours(name) for name in MECHANISMS if mechanism in (name, "all")]
    moved = []
    with RichProgress().task("neighbour runs", len(subjects)) as task:
        for subject in subjects:
            moved += [f"{subject.name}: {one.what}" for one in neighbour_run(subject.play, subject.worlds)]
            task.advance()
    return moved


def _breaches() -> list[str]:
    from veilset.audit.code import check_source

    return [str(breach) for breach in check_source()]


def _sabotages(runs: int | None, confidence: float) -> "list[Finding]":
    from veilset.audit.sabotage import SABOTAGES, try_sabotage
    from veilset.audit.sabotage_neighbours import neighbour_sabotages

    exact = neighbour_sabotages()
    with RichProgress().task("sabotages", len(SABOTAGES) + len(exact)) as task:
        findings = []
        for subject in exact:
            findings.append(subject.finding())
            task.advance()
        for twin in SABOTAGES:
            findings.append(try_sabotage(twin, runs=runs, confidence=confidence))
            task.advance()
    return findings


def _explain(console: Console, findings: "list[Finding]", breaches: list[str], moved: list[str]) -> None:
    for finding in findings:
        console.say(f"{finding.name}: claims epsilon {finding.claimed_epsilon:.3f} at delta {finding.delta:g}.")
        times = "One run" if finding.runs == 1 else f"{finding.runs} runs with a record and as many without it"
        shown = f"{times} show at least {finding.lower_bound:.3f}, with {100 * finding.confidence:.4g} % confidence"
        if finding.contradicted:
            console.warn(f"{shown}. The claim is CONTRADICTED: do not publish what it protects.")
        else:
            console.say(f"  {shown}: the claim is not contradicted.")
    for breach in breaches:
        console.warn(f"Code rule broken: {breach}")
    if not breaches:
        console.say("The source breaks no rule about private rows.")
    for what in moved:
        console.warn(f"Moved without being paid for: {what}. The claim is CONTRADICTED.")
    if not moved:
        console.say("On neighbouring datasets nothing moves that was not paid for.")
    console.say("An audit can refute a claim; it cannot prove one. The proofs are in the methods' pages.")


def _show_sabotages(console: Console, findings: "list[Finding]") -> None:
    if not console.as_json:
        rows = [
            [f.name, f"{f.claimed_epsilon:.3f}", _bound(f), "caught" if f.contradicted else "NOT caught"]
            for f in findings
        ]
        console.table("Sabotages", ["broken twin", "claimed epsilon", "lower bound", "verdict"], rows)


def _bound(finding: "Finding") -> str:
    from veilset.audit.neighbours import UNBOUNDED

    return "no bound" if finding.lower_bound >= UNBOUNDED else f"{finding.lower_bound:.2f}"
