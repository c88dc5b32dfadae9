"""A site's desk: every letter of the server is answered here, in fixed words, on a public schedule."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from torch import Tensor

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.pipeline.federated.schedule import Clock, Schedule
from veilset.pipeline.federated.site import Site
from veilset.release.certificate import Certificate
from veilset.release.statements import message_of

Reply = tuple[dict[str, Any], dict[str, Tensor]]
_LONGEST_NONCE = 128
_JOINING_SECONDS = 2.0  # hashing the records and finding the account take a time that depends on them


class Desk:
    """Where letters are answered: what leaves here is a function of public facts and noised sums, and so is when.

    Args:
        site: that answers.
        report: hears what happened, at home; none of it goes to the server.
        answer_every: seconds from a question to its answer, in place of those of a rehearsal.
        clock: that holds answers back; None lets them go at once, for a simulation on one machine.
    """

    def __init__(
        self,
        site: Site,
        report: Callable[[str], None],
        *,
        answer_every: float | None = None,
        clock: Clock | None,
    ) -> None:
        self._site, self._report, self._clock = site, report, clock
        facts = site.agreement.facts_of(site.member)
        self._schedule = Schedule(facts, site.agreement.seed, answer_every)
        self.certificate: Certificate | None = None
        self.failure: VeilsetError | None = None  # why the site cannot join

    def reply(self, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> Reply:
        """Who the site is, a noised answer, a signed statement at the end, or that there is none of these."""
        site = self._site
        try:
            if "nonce" in facts:
                return self._introduction(facts["nonce"])
            if facts.get("farewell") is True:
                self.certificate, said = site.statement()
                return said, {}
            first, asked = facts.get("first"), facts.get("ask")
            if type(first) is not int or not (asked is None or type(asked) is int):
                raise InputError("Expected the number of the first result, and that of a round or none.")
            if first > site.taken:  # a site that was started again is given the results from its beginning
                return {"taken": site.taken}, {}
            self._tell_missed(site.take(first, [tensors[str(place)] for place in range(len(tensors))]))
            if asked is None:
                return {"taken": site.taken}, {}
            question, event = site.question(asked)
            with nullcontext() if self._clock is None else self._slot(self._schedule.slot(question, event)):
                said, answer = self._answer(asked)
            return {"taken": site.taken, **said}, answer
        except (BudgetError, InputError, KeyError) as error:
            self._report(str(error))
            spent = isinstance(error, BudgetError)
            why = "its plan is spent, or its account holds too little" if spent else "see its log"
            return {"refused": f"{site.name} does not answer: {why}."}, {}

    def _introduction(self, nonce: Any) -> Reply:
        """Join, and prove who joins: the nonce is the server's, so an old proof is worth nothing."""
        if not isinstance(nonce, str) or len(nonce) > _LONGEST_NONCE:
            raise InputError("Expected a short nonce.")
        site = self._site
        try:
            with nullcontext() if self._clock is None else self._clock.slot(_JOINING_SECONDS, lambda _: None):
                site.join()
        except VeilsetError as error:
            self.failure = error
            if isinstance(error, BudgetError):
                raise
            raise InputError(str(error)) from error
        said = {"name": site.name, "agreement": site.agreement.sha256, "taken": site.taken}
        return {**said, "signature": site.signed(introduction(site.agreement.sha256, site.name, nonce))}, {}

    def _tell_missed(self, rounds: Sequence[int]) -> None:
        """The custodian may stop a site that is left behind: no round costs more than was reserved when it joined."""
        if rounds:
            self._report(
                f"{len(rounds)} rounds, the last of them {rounds[-1] + 1}, went on without this site; nothing was read "
                "for them."
            )

    def _answer(self, asked: int) -> Reply:
        """A failure on private records keeps its words at home, and its time in the slot."""
        try:
            return self._site.signed_answer(asked)
        except BudgetError:
            raise
        except Exception as error:
            raise InputError(f"An answer failed ({type(error).__name__}: {error}).") from error

    def _slot(self, seconds: float) -> Any:
        assert self._clock is not None
        return self._clock.slot(seconds, self._overrun)

    def _overrun(self, slots: int) -> None:
        self._report(
            f"An answer took {slots} slots, which the server can see. Give answers more time with --answer-every."
        )


def introduction(agreement: str, name: str, nonce: str) -> bytes:
    """What a site signs to prove that it is itself, now."""
    return message_of({"agreement": agreement, "site": name, "nonce": nonce})
