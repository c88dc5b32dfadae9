"""`veilset account`: what a dataset has spent over all releases."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from veilset.cli.console import Console
from veilset.cli.options import AsJson
from veilset.core.errors import InputError

if TYPE_CHECKING:
    from veilset.privacy.account import Reservation


def account(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The account; made when a limit is given.")],
    *,
    limit_epsilon: Annotated[float | None, typer.Option("--limit-epsilon", help="Refuse more than this.")] = None,
    limit_delta: Annotated[float | None, typer.Option("--limit-delta", help="At this delta.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Raise a limit that was set before.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a dataset has spent over all runs and what is left; set its limit."""
    from veilset.privacy.account import Account
    from veilset.privacy.budget import Budget

    if (limit_epsilon is None) != (limit_delta is None):
        raise InputError("Expected --limit-epsilon and --limit-delta together.")
    if limit_epsilon is None and not file.exists():
        raise InputError(f"There is no account {file}. Make one with --limit-epsilon and --limit-delta.")
    book = Account(file)
    if limit_epsilon is not None and limit_delta is not None:
        book.set_limit(Budget(limit_epsilon, limit_delta), allow_raise=force)
    limit, runs = book.limit, book.reservations
    delta = limit.delta if limit else max((run.budget.delta for run in runs), default=1e-6)
    spent, left = book.spent(delta), book.left()
    console = Console(as_json=as_json)
    if not as_json:
        rows = [[r.method, *_asked(r), r.time[:16].replace("T", " "), r.run[:8]] for r in runs]
        console.table(f"Account {file}", ["method", "epsilon asked", "delta", "time (UTC)", "run"], rows)
        if spent is None:
            console.say("No epsilon holds for this data: a run without a guarantee has read it.")
        else:
            console.say(f"Spent: epsilon {spent:.4f} at delta {delta:g}, all {len(runs)} runs together.")
        if limit:
            console.say(
                f"Limit: epsilon {limit.epsilon:g} at delta {limit.delta:g}. Left for one more run: {left:.4f}."
            )
        else:
            console.say("No limit is set. Set one with --limit-epsilon and --limit-delta.")
    console.result(
        {
            "account": str(file),
            "runs": [
                {
                    "run": r.run,
                    "time": r.time,
                    "method": r.method,
                    "guarantee": r.guarantee,
                    "epsilon": r.budget.epsilon if r.guarantee == "dp" else None,
                    "delta": r.budget.delta if r.guarantee == "dp" else None,
                }
                for r in runs
            ],
            "spent_epsilon": spent,
            "delta": delta,
            "limit": None if limit is None else {"epsilon": limit.epsilon, "delta": limit.delta},
            "left_epsilon": left,
        }
    )


def _asked(run: "Reservation") -> tuple[str, str]:
    return (f"{run.budget.epsilon:g}", f"{run.budget.delta:g}") if run.guarantee == "dp" else ("no guarantee", "")
