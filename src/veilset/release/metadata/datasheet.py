"""A data sheet along the questions of Gebru et al., Datasheets for Datasets (2021), as far as a release can answer.

https://arxiv.org/abs/1803.09010
"""

from veilset.release.about import UNSAID, About
from veilset.release.certificate import Certificate
from veilset.release.metadata.wording import LIMITS, NOT_COVERED, guarantee_sentence, what_it_is

_ASK = f"({UNSAID})"


def datasheet_text(certificate: Certificate, about: About, *, has_soft_labels: bool) -> str:
    """The data sheet of a release, in Markdown."""
    parts = [f"# Data sheet: {_line(about.title)}"]
    for heading, answers in _sections(certificate, about, has_soft_labels=has_soft_labels).items():
        parts.append(f"## {heading}")
        parts += [f"**{question}** {_line(answer)}" for question, answer in answers]
    return "\n\n".join(parts) + "\n"


def _sections(certificate: Certificate, about: About, *, has_soft_labels: bool) -> dict[str, list[tuple[str, str]]]:
    facts = certificate.facts
    soft = " and a probability for each class (soft label)" if has_soft_labels else ""
    protected = certificate.guarantee == "dp"
    return {
        "Motivation": [
            ("For what purpose was the dataset created?", "To stand in for a private dataset that is not published."),
            ("Who created it, and on whose behalf?", about.publisher or _ASK),
            ("Who funded it?", _ASK),
        ],
        "Composition": [
            ("What do the instances represent?", f"{what_it_is(certificate)} {about.description or _ASK}"),
            ("How many instances are there?", str(certificate.samples)),
            ("Is it a sample of a larger set?", "Images are drawn from what was learned; any number could be drawn."),
            ("What does each instance consist of?", f"An image, a class{soft}."),
            ("What are the classes?", ", ".join(facts.class_names)),
            ("Are there recommended splits?", "All of it is for training. Test on real data, where that is allowed."),
            (
                "Are there errors, noise or redundancies?",
                " ".join(("Labels are those of a model, and some are wrong.", *certificate.warnings)),
            ),
            ("Does it contain confidential data?", guarantee_sentence(certificate)),
            ("What does that not cover?", " ".join(NOT_COVERED) if protected else " ".join(certificate.reasons)),
            ("Does it identify subpopulations?", f"Only by its classes. {_ASK}"),
        ],
        "Collection": [
            ("How was the private data acquired?", about.description or _ASK),
            ("Were people told, and did they consent?", _ASK),
            ("Were ethical reviews conducted?", _ASK),
            ("When was the release made?", certificate.created[:10]),
        ],
        "Preprocessing and labelling": [
            (
                "What was done?",
                f"Method {certificate.method} of Veilset {certificate.versions.get('veilset', '')}; settings and the "
                "ledger of everything that was read are in certificate.json.",
            ),
            ("Is the raw data available?", "No. It stays with its custodian."),
        ],
        "Uses": [
            ("What is it for?", "Training and comparing image classifiers, teaching, testing software."),
            ("What should it not be used for?", " ".join(LIMITS)),
        ],
        "Distribution": [
            ("Under which licence?", about.licence_address or _ASK),
            ("Who distributes it?", about.publisher or _ASK),
        ],
        "Maintenance": [
            ("Will it be updated?", "A release is never changed; another release is another dataset."),
            ("Whom can I ask?", about.publisher or _ASK),
        ],
    }


def _line(text: str) -> str:
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return "".join(f"\\{letter}" if letter in "`*_[]<>#" else letter for letter in line)
