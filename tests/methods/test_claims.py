"""What a method says of its paper is what its page says, and it is never "holds as published" by default."""

from pathlib import Path

import pytest

from veilset.core.errors import InputError
from veilset.methods import METHODS

DOCS = Path(__file__).parents[2] / "docs" / "methods"


@pytest.mark.parametrize("name", list(METHODS))
def test_the_page_says_what_the_method_says_of_its_paper(name: str) -> None:
    page = " ".join((DOCS / f"{name}.md").read_text(encoding="utf-8").split())
    assert METHODS.get(name).claim_of_paper in page


@pytest.mark.parametrize("name", list(METHODS))
def test_a_method_without_a_form_as_published_says_what_holds(name: str) -> None:
    kind = METHODS.get(name)
    if kind.published_reason is not None:
        assert kind.configure(as_published=True).as_published
        return
    with pytest.raises(InputError) as refused:
        kind.configure(as_published=True)
    assert kind.claim_of_paper in str(refused.value)
    assert "holds as published" not in str(refused.value)


def test_claims_that_do_not_hold_are_not_praised() -> None:
    broken = {"dfd", "dpaf", "sanitized_gan"}
    assert {name for name in METHODS if "do not hold" in METHODS.get(name).claim_of_paper
            or "does not hold" in METHODS.get(name).claim_of_paper} == broken  # fmt: skip
