"""One site: its vault, its plan, its ledger, and the noised answers of its critics. Nothing else leaves.

The server is not trusted. Whatever it asks, an answer is a clipped sum with noise that was drawn here, paid for on the
site's own account before a record was read; when the plan is spent, the site answers no more. Epsilon, delta and the
number of units are the site's own; the server proposes settings within bounds, and the plan fixes the size of every
question (`proposal.py`). Code that a server might send along is never run: a site runs what is installed on it.
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor

from veilset.core.errors import BudgetError, InputError
from veilset.core.progress import SILENT, Progress
from veilset.methods.base import Context
from veilset.methods.sanitized_gan.config import SanitizedGan
from veilset.methods.sanitized_gan.method import open_critics
from veilset.methods.sanitized_gan.rounds import Rounds
from veilset.pipeline.federated.proposal import Bounds, Invitation, Questions
from veilset.pipeline.federated.schedule import Rehearsal, rehearse
from veilset.pipeline.job import Job, budget_of, header_of, method_of
from veilset.privacy.account import Account
from veilset.privacy.events import Plan
from veilset.privacy.mechanisms.shard_critics import Critics
from veilset.privacy.noise import NoiseSource
from veilset.privacy.opening import account_of, has_unfinished_run, opened
from veilset.privacy.processes import RunLedger
from veilset.privacy.vault import Vault
from veilset.release.certificate import Certificate
from veilset.release.certifying import certify


class Site:
    """A hospital.

    Args:
        name: what the site is called in certificates.
        vault: its records.
        epsilon: the most that it spends on this federation.
        delta: the chance that the bound fails; None takes the default for its declared number of units.
        workspace: where its ledger is kept, so that a site that was cut off can come back.
        account: its dataset's account.
        bounds: what the server may propose.
        covered: the name of its part of a simulation, whose plan was reserved before, or raises; a site of its own has
            None.
        noise: for the neighbour run alone (audit/neighbours.py), which takes the place of the noise.
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
        bounds: Bounds | None = None,
        covered: Callable[[Plan], str] | None = None,
        noise: NoiseSource | None = None,
        progress: Progress = SILENT,
    ) -> None:
        self.name, self.epsilon, self.delta = name, epsilon, delta
        self._bounds, self._covered, self._own_noise = bounds or Bounds(), covered, noise or NoiseSource()
        self._vault, self._workspace, self._account, self._progress = vault, workspace, account, progress
        self.has_read = False
        self._invitation: Invitation | None = None
        self._open_run = ExitStack()
        self._ledger: RunLedger | None = None
        self._critics: Critics | None = None

    def join(self, invitation: Mapping[str, Any]) -> dict[str, Any]:
        """Draw a plan for what the server proposes, pay for it, and say what it will cost.

        Privacy: one plan for one federation. The same invitation may come again (a server that lost the reply); another
        one is refused, since it would need another budget.
        """
        proposed = Invitation.from_facts(invitation)
        if self._invitation is None:
            self._open(proposed)
            self._invitation = proposed
        elif self._invitation != proposed:
            raise BudgetError("This site has joined with other settings and spends nothing on a second plan.")
        return self._reply()

    def check(self, query: Mapping[str, Tensor]) -> int:
        """How many updates a question asks for; one that the plan does not know raises. Nothing is paid or read."""
        if self._critics is None:
            raise InputError("The site was asked before it was invited.")
        if self._critics.steps_left == 0:
            raise BudgetError(f"All answers of {self.name} are taken.")
        return self.questions.updates_of(query)

    def answer(self, query: Mapping[str, Tensor]) -> Tensor:
        """The noised sum of the critics' clipped answers.

        Privacy: as `Critics.step`. It raises when the plan is spent, and for a question of another form.
        """
        self.check(query)
        assert self._critics is not None
        self.has_read = True
        return self._critics.step(query).float()

    def rehearse(self) -> Rehearsal:
        """How long reading and answering take on random images. Only public facts go into it."""
        return rehearse(self._plan, self._vault.facts, self.questions, self._job.seed)

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
            samples=self._plan.answers[0].count,
            seed=self._job.seed,
            budget=budget,
            warnings=[f"Certificate of the site {self.name}: noised gradients were sent to a server, no images."],
        )

    def close(self) -> None:
        """Let go of the ledger."""
        self._open_run.close()
        self._ledger = None

    def _open(self, invitation: Invitation) -> None:
        facts = self._vault.facts
        invitation.check(facts)
        self._job = Job(
            method="sanitized_gan",
            epsilon=self.epsilon,
            delta=self.delta,
            settings=invitation.settings,
            seed=invitation.seed,
        )
        method = method_of(self._job)
        assert isinstance(method, SanitizedGan)
        self._bounds.check(method.settings)
        self._plan = method.plan(facts, budget_of(self._job, facts))
        part = None if self._covered is None else self._covered(self._plan)
        header = header_of(self._job, facts, self._plan, method.inputs())
        opening = self._open_run.enter_context(
            opened(
                self._vault,
                self._plan,
                header,
                workspace=self._workspace,
                account=account_of(self._vault, self._account, self._progress),
                resume=has_unfinished_run(self._workspace),
                paid_as=part,
                noise=self._own_noise,
                progress=self._progress,
            )
        )
        self._ledger = opening.ledger
        rounds = Rounds(method.settings, facts, Context(seed=self._job.seed, progress=self._progress))
        self._critics = open_critics(self._plan, opening.session, rounds)
        self.questions = Questions(
            shape=self._critics.shape,
            classes=facts.classes,
            batch=method.settings.critic_batch,
            updates=method.settings.critic_updates,
            warmup=method.settings.warmup,
        )

    def _reply(self) -> dict[str, Any]:
        assert self._critics is not None
        return {
            "name": self.name,
            "units": self._vault.facts.units,
            "unit": self._vault.facts.unit,
            "critics": self._critics.critics,
            "epsilon": self.epsilon,
            "delta": self._plan.budget.delta,
            "event": self._plan.answers[0].to_json(),
            "steps_left": self._critics.steps_left,
        }
