"""card.md: a dataset card in the Hugging Face format, made from the certificate and from the publisher's own words."""

import json
import math

from veilset.release.about import UNSAID, About
from veilset.release.card_forms import RELEASE, CardForm, data_files_lines
from veilset.release.certificate import Certificate
from veilset.release.meaning import meaning_of
from veilset.release.metadata.wording import LIMITS, NOT_COVERED, UNITS, rounded_up

_SIZES = ((3, "n<1K"), (4, "1K<n<10K"), (5, "10K<n<100K"), (6, "100K<n<1M"), (7, "1M<n<10M"))


def card_text(
    certificate: Certificate,
    about: About | None = None,
    form: CardForm = RELEASE,
    *,
    has_soft_labels: bool = False,
) -> str:
    """The card of a release, or of one of its exports."""
    about = About() if about is None else about
    parts = (
        _front_matter(certificate, about, form, has_soft_labels=has_soft_labels),
        f"# {_plain(about.title)}",
        _what(certificate, about),
        "## What is guaranteed",
        _guaranteed(certificate) if certificate.guarantee == "dp" else _not_guaranteed(certificate),
        *(["## Warnings", _bullets(certificate.warnings)] if certificate.warnings else []),
        "## How to load it",
        form.loading,
        *_training(certificate),
        "## How to verify it",
        form.verifying(certificate.guarantee),
        "## Limits",
        _limits(certificate),
    )
    return "\n\n".join(parts) + "\n"


def _front_matter(certificate: Certificate, about: About, form: CardForm, *, has_soft_labels: bool) -> str:
    lines = [
        "---",
        *about.front_matter(),
        f"pretty_name: {_quoted(about.title)}",
        "task_categories:",
        "- image-classification",
        "size_categories:",
        f"- {_size(certificate.samples)}",
        "tags:",
        "- synthetic",
        "- image",
        "- veilset",
        *(["- differential-privacy"] if certificate.guarantee == "dp" else []),
        *data_files_lines(form.data_files),
        *(_features(certificate, has_soft_labels=has_soft_labels) if form.has_columns else []),
        "privacy:",
        f"  guarantee: {certificate.guarantee}",
        *_privacy_fields(certificate),
        "---",
    ]
    return "\n".join(lines)


def _features(certificate: Certificate, *, has_soft_labels: bool) -> list[str]:
    # JSON texts are YAML texts, so names of any kind are quoted rightly.
    names = [f"          '{i}': {_quoted(name)}" for i, name in enumerate(certificate.facts.class_names)]
    of_classes = ["  - name: label", "    dtype:", "      class_label:", "        names:", *names]
    of_findings = ["  - name: labels", "    list: uint8"]
    return [
        "dataset_info:",
        "  features:",
        "  - name: image",
        "    dtype: image",
        *(of_findings if certificate.facts.findings else of_classes),
        *(["  - name: soft_label", "    list: float32"] if has_soft_labels else []),
    ]


def _privacy_fields(certificate: Certificate) -> list[str]:
    if certificate.epsilon is None or certificate.delta is None:
        return []
    return [
        f"  epsilon: {_yaml_number(certificate.epsilon)}",
        f"  delta: {_yaml_number(certificate.delta)}",
        f"  unit: {certificate.unit}",
        f"  relation: {certificate.relation}",
        f"  units: {certificate.facts.units}",
    ]


def _what(certificate: Certificate, about: About) -> str:
    facts = certificate.facts
    height, width, channels = facts.shape
    classes = ", ".join(_plain(name) for name in facts.class_names)
    text = (
        f"{certificate.samples} synthetic images of {height} x {width} pixels with {channels} "
        f"channel{'s' if channels > 1 else ''}, {_labelled_as(certificate, classes)}. They stand in for a private "
        f"dataset that is not published. Made by the method `{_plain(certificate.method)}` of veilset "
        f"{_plain(certificate.versions.get('veilset', ''))} on {_plain(certificate.created)}."
    )
    text = (
        f"{text}\n\nPublished by: {_plain(about.publisher or UNSAID)}. Of what: {_plain(about.description or UNSAID)}."
    )
    if certificate.guarantee == "none":
        return f"> **Warning: these images carry no privacy guarantee.** Treat them like the private data.\n\n{text}"
    return text


