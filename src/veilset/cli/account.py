"""`veilset account`: what a dataset has spent over all releases."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from veilset.cli.console import Console, epsilon_text
from veilset.cli.options import AsJson
from veilset.core.errors import InputError

if TYPE_CHECKING:
    from veilset.privacy.account import Account, Reservation
    from veilset.privacy.budget import Budget


def account(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[FILE | DATA]",
            help="An account, or the data whose account is meant; left out, all accounts are listed.",
        ),
    ] = None,
    *,
    limit_epsilon: Annotated[float | None, typer.Option("--limit-epsilon", help="Refuse more than this.")] = None,
    limit_delta: Annotated[float | None, typer.Option("--limit-delta", help="At this delta.")] = None,
    images_per_group: Annotated[
        int | None,
        typer.Option("--images-per-group", min=1, help="Images of one patient at most: totals are for patients then."),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Raise a limit, or lower a bound, that was set before.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show what a dataset has spent over all runs, for whom, and what is left; set its limit."""
    from veilset.privacy.account import Account
    from veilset.privacy.budget import Budget

    console = Console(as_json=as_json)
    if (limit_epsilon is None) != (limit_delta is None):
        raise InputError("Expected --limit-epsilon and --limit-delta together.")
    changes = limit_epsilon is not None or images_per_group is not None
    if name is None:
        if changes:
            raise InputError("Expected the account to change. See them all with: veilset account")
        _list(console)
        return
    file = _file_of(name)
    if not changes and not file.exists():
        raise InputError(f"There is no account {file}. Make one with --limit-epsilon and --limit-delta.")
    book = Account(file)
    if images_per_group is not None:
        book.declare_images_per_group(images_per_group, allow_lower=force)
    if limit_epsilon is not None and limit_delta is not None:
        book.set_limit(Budget(limit_epsilon, limit_delta), allow_raise=force)
    _show(console, book)


def _file_of(name: str) -> Path:
    """The account that a word means: a file, or the one whose data was read from there."""
    from veilset.data.opening import origin_of
    from veilset.privacy.sources import known_accounts

    path = Path(name)
    is_data = name.startswith("builtin:") or path.suffix in (".npz", ".parquet") or path.is_dir()
    if not is_data and not (":" in name and Path(name.rpartition(":")[0]).exists()):
        return path
    found = known_accounts(origin_of(name))
    if len(found) != 1:
        which = ", ".join(str(each.path) for each in found)
        advice = f"Name one of {which}." if found else "See all accounts with: veilset account"
        raise InputError(f"{len(found)} accounts were used for {name}. {advice}")
    return found[0].path


def _list(console: Console) -> None:
    from veilset.core.errors import VeilsetError
    from veilset.privacy.account import Account
    from veilset.privacy.sources import known_accounts

    entries: list[dict[str, Any]] = []
    for known in known_accounts():
        found: dict[str, Any] = {"runs": None, "unit": None, "problem": None}
        try:
            if not known.path.exists():
                raise InputError("it is gone")
            book = Account(known.path)
            found |= {"runs": len(book.reservations), "unit": book.unit}
        except VeilsetError as error:
            found["problem"] = str(error)
        entries.append({"account": str(known.path), "data": list(known.origins), **found})
        # Lines and no table: paths are long, and people copy them.
        counted = "1 run" if found["runs"] == 1 else f"{found['runs']} runs"
        state = found["problem"] or f"{counted} for each {found['unit']}"
        console.say(", ".join(known.origins) or "data in memory")
        console.say(f"  {state}; account {known.path}")
    if not entries:
        console.say("No account was used on this machine yet.")
    else:
        console.say("What one has spent: veilset account DATA, or the path of the account")
    console.result({"accounts": entries})


def _show(console: Console, book: "Account") -> None:
    limit, runs, unit = book.limit, book.reservations, book.unit
    since = book.limits[-1].runs if limit else None
    held = book.guaranteed() if limit or len(runs) > 1 else None
    delta = limit.delta if limit else max((run.budget.delta for run in runs), default=1e-6)
    spent, left, images = book.spent(delta), book.left(), book.images_per_group
    if not console.as_json:
        rows = [[r.method, *_asked(r), r.unit, r.time[:16].replace("T", " "), r.run[:8]] for r in runs]
        columns = ["method", "epsilon asked", "delta", "for each", "time (UTC)", "run"]
        console.table(f"Account {book.path}", columns, rows)
        if spent is None:
            console.say("No epsilon holds for this data: a run without a guarantee has read it.")
        else:
            together = f"all {len(runs)} runs together, if none was chosen by results"
            console.say(
                f"Spent: epsilon {epsilon_text(spent)} at delta {delta:g} for each {unit}, "
                f"{'in one run' if len(runs) == 1 else together}."
            )
        if spent is not None and len(runs) > 1:
            console.say(f"However they were chosen: {_promise(held, unit)}.")
        if images is not None and any(r.unit == "record" for r in runs):
            console.say(f"Runs for each record count for a group of {images} images, as declared.")
        if limit and left is not None:
            console.say(
                f"Limit: epsilon {limit.epsilon:g} at delta {limit.delta:g} for each {unit}. "
                f"Left for one more run: {epsilon_text(left)}."
            )
            if since != 0:
                when = "when, is not known" if since is None else f"after {since} run(s)"
                console.say(f"It was set late ({when}), so it is no promise if results led to it.")
        else:
            console.say("No limit is set. Set one with --limit-epsilon and --limit-delta.")
    console.result(
        {
            "account": str(book.path),
            "runs": [
                {
                    "run": r.run,
                    "time": r.time,
                    "method": r.method,
                    "unit": r.unit,
                    "guarantee": r.guarantee,
                    "epsilon": r.budget.epsilon if r.guarantee == "dp" else None,
                    "delta": r.budget.delta if r.guarantee == "dp" else None,
                }
                for r in runs
            ],
            "unit": unit,
            "images_per_group": images,
            "spent_epsilon": spent,
            "delta": delta,
            "guaranteed": None if held is None else {"epsilon": held.epsilon, "delta": held.delta},
            "limit": None if limit is None else {"epsilon": limit.epsilon, "delta": limit.delta},
            "limit_set_after_runs": since,
            "left_epsilon": left,
        }
    )


def _promise(held: "Budget | None", unit: str) -> str:
    if held is None:
        return "no epsilon that means anything"
    return f"epsilon {epsilon_text(held.epsilon)} at delta {held.delta:g} for each {unit}"


def _asked(run: "Reservation") -> tuple[str, str]:
    if not run.events and run.guarantee == "dp":
        return "paid with another", ""
    return (f"{run.budget.epsilon:g}", f"{run.budget.delta:g}") if run.guarantee == "dp" else ("no guarantee", "")
