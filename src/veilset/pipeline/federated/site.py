"""One site: its vault, its plan, its ledger, and its noised sums. Nothing else leaves.

The server is not trusted. Whatever it sends, an answer is a clipped sum with noise that was drawn here, paid for on the
site's own account before a record was read. What is summed follows from the agreement, which the custodian has read,
and from earlier results; the site works it out itself by running the method's own `fit` (`questions.py`), as far as the
last sum. From the server it takes numbers alone: how far the rounds are, and what they gave.
"""

import hashlib
import json
import queue
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load, save
from torch import Tensor

from veilset.core.errors import BudgetError, InputError, VeilsetError
from veilset.core.files import write_whole
from veilset.core.progress import SILENT, Progress
from veilset.core.records import Records
from veilset.methods.base import Context
from veilset.pipeline.federated.agreement import Agreement
from veilset.pipeline.federated.questions import FederatedSession, Question
from veilset.pipeline.job import header_of
from veilset.privacy.account import Account
from veilset.privacy.events import Event, Plan
from veilset.privacy.noise import NoiseSource
from veilset.privacy.opening import OpenRun, has_unfinished_run, opened
from veilset.privacy.sources import account_of
from veilset.privacy.vault import Public, Vault
from veilset.release.certificate import Certificate
from veilset.release.certifying import certify
from veilset.release.statements import load_site_key, message_of, signature_of

_KEPT_ANSWERS = 3
_ANSWERED = "answered.json"
_FAREWELL_SECONDS = 30.0


