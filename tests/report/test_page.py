"""What stands in a report and what must not: nothing private in public, no epsilon without a guarantee."""

import itertools
import re
import shutil
from html.parser import HTMLParser

import pytest

from veilset.core.errors import InputError, VerificationError
from veilset.release.certificate import read_certificate
from veilset.release.meaning import meaning_of
from veilset.report.page import write_report


class Page(HTMLParser):
    """Collects what the checks need, and fails on tags that do not close in order."""

    VOID = frozenset({"meta", "link", "img", "br", "line", "rect", "circle"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.text, self._open, self._skip = [], [], [], 0
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self._open.pop() == tag, tag

    def handle_data(self, data):
        if "style" not in self._open:
            self.text.append(data)

    @property
    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


def report(releases, measured=(), name="dp", internal=False):
    return write_report(
        releases[name],
        evaluations=[measured[key] for key in ("evaluation", "paid") if key in measured],
        attacks=[measured[key] for key in ("attack",) if key in measured],
        audits=[measured[key] for key in ("audit",) if key in measured],
        internal=internal,
    )


def test_the_public_version_holds_nothing_that_was_measured_on_private_data(releases, measured):
    text = report(releases, measured)
    for secret in ("42.4", "4242", "0.424", "secret", "unmarked", "reason-4242"):
        assert secret not in text, secret
    words = Page(text).words
    assert "public version" in words
    assert "77.7 %" in words  # paid for
    assert "0.777" in words  # needs no private data
    assert "open picture" in words
    assert "0.63" in words  # an audit plays with made-up records


def test_the_internal_version_shows_it_and_says_so(releases, measured):
    words = Page(report(releases, measured, internal=True)).words
    for expected in ("42.4 %", "not for publication", "secret-4242", "2 seeds, spread 1.0", "Real images", "nearest"):
        assert expected in words, expected
    assert "reason-4242" in words
    assert words.index("do not publish it") < words.index("At a glance")
    assert "not told" in words  # the attack that gives no numbers, the AUC that is null


@pytest.mark.parametrize("internal", [False, True])
def test_without_a_guarantee_no_epsilon_is_printed(releases, measured, internal):
    inputs = {"audit": measured["audit"], "attack": measured["attack"]}
    text = report(releases, inputs, name="none", internal=internal)
    words = Page(text).words
    assert "no privacy guarantee" in words
    assert "It is published without noise." in words
    assert not re.search(r"ε\s*=|epsilon|3\.21|Claimed ε 1", words.replace("Claimed ε At", ""))
    assert "of 100" not in words
    assert "none 0.63" in words  # the audit's bound, without a claim beside it
    assert words.index("no privacy guarantee") < words.index("At a glance")


def test_the_guarantee_in_plain_words(releases):
    words = Page(report(releases)).words
    assert "ε = 3.21" in words or "ε = 3.2" in words
    guess = int(re.search(r"right at most (\d+) times out of 100", words).group(1))
    assert 51 <= guess < 96  # from epsilon 3.21 alone one could only say 96
    assert "class sums 0" in words
    assert words.count("so far") == 3
    assert "one person" in Page(report(releases, name="group")).words


@pytest.mark.parametrize("name", ["dp", "group"])
def test_card_label_and_report_agree(releases, name):
    """What people read of one release, as it was saved: the attacker's bound by the ledger, once for all."""
    bound = meaning_of(read_certificate(releases[name] / "certificate.json"))
    said = f"right at most {bound.right_of_100} times out of 100"
    assert bound.best_guess < bound.from_epsilon
    words = [Page(report(releases, name=name)).words]
    words += [" ".join((releases[name] / file).read_text().split()) for file in ("card.md", "label.md")]
    for text in words:
        assert said in text
        assert {int(found) for found in re.findall(r"right at most (\d+)", text)} == {bound.right_of_100}


def test_it_needs_nothing_from_outside_and_runs_no_script(releases, measured):
    page = Page(report(releases, measured, internal=True))
    assert "script" not in [tag for tag, _ in page.tags]
    for tag, attributes in page.tags:
        for key in ("src", "href"):
            value = attributes.get(key, "")
            assert value.startswith(("data:", "#")) or not value, (tag, value)
        assert not any(key.startswith("on") for key in attributes)


def test_it_is_accessible_in_form(releases, measured):
    page = Page(report(releases, measured, internal=True))
    assert [tag for tag, _ in page.tags].count("h1") == 1
    levels = [int(tag[1]) for tag, _ in page.tags if re.fullmatch(r"h[1-6]", tag)]
    assert all(after - before <= 1 for before, after in itertools.pairwise(levels))
    for tag, attributes in page.tags:
        if tag == "img":
            assert attributes["alt"]
        if tag == "svg":
            assert attributes.get("aria-label") or attributes.get("aria-hidden") == "true"
        if tag == "th":
            assert attributes.get("scope")
    assert ("html", {"lang": "en"}) in page.tags


def test_names_from_people_are_escaped(releases):
    text = report(releases)
    assert "<b>emu</b>" not in text
    assert "&lt;b&gt;emu&lt;/b&gt;" in text


def test_contrast_is_at_least_4_5_in_light_and_dark(releases):
    """WCAG's ratio of every text colour on every background that it stands on."""

    def luminance(colour):
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    style = report(releases)
    blocks = re.findall(r":root \{(.*?)\}", style, re.DOTALL)[:2]
    for block in blocks:
        colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
        pairs = [(ink, ground) for ink in ("ink", "soft", "accent") for ground in ("page", "card", "note-bg")]
        pairs += [("ink", "caution-bg"), ("ink", "grave-bg"), ("caution", "caution-bg"), ("caution", "page")]
        for ink, ground in [*pairs, ("grave", "grave-bg")]:
            one, two = sorted((luminance(colours[ink]), luminance(colours[ground])))
            assert (two + 0.05) / (one + 0.05) >= 4.5, (ink, ground)


def test_a_missing_a_foreign_and_a_tampered_release_are_refused(releases, tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        write_report(tmp_path / "nowhere")
    (tmp_path / "foreign").mkdir()
    with pytest.raises(InputError, match="not a release"):
        write_report(tmp_path / "foreign")
    shutil.copytree(releases["dp"], tmp_path / "forged")
    card = tmp_path / "forged" / "card.md"
    card.write_text(card.read_text() + "Really private!")
    with pytest.raises(VerificationError, match=r"card\.md was altered"):
        write_report(tmp_path / "forged")


def test_an_audit_that_contradicts_stands_first(releases, measured):
    measured["audit"].write_text('{"name": "odd sum", "claimed_epsilon": 1, "lower_bound": 4, "contradicted": true}')
    words = Page(report(releases, measured)).words
    assert words.index("contradicts the claim of odd sum") < words.index("At a glance")


def test_an_audit_of_broken_twins_is_told_apart_from_claims(releases, measured):
    twins = '{"name": "no noise", "contradicted": true}, {"name": "no clip", "contradicted": false}'
    measured["audit"].write_text(f'{{"sabotages": [{twins}]}}')
    words = Page(report(releases, measured)).words
    assert "1 of 2 were caught" in words
    assert "contradicts the claim" not in words
