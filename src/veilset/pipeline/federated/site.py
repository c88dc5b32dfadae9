"""One site: its vault, its plan, its ledger, and the noised answers of its critics. Nothing else leaves.

The server is not trusted. Whatever it asks, an answer is a clipped sum with noise that was drawn here, paid for on the
site's own account before a record was read; when the plan is spent, the site answers no more. Code that a server might
send along is never run: a site runs what is installed on it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from veilset.core.errors import BudgetError, InputError
from veilset.core.progress import SILENT, Progress
from veilset.methods.base import Context
from veilset.methods.sanitized_gan import SanitizedGan
from veilset.pipeline.synthesize import Job, budget_of, header_of, method_of, open_ledger
from veilset.privacy.account import Account
from veilset.privacy.critics import Critics
from veilset.privacy.ledger import Ledger
from veilset.privacy.mechanisms import Session
from veilset.privacy.noise import NoiseSource
from veilset.privacy.vault import Vault
from veilset.release.certificate import Certificate
from veilset.release.certifying import certify


class Site:
    """A hospital.

    Args:
        name: what the site is called in certificates.
        vault: its records.
        epsilon: the most that it spends on this federation.
        delta: the chance that the bound fails; None takes the server's.
        workspace: where its ledger is kept, so that a site that was cut off can come back.
        account: its dataset's account.
    """

    def __init__(
        self,
        name: str,
        vault: Vault,
        *,
        epsilon: float,
        delta: float | None = None,
        workspace: Path,
        account: Account | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.name, self.epsilon, self.delta = name, epsilon, delta
        self._vault, self._workspace, self._account, self._progress = vault, workspace, account, progress
        self._invitation: Mapping[str, Any] | None = None
        self._ledger: Ledger | None = None
        self._critics: Critics | None = None

    def join(self, invitation: Mapping[str, Any]) -> dict[str, Any]:
        """Draw a plan for what the server proposes, pay for it, and say what it will cost.

        Privacy: one plan for one federation. The same invitation may come again (a server that lost the reply); another
        one is refused, since it would need another budget.
        """
        if self._invitation is None:
            self._open(invitation)
            self._invitation = dict(invitation)
        elif self._invitation != dict(invitation):
            raise BudgetError("This site has joined with other settings and spends nothing on a second plan.")
        return self._reply()

    def answer(self, query: Mapping[str, Tensor]) -> Tensor:
        """The noised sum of the critics' clipped answers.

        Privacy: as `Critics.step`. It raises when the plan is spent.
        """
        if self._critics is None:
            raise InputError("The site was asked before it was invited.")
        _check_query(query, self._critics, self._vault.facts.classes)
        return self._critics.step(query).float()

    @property
    def steps_left(self) -> int:
        """Answers that the plan still holds."""
        return 0 if self._critics is None else self._critics.steps_left

    def certificate(self) -> Certificate:
        """What this site spent, from its own ledger; `samples` is the number of answers that were paid for."""
        if self._ledger is None:
            raise InputError("The site has joined no federation, so there is nothing to certify.")
        budget = budget_of(self._job, self._vault.facts)
        return certify(
            self._ledger.lines,
            self._vault.facts,
            budget.delta,
            self._job.method,
            self._ledger.header["settings"],
            samples=self._plan.events[0].count,
            seed=self._job.seed,
            budget=budget,
            warnings=[f"Certificate of the site {self.name}: noised gradients were sent to a server, no images."],
        )

    def close(self) -> None:
        """Let go of the ledger."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _open(self, invitation: Mapping[str, Any]) -> None:
        facts = self._vault.facts
        wanted = (tuple(invitation["shape"]), tuple(invitation["class_names"]))
        if wanted != (tuple(facts.shape), tuple(facts.class_names)):
            raise InputError(
                f"The server expects images of {wanted[0]} and the classes {', '.join(wanted[1])}; this site has "
                f"{tuple(facts.shape)} and {', '.join(facts.class_names)}. Pass --size, --channels or --classes."
            )
        self._job = Job(
            method="sanitized_gan",
            epsilon=self.epsilon,
            delta=self.delta if self.delta is not None else float(invitation["delta"]),
            settings={name: str(value) for name, value in invitation["settings"].items()},
            seed=int(invitation["seed"]),
        )
        method = method_of(self._job)
        assert isinstance(method, SanitizedGan)
        if method.config.scheme != "together" or method.config.teacher_share:
            raise InputError(
                "A federation asks all critics together and has no classifier: leave scheme and teacher_share."
            )
        self._plan = method.plan(facts, budget_of(self._job, facts))
        header = header_of(self._job, method, facts, self._plan)
        self._ledger = open_ledger(self._workspace, header, resume=True, account=self._account, plan=self._plan)
        session = Session(
            self._vault,
            self._plan,
            self._ledger,
            NoiseSource(),
            workspace=self._workspace,
            progress=self._progress,
        )
        self._critics = method.open_critics(session, Context(seed=self._job.seed, progress=self._progress))

    def _reply(self) -> dict[str, Any]:
        assert self._critics is not None
        return {
            "name": self.name,
            "units": self._vault.facts.units,
            "unit": self._vault.facts.unit,
            "critics": self._critics.critics,
            "epsilon": self.epsilon,
            "delta": self._plan.budget.delta,
            "event": self._plan.events[0].to_json(),
            "steps_left": self._critics.steps_left,
        }


def _check_query(query: Mapping[str, Tensor], critics: Critics, classes: int) -> None:
    """Refuse tensors of another form before a step is leased; what they hold cannot hurt the guarantee."""
    wanted = {"fakes": torch.float32, "fake_labels": torch.int64, "points": torch.float32, "labels": torch.int64}
    fits = (
        set(query) == set(wanted)
        and all(query[name].dtype == kind for name, kind in wanted.items())
        and tuple(query["points"].shape) == critics.shape
        and query["fakes"].shape[2:] == query["points"].shape[1:]
        and query["fake_labels"].shape == query["fakes"].shape[:2]
        and query["labels"].shape == query["points"].shape[:1]
        and all(bool(((query[name] >= 0) & (query[name] < classes)).all()) for name in ("labels", "fake_labels"))
    )
    if not fits:
        raise InputError(f"Expected a query of {', '.join(wanted)} with points of {critics.shape}. Nothing was read.")
