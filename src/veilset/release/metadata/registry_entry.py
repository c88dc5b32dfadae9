"""An entry in the form of the Differential Privacy Deployments Registry (https://registry.opendp.org), as YAML.

What only the publisher knows says so; the entry is a draft for its pull request and not an announcement.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from veilset.core.errors import InputError
from veilset.privacy.ledger import check_chain
from veilset.release.about import UNSAID, About
from veilset.release.certificate import Certificate
from veilset.release.meaning import meaning_of
from veilset.release.metadata.label import mechanisms, trust
from veilset.release.metadata.wording import NOT_COVERED, UNITS, what_it_is

_LEVEL = {"record": "Record-level", "group": "User-level"}


def registry_entry(certificate: Certificate, about: About) -> str:
    """The entry of a release; one without a guarantee has no place in that registry."""
    meaning = meaning_of(certificate)
    if meaning is None:
        raise InputError("The registry lists deployments of differential privacy, and this release has no guarantee.")
    slug = re.sub(r"[^a-z0-9]+", "-", f"{about.title} {about.publisher or ''} {certificate.created[:4]}".lower())
    facts = certificate.facts
    return _yaml(
        {
            "url_slug": slug.strip("-"),
            "deployment": {
                "basic": {
                    "name": about.title,
                    "data_curators": [
                        {"data_curator_name": about.publisher or UNSAID, "data_curator_type": UNSAID},
                    ],
                    "description": f"{what_it_is(certificate)} {about.description or ''}".strip(),
                    "intended_use": "Training and comparing image classifiers without the private images.",
                    "data_product_type": "Synthetic data",
                    "data_product_region": UNSAID,
                    "data_product_sector": UNSAID,
                    "publication_date": certificate.created[:10],
                },
                "dp_variant": {
                    "variant_name": "Approximate DP",
                    "data_domain": (
                        f"Labelled images of {' x '.join(map(str, facts.shape))} in {facts.classes} classes, of any "
                        "number of units."
                    ),
                    "unprotected_quantities": NOT_COVERED[0],
                },
                "privacy_loss": {
                    "privacy_unit": _LEVEL[certificate.unit],
                    "privacy_unit_details": (
                        f"Neighbouring datasets differ by {UNITS[certificate.unit]}, added or removed."
                    ),
                    "privacy_parameters": {"epsilon": meaning.epsilon, "delta": meaning.delta},
                    "privacy_parameters_details": (
                        f"Computed from a ledger of all that was read. The best attacker who could only toss a coin "
                        f"before is right at most {meaning.right_of_100} times out of 100."
                    ),
                },
                "deployment_model": {
                    "model_name": "Federated" if "sites" in certificate.header else "Central",
                    "actors": trust(certificate),
                    "release_type": "One release",
                    "release_type_details": "A release is never changed. An account adds up all runs on the same data.",
                    "data_source_type": "Static",
                    "access_type": "Non-interactive",
                },
                "implementation": {
                    "preprocessing_and_hyperparameter_tuning": (
                        "Images were brought to one size. Settings are in certificate.json. "
                        "Tuning by hand on the private data, if there was any, is not accounted: " + UNSAID + "."
                    ),
                    "mechanisms": (
                        f"{mechanisms(check_chain(certificate.ledger))} Implemented by Veilset "
                        f"{certificate.versions.get('veilset', '')}; noise from the operating system's entropy, on an "
                        "integer grid."
                    ),
                    "composition": "Privacy loss distributions over all events of the ledger; shards are disjoint.",
                    "post_processing": "Everything after the noisy sums, up to the released images, reads no record.",
                    "justification": UNSAID,
                },
                "administrative": {
                    "evidence_sources": {
                        "certificate": {
                            "evidence_source_type": "Formal publication by the deploying organization",
                            "misc": {"title": "certificate.json of the release", "url": UNSAID},
                        }
                    },
                    "status": "Draft",
                    "registry_authors": [about.publisher or UNSAID],
                    "tier": 3,
                },
            },
        }
    )


def _yaml(data: Mapping[str, Any], indent: int = 0) -> str:
    """Nested mappings as YAML; a JSON text is a YAML text, so values of any kind are quoted rightly."""
    lines = []
    for key, value in data.items():
        if isinstance(value, Mapping):
            lines.append(f"{' ' * indent}{key}:\n{_yaml(value, indent + 2)}")
        else:
            lines.append(f"{' ' * indent}{key}: {_value(value)}\n")
    return "".join(lines)


def _value(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=True, allow_nan=False)
    # YAML reads 1e-05 as a text; it wants a point before the exponent.
    return re.sub(r"^(-?\d+)e", r"\1.0e", text) if isinstance(value, float) else text
