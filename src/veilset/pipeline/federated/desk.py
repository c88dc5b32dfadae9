"""A site's desk: every message of the server is answered here, in fixed words, on a public schedule."""

from collections.abc import Callable, Mapping
from contextlib import nullcontext

from veilset.pipeline.federated.messages import INVITATION, QUESTION, pack, unpack

from flwr.app import RecordDict  # isort: skip
from torch import Tensor

from veilset.core.errors import BudgetError, InputError
from veilset.pipeline.federated.schedule import Clock, Schedule
from veilset.pipeline.federated.site import Site


class Desk:
    """Where messages are answered: what leaves here is a function of public facts and noised sums, and so is when.

    Args:
        site: that answers.
        report: hears what happened, at home; none of it goes to the server.
        answer_every: seconds from a warm question to its answer, in place of those of the rehearsal.
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
        self._site, self._report, self._answer_every, self._clock = site, report, answer_every, clock
        self._schedule: Schedule | None = None

    def reply(self, kind: str, content: RecordDict) -> RecordDict:
        """That the site joins, a noised answer, or that there is none. There is no fourth."""
        site = self._site
        try:
            facts, tensors = unpack(content)
            if kind == INVITATION:
                return pack(site.join(facts) | {"seconds": self._prepare()})
            if kind == QUESTION:
                seconds = self._slot(site.check(tensors))
                with nullcontext() if self._clock is None else self._clock.slot(seconds, self._overrun):
                    return pack({}, {"answer": self._answer(tensors)})
            raise InputError(f"Unknown kind of message: {kind}.")
        except (BudgetError, InputError) as error:
            self._report(str(error))
            spent = isinstance(error, BudgetError)
            why = "its plan is spent, or was drawn for other settings" if spent else "see its log"
            return pack({"refused": f"{site.name} does not answer: {why}."})

    def _answer(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """A failure on private records keeps its words at home, and its time in the slot."""
        try:
            return self._site.answer(tensors)
        except Exception as error:
            raise InputError(f"An answer failed ({type(error).__name__}: {error}).") from error

    def _prepare(self) -> float:
        """Rehearse once; the seconds that the server has to wait for the first answer."""
        if self._clock is None:
            return 0.0
        if self._schedule is None:
            self._report("Taking the time on random images, to answer on a fixed schedule.")
            self._schedule = Schedule.of(self._site.rehearse(), self._site.questions, self._answer_every)
            self._report(f"Answers leave {self._schedule.warm:.1f} s after their question.")
        return self._schedule.longest

    def _slot(self, updates: int) -> float:
        if self._schedule is None:
            return 0.0
        seconds = self._schedule.warm if updates == self._site.questions.updates else self._schedule.cold
        return seconds + (0.0 if self._site.has_read else self._schedule.reading)

    def _overrun(self, slots: int) -> None:
        self._report(
            f"An answer took {slots} slots, which the server can see. Give answers more time with --answer-every."
        )