class Site:
    """A hospital.

    Args:
        name: of the site in the agreement.
        agreement: that its custodian has read.
        vault: its records.
        key: its private key, with which it signs what it says.
        workspace: where its ledger is kept, so that a site that was cut off can come back.
        account: its dataset's account.
        public: public images, compared with the vault.
        covered: the name of its part of a simulation, whose plan was reserved before, or raises; a site of its own has
            None.
        noise: for the neighbour run alone (audit/neighbours.py), which takes the place of the noise.
        device: where its features are computed.
    """

    def __init__(
        self,
        name: str,
        agreement: Agreement,
        vault: Vault,
        *,
        key: bytes,
        workspace: Path,
        account: Account | None = None,
        public: Public | None = None,
        covered: Callable[[Plan], str] | None = None,
        noise: NoiseSource | None = None,
        progress: Progress = SILENT,
        device: str = "cpu",
    ) -> None:
        self.name, self.agreement, self.member = name, agreement, agreement.member(name)
        self._key, self._public, self._device = load_site_key(key), public, device
        check_data(agreement, vault, public)
        vault.facts = replace(vault.facts, units=self.member.units)
        self._vault, self._workspace, self._progress = vault, workspace, progress
        # Finding the account reads all records, so it is done before the server hears of this site.
        self._account = account_of(vault, account, progress)
        self._covered, self._own_noise = covered, noise or NoiseSource()
        self._common, self._plan = agreement.plan(), agreement.plan_of(self.member)
        self._own: dict[Event, Event] = dict(zip(self._common.events, self._plan.events, strict=True))
        self.rounds = sum(event.count for event in self._plan.events)
        self.taken = 0  # results that `fit` has got
        self.answered = _answered(workspace)
        self._has_parted = False
        self._question: Question | None = None
        self._asked: queue.Queue[Question | BaseException | None] = queue.Queue()
        self._given: queue.Queue[Tensor | None] = queue.Queue()
        self._open_run = ExitStack()
        self._opening: OpenRun | None = None
        self._fitting: threading.Thread | None = None

    def join(self) -> None:
        """Reserve the whole plan on the account, and go as far as the first question. No record is read.

        Privacy: one plan for one agreement; a site that was started before goes on with what it reserved then.
        """
        if self._opening is not None:
            return
        part = None if self._covered is None else self._covered(self._plan)
        facts = self._vault.facts
        header = header_of(self.agreement.job, facts, self._plan, ()) | {"agreement": self.agreement.sha256}
        self._opening = self._open_run.enter_context(
            opened(
                self._vault,
                self._plan,
                header,
                workspace=self._workspace,
                account=self._account,
                resume=has_unfinished_run(self._workspace),
                paid_as=part,
                noise=self._own_noise,
                progress=self._progress,
            )
        )
        self._fitting = threading.Thread(target=self._fit, daemon=True)
        self._fitting.start()
        self._reach()

    def take(self, first: int, results: Sequence[Tensor]) -> list[int]:
        """Give `fit` the results of rounds `first`, `first` + 1, ...; what it has already is passed over.

        Returns the rounds among them that this site did not answer.

        Privacy: results are the server's word. They decide what is asked next, and nothing about noise or payment.
        """
        began = self.taken
        for number, result in enumerate(results, first):
            if number < self.taken:
                continue
            question = self._question
            if question is None or number != self.taken:
                raise InputError(f"Expected the result of round {self.taken}, got that of round {number}.")
            if tuple(result.shape) != question.shape or not bool(torch.isfinite(result).all()):
                raise InputError(f"Expected a finite result of {question.shape} for round {number}.")
            self.taken += 1
            # After the last sum only the server goes on: a site has no use for what follows.
            self._given.put(result if self.taken < self.rounds else None)
            self._reach()
        return sorted(set(range(began, self.taken)) - self.answered)

    def question(self, number: int) -> tuple[Question, Event]:
        """The question of a round and the site's own event; one that is not the next raises. Nothing is read."""
        if self._question is None or number != self.taken:
            raise InputError(f"Round {number} was asked, and the site is at round {self.taken} of {self.rounds}.")
        return self._question, self._own[self._question.event]

    def answer(self, number: int) -> Tensor:
        """The site's noised sum for a round. Asked again, it gives the same one again.

        Privacy: as the mechanism that `fit` called (`Session`), on the site's own vault; event of the site's own plan,
        paid before the first record is read; a round is answered once.
        """
        question, event = self.question(number)
        place = self._workspace / f"answer-{number}.safetensors"
        kept = self._kept(place)
        if kept is not None:
            self._note(number)  # a kill may have come between the answer and its note
            return kept
        if self._has_parted:
            raise BudgetError(f"{self.name} has signed what it spent, and answers nothing new. No data was read.")
        assert self._opening is not None
        found = question.answer(self._opening.session, event).detach().cpu()
        value = found.float().contiguous().view(question.shape)
        digest = {"agreement": self.agreement.sha256}
        write_whole(place, save({"value": value}, digest))
        self._note(number)
        (self._workspace / f"answer-{number - _KEPT_ANSWERS}.safetensors").unlink(missing_ok=True)
        return value

    def signed_answer(self, number: int) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The answer as it leaves: numbers, what they are an answer to, and the site's signature."""
        value = self.answer(number)
        question, _ = self.question(number)
        signature = signature_of(answer_message(self.agreement.sha256, self.name, number, value), self._key)
        return {"round": number, "signature": signature}, {"answer": value, "probe": question.probe}

    def signed(self, message: bytes) -> str:
        """The site's signature."""
        return signature_of(message, self._key)

    def certificate(self) -> Certificate:
        """What this site spent, from its own ledger; `samples` is the number of rounds.

        Sums that were never asked for count as spent: their share was reserved, and the ledger says that it is gone.
        From here on this site answers nothing new, whenever the server asked for its farewell.
        """
        if self._opening is None:
            raise InputError("The site has joined no federation, so there is nothing to certify.")
        ledger = self._opening.ledger
        self._has_parted = True
        spent = Counter(Event.from_json(line["body"]["event"]) for line in ledger.lines if line["kind"] == "spend")
        for event in (Counter(self._plan.events) - spent).elements():
            ledger.spend(event)
        return certify(
            ledger.lines,
            samples=self.rounds,
            warnings=[f"Certificate of the site {self.name}: noised sums were sent to a server, no images."],
        )

    def statement(self) -> tuple[Certificate, dict[str, Any]]:
        """The site's certificate, and what of it goes into the joint one, signed."""
        certificate = self.certificate()
        said = {
            "site": self.name,
            "agreement": self.agreement.sha256,
            "unit": self._vault.facts.unit,
            "units": self.member.units,
            "epsilon": certificate.epsilon,
            "delta": certificate.delta,
            "events": [event.to_json() for event in self._plan.events],
            "certificate": certificate.to_json(),
        }
        return certificate, {"statement": said, "signature": self.signed(message_of(said))}

    def close(self) -> None:
        """Let go of the ledger, and of `fit`."""
        self._given.put(None)
        if self._fitting is not None:
            # A thread that is inside torch when Python ends takes the process down with it.
            self._fitting.join(_FAREWELL_SECONDS)
        self._open_run.close()
        self._opening = None

    def result(self, question: Question) -> Tensor:
        """In the thread of `fit`: show a question, and wait for what all sites say to it."""
        self._asked.put(question)
        found = self._given.get()
        if found is None:
            raise _ClosedError
        return found

    def _fit(self) -> None:
        try:
            session = FederatedSession(self.agreement.facts, self._common, self)
            context = Context(seed=self.agreement.seed, device=self._device, workspace=self._workspace / "fit")
            (self._workspace / "fit").mkdir(exist_ok=True)
            self.agreement.method_of().fit(self._common, session, self._public, context)
            self._asked.put(None)
        except _ClosedError:
            pass
        except BaseException as error:
            self._asked.put(error)

    def _reach(self) -> None:
        """Wait until `fit` asks its next question; after the last there is none."""
        if self.taken == self.rounds:
            self._question = None
            return
        found = self._asked.get()
        if isinstance(found, BaseException):
            raise found if isinstance(found, VeilsetError) else VeilsetError(f"The method failed: {found}") from found
        if found is None:
            raise BudgetError(f"{self.agreement.method} ended after {self.taken} of {self.rounds} sums of its plan.")
        self._question = found

    def _note(self, number: int) -> None:
        if number not in self.answered:
            self.answered.add(number)
            write_whole(self._workspace / _ANSWERED, json.dumps(sorted(self.answered)).encode())

    def _kept(self, place: Path) -> Tensor | None:
        return load(place.read_bytes())["value"] if place.exists() else None