def _labelled_as(certificate: Certificate, names: str) -> str:
    facts = certificate.facts
    if not facts.findings:
        return f"in {facts.classes} classes ({names})"
    return (
        f"each with {facts.classes} findings ({names}), of which several may be true or none: `labels` has a zero or a "
        "one for each, in this order, and `soft_labels`, where there are any, a probability"
    )


def _guaranteed(certificate: Certificate) -> str:
    epsilon, delta = certificate.epsilon or 0.0, certificate.delta or 0.0
    whom, meaning = UNITS[certificate.unit], meaning_of(certificate)
    most = 100 if meaning is None else meaning.right_of_100
    return "\n\n".join(
        (
            f"**Differential privacy with epsilon = {rounded_up(epsilon)} and delta = {delta:g}**, "
            f"for {whom}, under {certificate.relation}.",
            f"In plain words: take {whom} of the private data, and an attacker who knows all the rest and wants to "
            f"know whether it was used. Any conclusion that he can draw from this release is at most "
            f"e^epsilon = {_odds(epsilon)} times as likely as it would be had it not been used, and the other way "
            f"round, plus delta = {delta:g}; his odds improve by about that factor at best. If he could only toss a "
            f"coin before, he is right at most {most} times out of 100, by the ledger of what was read. The same holds "
            f"for all that is ever computed from this release.",
            f"Epsilon was computed from the ledger of everything that was read from the private data "
            f"({certificate.facts.units} {certificate.unit}s, a number that is declared public); the ledger is in "
            "`certificate.json`.",
        )
    )


def _not_guaranteed(certificate: Certificate) -> str:
    return "\n\n".join(
        (
            "**Nothing.** These images may show or betray single private images. Do not publish them as "
            "anonymous or private data. The reason:",
            _bullets(certificate.reasons),
        )
    )


def _training(certificate: Certificate) -> list[str]:
    """What to train, and how on softened labels and with changes to images, where there are any."""
    said = []
    softness, changes = certificate.label_temperature, certificate.student_changes
    if certificate.facts.findings:
        said.append("Train with a binary cross-entropy for each finding: `sigmoid(logits)` against the soft labels.")
    if certificate.student_network is not None:
        said.append(
            f"Recommended network: `{_plain(certificate.student_network)}` of veilset, which `veilset train` takes "
            "unless told otherwise. Any other can be trained on these images, too."
        )
    if softness != 1 and not certificate.facts.findings:
        said.append(
            f"Soft labels are those of a temperature of {softness:g}. Train with the cross-entropy between them and "
            f"`softmax(logits / {softness:g})`: a network is then as sure of itself as the teacher was. Without the "
            "division it learns the same classes and is less sure."
        )
    if changes is not None:
        amounts = ", ".join(f"{name} {amount}" for name, amount in changes.items() if amount)
        said.append(
            f"Change each image anew whenever a network sees it, by at most: {amounts} (`AugmentConfig` in "
            "`veilset.training.augment`; `veilset train` does it). Its label stays."
        )
    return said


def _limits(certificate: Certificate) -> str:
    points = [*LIMITS]
    if certificate.guarantee == "dp":
        points = [f"The guarantee is for {UNITS[certificate.unit]}.", *NOT_COVERED, *points]
    return (
        _bullets(points)
        + '\n\nMore on this: docs/explanation/sharp_edges.md of veilset, "what the guarantee does not cover".'
    )


def _odds(epsilon: float) -> str:
    return rounded_up(math.exp(epsilon), 3) if epsilon < 15 else "more than a million, which is hardly a limit"


def _yaml_number(value: float) -> str:
    # YAML reads 1e-05 as text; it wants a point before the exponent.
    text = repr(float(value))
    mantissa, e, exponent = text.partition("e")
    return text if not e or "." in mantissa else f"{mantissa}.0e{exponent}"


def _size(samples: int) -> str:
    return next((name for digits, name in _SIZES if samples < 10**digits), "10M<n<100M")


def _bullets(points: "tuple[str, ...] | list[str]") -> str:
    return "\n".join(f"- {' '.join(point.split())}" for point in points)


def _quoted(text: str) -> str:
    # Lone surrogates cannot be written; everything else is kept readable.
    return json.dumps(text.encode("utf-8", "replace").decode(), ensure_ascii=False)


def _plain(text: str) -> str:
    """A name inside a sentence: on one line, with no marks that Markdown or HTML would act on."""
    line = " ".join(text.encode("utf-8", "replace").decode().split())
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in line)
