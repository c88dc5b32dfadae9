"""The server's side of the rounds: ask sites, check and combine what they answer, keep it, and go on. It has no vault.

Everything here is post-processing of what sites noised at home. The rule for sites that are missing is in the agreement
(`Rule`), so no answer and no result can change it.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from veilset.core.errors import VeilsetError
from veilset.methods.base import Context, Fitted
from veilset.pipeline.federated.agreement import Agreement, Member, joint_events
from veilset.pipeline.federated.combining import answer_problem, combined
from veilset.pipeline.federated.questions import FederatedSession, Question
from veilset.pipeline.federated.site import answer_message
from veilset.pipeline.federated.state import CoordinatorState
from veilset.privacy.vault import Public
from veilset.release.statements import is_signed, statement_problems

_FAREWELLS, _FAREWELL_SECONDS = 10, 60.0  # how often a site is asked to sign what it spent, and how long it may take
_LATEST = 3  # rounds by which the answer to a step may be late and still count
_MOST_AT_ONCE = 64  # results in one message ...
_MOST_NUMBERS = 1 << 20  # ... and numbers in them, unless one result alone has more
_LONGEST_WORDS = 200


@dataclass(frozen=True, kw_only=True, eq=False)
class Letter:
    """What a site said. Every word of it may be false, but for the name, which its key has proved."""

    site: str
    facts: Mapping[str, Any]
    tensors: Mapping[str, Tensor]


class Wire(Protocol):
    """How letters travel: Flower's messages, or a call within one process."""

    def present(self) -> set[str]:
        """Sites that are connected and have proved who they are."""

    def send(self, site: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Send without waiting."""

    def receive(self) -> list[Letter]:
        """What came since; waits a moment where nothing did."""


class Coordinator:
    """One federation, as the server sees it.

    Args:
        agreement: of all sites.
        state: its folder.
        wire: to the sites.
        report: hears of every round and of sites that lose their place.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        agreement: Agreement,
        state: CoordinatorState,
        wire: Wire,
        *,
        report: Callable[[dict[str, Any]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.agreement, self.state, self._wire, self._report, self._clock = agreement, state, wire, report, clock
        self.plan = agreement.plan()
        self.rounds = sum(event.count for event in self.plan.events)
        self._number = 0
        self._first_asked: int | None = None
        self._taken: dict[str, int] = {}  # how many results each site has
        self._asked: set[str] = set()  # who owes a reply
        self._late: set[str] = set()
        self._refused: dict[str, str] = {}
        self._probes: dict[int, Tensor] = {}  # of the last rounds, for late answers
        self.bytes_sent: dict[str, int] = {}
        self.bytes_received: dict[str, int] = {}

    @property
    def rounds_closed(self) -> int:
        """How many rounds have a result."""
        return self._number

    def fit(self, public: Public | None, context: Context) -> Fitted:
        """Run the method on all sites; rounds that an earlier server closed are followed again without asking."""
        session = FederatedSession(self.agreement.facts, self.plan, self)
        return self.agreement.method_of().fit(self.plan, session, public, context)

    def result(self, question: Question) -> Tensor:
        """What the sites say together, from disk where the round is closed; after the last round they may go."""
        number = self._number
        self._probes[number] = question.probe
        self._probes.pop(number - _LATEST - 1, None)
        found = self.state.result(number)
        if found is None:
            found = self._settled(number, question)
        self._number += 1
        if self._number == self.rounds:
            self._part()
        return found

    def _settled(self, number: int, question: Question) -> Tensor:
        """Ask until the rule says that it is enough, then close the round."""
        rule = self.agreement.rule
        self._first_asked = number if self._first_asked is None else self._first_asked
        limit = rule.step_seconds if question.is_step else rule.sum_seconds
        answers = {name: found for name, found in self.state.answers(number).items() if name not in self._banned}
        began = heard = self._clock()
        while True:
            self._ask(number, answers)
            for letter in self._wire.receive():
                if self._take(letter, number, question, answers):
                    heard = self._clock()
            waiting = self._waited_for(number, question) - _sites_in(answers)
            enough = len(_sites_in(answers)) >= rule.min_sites
            if enough and (not waiting or self._clock() - began > limit):
                break
            self._require_hope(number, answers, self._clock() - heard)
        self._late |= waiting
        pairs = [(self.agreement.member(name.partition("@")[0]), found) for name, found in sorted(answers.items())]
        found = combined(self.agreement, pairs)
        self.state.close(number, found, dict.fromkeys(answers, 1))
        self._report({"round": number + 1, "rounds": self.rounds, "sites": sorted(_sites_in(answers))})
        return found

    def _waited_for(self, number: int, question: Question) -> set[str]:
        """Whom the rule waits for: all for a sum and for the first round after a start, else those who keep up."""
        able = {member.name for member in self.agreement.members} - set(self._banned) - set(self._refused)
        if not question.is_step or number == self._first_asked:
            return able
        return (able & self._wire.present()) - self._late

    def _require_hope(self, number: int, answers: Mapping[str, Tensor], silent: float) -> None:
        """Stop, with everything kept, where the round cannot be closed."""
        rule, lost = self.agreement.rule, {**self._banned, **self._refused}
        left = len(self.agreement.members) - len(lost)
        words = " ".join(f"{name}: {why}." for name, why in sorted(lost.items()))
        here = f"at round {number + 1} of {self.rounds}"
        if left < rule.min_sites:
            raise VeilsetError(
                f"Only {left} sites are left {here}, and the agreement needs {rule.min_sites}. {words} Nothing is "
                "lost: start the server again once enough sites can answer."
            )
        if silent > rule.patience:
            raise VeilsetError(
                f"{len(_sites_in(answers))} of at least {rule.min_sites} sites have answered {here}, and none did for "
                f"{rule.patience:.0f} seconds. {words} Nothing is lost: start the server again to go on."
            )

    def _ask(self, number: int, answers: Mapping[str, Tensor]) -> None:
        """Send each site that owes nothing the results that it lacks, and the question once it has them all."""
        present = self._wire.present()
        self._asked &= present
        self._taken = {name: taken for name, taken in self._taken.items() if name in present}
        for name in sorted(present - self._asked - set(self._banned) - set(self._refused) - set(answers)):
            first, total = self._taken.get(name, 0), 0
            tensors: dict[str, Tensor] = {}
            while first + len(tensors) < number and len(tensors) < _MOST_AT_ONCE and total < _MOST_NUMBERS:
                found = self.state.result(first + len(tensors))
                assert found is not None
                tensors[str(len(tensors))] = found
                total += found.numel()
            is_up = first + len(tensors) == number
            self._send(name, {"first": first, "ask": number if is_up else None}, tensors)

    def _send(self, name: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        self._asked.add(name)
        self.bytes_sent[name] = self.bytes_sent.get(name, 0) + _weight(tensors)
        self._wire.send(name, facts, tensors)

    def _take(self, letter: Letter, number: int, question: Question, answers: dict[str, Tensor]) -> bool:
        """Read a letter; True where an answer came of it. A bad answer costs its sender the place, and not the run."""
        name = letter.site
        if name in self._banned:
            return False
        if "malformed" in letter.facts:
            return self._ban(name, "its message is not of the form expected")
        if "agreement" in letter.facts:  # it has just introduced itself, perhaps after its custodian mended something
            self._refused.pop(name, None)
        self._asked.discard(name)
        self._late.discard(name)  # it is back, and waited for from now on
        self.bytes_received[name] = self.bytes_received.get(name, 0) + _weight(letter.tensors)
        taken = letter.facts.get("taken")
        if type(taken) is int and 0 <= taken <= number:
            self._taken[name] = taken
        if "refused" in letter.facts:
            self._refused[name] = _plain(letter.facts["refused"])
            self._report({"refused": name, "why": self._refused[name]})
            return False
        if "answer" not in letter.tensors:
            return False
        asked = letter.facts.get("round")
        place = name if asked == number else f"{name}@{asked}"
        if type(asked) is not int or not self._may_count(place, asked, number, question) or place in answers:
            return False  # a duplicate, a replay, or too late: nothing is lost by leaving it out
        member, answer = self.agreement.member(name), letter.tensors["answer"]
        problem = self._problem(member, asked, question, answer, letter)
        if problem:
            return self._ban(name, problem)
        self.state.keep_answer(number, place, answer)
        answers[place] = answer
        return True

    def _ban(self, name: str, why: str) -> bool:
        self.state.ban(name, why)
        self._report({"banned": name, "why": why})
        return False

    def _problem(self, member: Member, asked: int, question: Question, answer: Tensor, letter: Letter) -> str:
        message = answer_message(self.agreement.sha256, member.name, asked, answer)
        if not is_signed(message, letter.facts.get("signature"), member.key):
            return "its answer is not signed with its key"
        then = replace(question, probe=self._probes[asked])
        return answer_problem(self.agreement, member, then, answer, letter.tensors.get("probe", torch.zeros(0)))

    def _may_count(self, place: str, asked: int, number: int, question: Question) -> bool:
        """Whether an answer belongs to this round: it was asked here, or it is late and may still be used.

        An answer counts once, in one round.
        """
        if asked == number:
            return True
        first = number - self._step_of(number, question)
        if not question.takes_late or not max(first, number - _LATEST) <= asked < number:
            return False
        name = place.partition("@")[0]
        counted = [self.state.counted(earlier) for earlier in range(asked, number)]
        return name not in counted[0] and not any(place in found for found in counted)

    def _step_of(self, number: int, question: Question) -> int:
        """How many rounds of the same event came before this one, in a row."""
        done = 0
        for event in self.plan.events:
            if event == question.event and number < done + event.count:
                return number - done
            done += event.count
        return 0

    def _part(self) -> None:
        """Let the sites go: each signs what it spent. Who is not there has signed nothing, which the release says.

        A site that answered and is away, as one that starts again, has a minute to come back for it. One that refused
        a round, as after a kill that cost it a sum, has spent its plan and signs as well, if it is here or answered.
        """
        missing = {member.name for member in self.agreement.members} - set(self.state.statements())
        answered: set[str] = set().union(*(_sites_in(self.state.counted(number)) for number in range(self.rounds)))
        missing -= set(self._refused) - answered - self._wire.present()
        awaited: set[str] = set()
        tries: Counter[str] = Counter()
        began, waits = self._clock(), self.agreement.rule.step_seconds
        while missing:
            present = self._wire.present()
            awaited &= present
            for name in sorted((missing & present) - awaited):
                if tries[name] < _FAREWELLS:
                    tries[name] += 1
                    awaited.add(name)
                    self._send(name, {"farewell": True}, {})
            for letter in self._wire.receive():
                if "answer" not in letter.tensors:  # a late answer is no reply to a farewell
                    awaited.discard(letter.site)  # whatever else it said, it is told again
                if "statement" in letter.facts and self._keep_statement(letter):
                    missing.discard(letter.site)
            taken = self._clock() - began
            if taken > max(waits, _FAREWELL_SECONDS) or (taken > waits and not awaited | (missing & answered)):
                break

    def _keep_statement(self, letter: Letter) -> bool:
        """Keep what a site signed; True where there is no more to wait for.

        What the reader of the release would find wrong is left out: one site's lie must not spoil it for all.
        """
        name, member = letter.site, self.agreement.member(letter.site)
        if name in self._banned and "statement" in self._banned[name]:
            return True
        said = {"statement": letter.facts["statement"], "signature": letter.facts.get("signature")}
        listed = {"name": name, "units": member.units, "key": member.key, **said}
        header = {"agreement": self.agreement.sha256, "sites": [listed]}
        if said["statement"] is None or statement_problems(header, joint_events(self.agreement, [member])):
            self._ban(name, "its statement is not of what it spent")
        else:
            self.state.keep_statement(name, said)
        return True

    @property
    def _banned(self) -> dict[str, str]:
        return self.state.banned


def _sites_in(answers: Iterable[str]) -> set[str]:
    """Who answered: a late answer is kept under the site's name and its round."""
    return {name.partition("@")[0] for name in answers}


def _plain(words: Any) -> str:
    """A site's words as one line of the log."""
    return "".join(letter if letter.isprintable() else " " for letter in str(words)[:_LONGEST_WORDS])


def _weight(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
