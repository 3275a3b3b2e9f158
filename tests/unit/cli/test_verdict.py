"""Three outcomes, three exit statuses, as files and as people spell them."""

from __future__ import annotations

import pytest

from infra.cli.output import exit_code


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        ("PASS", 0),
        ("EQUAL", 0),
        ("AGREE", 0),
        ("FAIL", 1),
        ("DIFFER", 1),
        ("NOT RUN", 69),
        ("NOT_RUN", 69),
    ],
)
def test_a_verdict_ends_with_its_own_status(verdict: str, status: int) -> None:
    assert exit_code(verdict) == status


def test_a_word_that_is_no_verdict_is_no_success() -> None:
    with pytest.raises(KeyError):
        exit_code("MAYBE")
