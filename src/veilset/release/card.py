"""card.md: a dataset card in the Hugging Face format, made from the certificate and from nothing else."""

import json
import math

from veilset.release.certificate import Certificate

_SIZES = ((3, "n<1K"), (4, "1K<n<10K"), (5, "10K<n<100K"), (6, "100K<n<1M"), (7, "1M<n<10M"))
_UNITS = {"record": "one image", "group": "one group (all images of one person, for example a patient)"}


def card_text(certificate: Certificate) -> str:
    """The card of a release."""
    parts = (
        _front_matter(certificate),
        "# Synthetic images",
        _what(certificate),
        "## What is guaranteed",
        _guaranteed(certificate) if certificate.guarantee == "dp" else _not_guaranteed(certificate),
        *(["## Warnings", _bullets(certificate.warnings)] if certificate.warnings else []),
        "## How to load it",
        _LOADING,
        *_training(certificate),
        "## How to verify it",
        _VERIFYING[certificate.guarantee],
        "## Limits",
        _limits(certificate),
    )
    return "\n\n".join(parts) + "\n"


def _front_matter(certificate: Certificate) -> str:
    # JSON texts are YAML texts, so names of any kind are quoted rightly.
    names = [f"          '{i}': {_quoted(name)}" for i, name in enumerate(certificate.facts.class_names)]
    lines = [
        "---",
        "license: other",
        "license_name: to-be-chosen-by-the-publisher",
        "pretty_name: Synthetic images",
        "task_categories:",
        "- image-classification",
        "size_categories:",
        f"- {_size(certificate.samples)}",
        "tags:",
        "- synthetic",
        "- image",
        "- veilset",
        *(["- differential-privacy"] if certificate.guarantee == "dp" else []),
        "dataset_info:",
        "  features:",
        "  - name: image",
        "    dtype: image",
        "  - name: label",
        "    dtype:",
        "      class_label:",
        "        names:",
        *names,
        "privacy:",
        f"  guarantee: {certificate.guarantee}",
        *_privacy_fields(certificate),
        "---",
    ]
    return "\n".join(lines)


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


def _what(certificate: Certificate) -> str:
    facts = certificate.facts
    height, width, channels = facts.shape
    classes = ", ".join(_plain(name) for name in facts.class_names)
    text = (
        f"{certificate.samples} synthetic images of {height} x {width} pixels with {channels} "
        f"channel{'s' if channels > 1 else ''}, in {facts.classes} classes ({classes}). They stand in for a private "
        f"dataset that is not published. Made by the method `{_plain(certificate.method)}` of veilset "
        f"{_plain(certificate.versions.get('veilset', ''))} on {_plain(certificate.created)}."
    )
    if certificate.guarantee == "none":
        return f"> **Warning: these images carry no privacy guarantee.** Treat them like the private data.\n\n{text}"
    return text


def _guaranteed(certificate: Certificate) -> str:
    epsilon, delta = certificate.epsilon or 0.0, certificate.delta or 0.0
    whom = _UNITS[certificate.unit]
    return "\n\n".join(
        (
            f"**Differential privacy with epsilon = {rounded_up(epsilon)} and delta = {delta:g}**, "
            f"for {whom}, under {certificate.relation}.",
            f"In plain words: take {whom} of the private data, and an attacker who knows all the rest and wants to "
            f"know whether it was used. Any conclusion that he can draw from this release is at most "
            f"e^epsilon = {_odds(epsilon)} times as likely as it would be had it not been used, and the other way "
            f"round, plus delta = {delta:g}; his odds improve by about that factor at best. If he could only toss a "
            f"coin before, he is right at most {_best_guess(epsilon, delta)} of the time. The same holds for all "
            f"that is ever computed from this release.",
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


_LOADING = """```python
import numpy as np
pack = np.load("data.npz")              # images, labels and, where there are any, soft_labels

import veilset as vs
dataset = vs.load_release(".").torch()  # a torch Dataset of (image, soft label or class)
```"""


def _training(certificate: Certificate) -> list[str]:
    """What to train, and how on softened labels and with changes to images, where there are any."""
    said = []
    softness, changes = certificate.label_temperature, certificate.student_changes
    if certificate.student_network is not None:
        said.append(
            f"Recommended network: `{_plain(certificate.student_network)}` of veilset, which `veilset train` takes "
            "unless told otherwise. Any other can be trained on these images, too."
        )
    if softness != 1:
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


_VERIFYING = {
    "dp": "`veilset verify DIRECTORY` computes the privacy loss from the ledger again, with two accountants, and "
    "checks every file against the certificate. Add `--key PUBLIC_KEY` with the publisher's key, which you have from "
    "elsewhere, to know who signed it: without a key, a forger who made every hash fit again goes unnoticed.",
    "none": "`veilset verify DIRECTORY` checks every file against the certificate. It cannot add the "
    "guarantee that is missing.",
}


def _limits(certificate: Certificate) -> str:
    points = [
        "Synthetic images are not evidence: do not draw conclusions about single people or rare cases from them.",
        "What the private data teaches about everyone (for example that a sign goes with a disease) is kept on "
        "purpose, and may hurt people who were not in it.",
    ]
    if certificate.guarantee == "dp":
        points = [
            "The number of records, the image shape and the class names are declared public and not protected.",
            f"The guarantee is for {_UNITS[certificate.unit]}. People with more than that in the data, and records "
            "that depend on each other (relatives, repeated scans), are protected less.",
            "Settings that somebody tuned by hand on the private data, and whatever else was published from the same "
            "data, are not in this epsilon.",
            *points,
        ]
    return _bullets(points) + '\n\nMore on this: docs/sharp_edges.md of veilset, "what the guarantee does not cover".'


def rounded_up(value: float, digits: int = 4) -> str:
    """A number in `digits` digits that is never below the value it stands for."""
    if value <= 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / step - 1e-9) * step:.{digits}g}"


def _odds(epsilon: float) -> str:
    return rounded_up(math.exp(epsilon), 3) if epsilon < 15 else "more than a million, which is hardly a limit"


def _best_guess(epsilon: float, delta: float) -> str:
    # Kairouz, Oh and Viswanath 2015, Theorem 2.1: the best test between two neighbours at even prior odds.
    share = (1 + delta * math.exp(-epsilon)) / (1 + math.exp(-epsilon))
    return f"{math.ceil(min(share, 1.0) * 1000 - 1e-9) / 10:g} %"


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