class _ClosedError(Exception):
    """`fit` is not needed any more."""


def _answered(workspace: Path) -> set[int]:
    """The rounds that this site answered, in this process or an earlier one."""
    place = workspace / _ANSWERED
    return set(json.loads(place.read_bytes())) if place.exists() else set()


def answer_message(agreement: str, site: str, number: int, answer: Tensor) -> bytes:
    """What a site signs of an answer."""
    digest = hashlib.sha256(np.ascontiguousarray(answer.numpy()).tobytes()).hexdigest()
    return message_of(
        {"agreement": agreement, "site": site, "round": number, "shape": list(answer.shape), "sha256": digest}
    )


def hash_of_public(records: Records) -> str:
    """By which server and sites know that they have the same public images."""
    return hashlib.sha256(np.ascontiguousarray(records.digests()).tobytes()).hexdigest()


def check_data(agreement: Agreement, vault: Vault, public: Public | None) -> None:
    """Refuse other images than the agreement is about."""
    facts = vault.facts
    kinds = {False: "one class for each image", True: "several findings for each image"}
    if facts.findings != agreement.facts.findings:
        raise InputError(
            f"The agreement is about {kinds[agreement.facts.findings]}, and this site has {kinds[facts.findings]}. "
            "Pass the --labels, --findings and --findings-as of the request. Nothing was charged."
        )
    mine: Mapping[str, Any] = {"shape": tuple(facts.shape), "classes": tuple(facts.class_names), "unit": facts.unit}
    theirs = {"shape": tuple(agreement.shape), "classes": tuple(agreement.class_names), "unit": agreement.unit}
    for name, wanted in theirs.items():
        if mine[name] != wanted:
            raise InputError(
                f"The agreement says {name} {wanted}; this site has {mine[name]}. Pass --size, --channels, --classes "
                "or --unit."
            )
    found = None if public is None else hash_of_public(public)
    if found != agreement.public:
        about = "no public images" if agreement.public is None else "other public images"
        raise InputError(f"The agreement is about {about}. Pass the same --public as all others.")
