import json
import math

import pytest

from veilset.core.errors import InputError, VerificationError
from veilset.privacy.accounting import epsilon_of
from veilset.privacy.events import Event
from veilset.privacy.ledger import Ledger
from veilset.release.certificate import Certificate
from veilset.release.certifying import certify
from veilset.release.redaction import redact, states_epsilon


def test_epsilon_is_that_of_the_ledger_and_not_the_one_asked_for(make):
    certificate = make.certificate()
    events = [Event(label="class means", noise_multiplier=5.0), Event(label="steps", noise_multiplier=9.0, count=4)]
    assert certificate.guarantee == "dp"
    assert certificate.epsilon == epsilon_of(events, 1e-5, "pld") == certificate.accountant["pld"]
    assert certificate.accountant["rdp"] == epsilon_of(events, 1e-5, "rdp") > certificate.epsilon
    assert certificate.budget == {"epsilon": 7.654321, "delta": 1e-5}
    assert certificate.epsilon < 7.6


def test_a_certificate_reads_back_as_it_was_written(make):
    certificate = make.certificate(warnings=["Small classes."])
    assert Certificate.from_json(json.loads(certificate.to_bytes())) == certificate
    text = certificate.to_bytes().decode()
    assert text == json.dumps(json.loads(text), sort_keys=True, indent=2) + "\n"
    assert "declared public" in certificate.declared_public["statement"]
    assert set(certificate.versions) == {"veilset", "torch", "numpy", "dp-accounting", "python"}


def test_an_empty_plan_costs_nothing(make):
    assert make.certificate(plan=()).epsilon == 0.0


def test_seeded_noise_takes_the_guarantee_away(make):
    certificate = make.certificate(noise="seeded")
    assert certificate.guarantee == "none"
    assert "seed" in certificate.reasons[0]


@pytest.mark.parametrize("how", [{"noise": "seeded"}, {"reasons": ["It ran as published: epsilon = 10 is wrong."]}])
def test_without_a_guarantee_no_epsilon_is_left_anywhere(make, how):
    settings = {"epsilon_split": 0.25, "delta": 0.125, "note": "eps 3.5, as in the paper"}
    certificate = make.certificate(settings=settings, warnings=["about ε ≈ 2.25"], **how)
    text = certificate.to_bytes().decode()
    content = json.loads(text)
    assert content["epsilon"] is content["delta"] is content["budget"] is None
    assert content["accountant"] == {"pld": None, "rdp": None}
    assert text.count('"epsilon"') == 1
    assert text.count('"budget"') == 1
    for number in ("7.654321", "0.25", "0.125", "3.5", "2.25", "= 10", "1e-05"):
        assert number not in text
    assert content["ledger"][0]["body"]["plan"]
    assert len(content["ledger"][0]["body"]["redacted_from"]) == 64


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("epsilon=1.5", "epsilon=(not stated)"),
        ("an Epsilon of about 3e4 holds", "an Epsilon of about (not stated) holds"),
        ("eps 10", "eps (not stated)"),
        ("(epsilon, delta) = (1.5, 1e-5)", "(epsilon, delta) = ((not stated), 1e-5)"),
        ("ε-DP with 1.5", "ε-DP with (not stated)"),
        ("It is (1.5, 1e-5)-differentially private", "It is (not stated)-differentially private"),
        ("(2,1e-6)-DP", "(not stated)-DP"),
        ("steps 10, keeps 3, epsilon is not claimed", None),
        ("At this epsilon noise hides fewer than 45: (3, 4) images", None),
    ],
)
def test_numbers_beside_the_word_epsilon_go(text, left):
    assert redact(text) == (left or text)
    assert states_epsilon(text) is (left is not None)
    assert not states_epsilon(redact({"a": [text], "my_epsilon": 1}))


def test_a_certificate_says_what_the_ledger_says(make):
    lines = make.lines(make.facts())
    header, found = lines[0]["body"], certify(lines, samples=1)
    assert found.facts == make.facts()
    for name in ("delta", "method", "settings", "seed", "budget"):
        assert getattr(found, name) == header[name]


def test_a_ledger_that_was_altered_or_says_too_little_is_not_certified(make, tmp_path):
    lines = make.lines(make.facts())
    with pytest.raises(VerificationError, match="altered"):
        certify(lines[:1] + lines[2:], samples=1)
    with pytest.raises(VerificationError, match="no lines"):
        certify([], samples=1)
    for name in ("facts", "delta", "method", "settings", "seed"):
        known = {key: value for key, value in lines[0]["body"].items() if key != name}
        ledger = Ledger.create(tmp_path / f"{name}.jsonl", known)
        ledger.close()
        with pytest.raises(VerificationError, match=f"does not say {name}"):
            certify(ledger.lines, samples=1)


def test_a_ledger_that_is_not_its_plan_is_not_certified(make):
    one, two = Event(label="a", noise_multiplier=5.0), Event(label="b", noise_multiplier=6.0)
    assert make.certificate(plan=(one, two), spent=(two, one)).epsilon > 0
    for spent in [(one,), (one, two, two), (one, one)]:
        with pytest.raises(VerificationError, match="no more and no fewer"):
            make.certificate(plan=(one, two), spent=spent)


def test_more_leased_steps_than_paid_ones_are_not_certified(make):
    steps = Event(label="sgd", noise_multiplier=5.0, count=10)
    make.certificate(plan=(steps,), leases=[("sgd", 6), ("sgd", 4)])
    with pytest.raises(VerificationError, match="leases more steps"):
        make.certificate(plan=(steps,), leases=[("sgd", 6), ("sgd", 5)])
    with pytest.raises(VerificationError, match="leases more steps"):
        make.certificate(plan=(steps,), leases=[("other", 1)])


def test_a_delta_too_large_for_the_records_is_refused(make):
    with pytest.raises(InputError, match="1/1000"):
        make.certificate(delta=1e-3)


def test_noise_of_an_unknown_kind_is_refused(make):
    with pytest.raises(VerificationError, match="unknown"):
        make.certificate(noise="none")


def test_settings_that_json_cannot_hold_are_refused(make):
    with pytest.raises(InputError, match="JSON"):
        make.certificate(settings={"x": math.nan}).to_bytes()
