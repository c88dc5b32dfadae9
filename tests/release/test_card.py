import json
import math
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from veilset.privacy.vault import PublicFacts
from veilset.release.about import About
from veilset.release.card import card_text
from veilset.release.meaning import meaning_of
from veilset.release.metadata.label import label_text
from veilset.release.metadata.wording import guarantee_sentence, rounded_up


def test_a_card_says_what_holds_for_one_person(make):
    certificate = make.certificate(warnings=["The class emu\nis small."])
    card = card_text(certificate)
    assert f"epsilon = {rounded_up(certificate.epsilon)} and delta = 1e-05" in card
    assert "for one image, under add/remove-one" in card
    factor = float(re.search(r"e\^epsilon = ([\d.]+)", card).group(1))
    assert math.exp(certificate.epsilon) <= factor < math.exp(certificate.epsilon) * 1.01
    assert "- The class emu is small." in card
    assert "1000 records, a number that is declared public" in card
    for heading in ("What is guaranteed", "How to load it", "How to verify it", "Limits"):
        assert f"\n## {heading}\n" in card


def test_the_front_matter_is_that_of_a_dataset_card(make):
    certificate = make.certificate(facts=make.facts(names=["a: b", 'say "é"', "#1"]))
    card = card_text(certificate)
    _, front, _ = card.split("---\n", 2)
    lines = front.splitlines()
    assert "license: other" in lines
    assert lines[lines.index("task_categories:") + 1] == "- image-classification"
    assert lines[lines.index("size_categories:") + 1] == "- n<1K"
    names = [json.loads(line.split(": ", 1)[1]) for line in lines if re.match(r" {10}'\d+': ", line)]
    assert names == ["a: b", 'say "é"', "#1"]
    assert f"  epsilon: {certificate.epsilon!r}" in lines
    assert "  delta: 1.0e-05" in lines


def test_a_card_without_a_guarantee_warns_first_and_names_no_epsilon(make):
    card = card_text(make.certificate(noise="seeded"))
    assert "epsilon" not in card.lower()
    assert "ε" not in card
    assert "differential" not in card
    assert "guarantee: none" in card
    body = card.split("---\n", 2)[2]
    assert body.index("no privacy guarantee") < body.index("12 synthetic images")
    assert "came from a seed" in body


def test_names_cannot_write_markup_into_the_card(make):
    card = card_text(make.certificate(facts=make.facts(names=["<script>", "a\n# b", "\ud800"])))
    body = card.split("---\n", 2)[2]
    assert "<script>" not in body.replace(r"\<script\>", "")
    assert "\n# b" not in body
    card.encode()


@pytest.mark.parametrize(("samples", "size"), [(999, "n<1K"), (1000, "1K<n<10K"), (60_000, "10K<n<100K")])
def test_sizes(make, samples, size):
    assert f"- {size}\n" in card_text(make.certificate(samples=samples))


def test_groups_are_named_as_people(make):
    facts = PublicFacts(units=10, unit="group", shape=(2, 2, 1), class_names=("a", "b"))
    assert "one group (all images of one person" in card_text(make.certificate(facts=facts))


@given(st.floats(1e-6, 1e6))
def test_a_number_is_never_shown_smaller_than_it_is(value):
    shown = float(rounded_up(value))
    assert value * (1 - 1e-9) <= shown <= value * 1.0011


def test_a_card_says_how_to_train_on_softened_labels(make):
    assert "temperature" not in card_text(make.certificate())
    assert "softmax(logits / 4)" in card_text(make.certificate(settings={"label_temperature": 4.0}))


def test_card_label_and_report_state_one_bound(make):
    """The attacker's best guess by the ledger; epsilon and delta alone would allow more."""
    certificate = make.certificate()
    meaning = meaning_of(certificate)
    assert meaning.best_guess < meaning.from_epsilon
    said = f"right at most {meaning.right_of_100} times out of 100"
    assert said in card_text(certificate)
    assert said in label_text(certificate, About())
    assert said in guarantee_sentence(certificate)
