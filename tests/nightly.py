"""What `make test-all` has beside `make test`: cases that take minutes, and more examples of a law.

How many examples a law is held against says the profile of Hypothesis: `nightly`, that of
`make test-all`, takes ten times as many as `ci`, that of every other run.
"""

from __future__ import annotations

from typing import Final

import pytest
from hypothesis import HealthCheck, settings

_TIMES: Final = {"ci": 1, "nightly": 10}
_EXAMPLES: Final = 100
_SHARED: Final = [HealthCheck.function_scoped_fixture]

# No law may fail because the machine is busy. Pytest loads the profile of its option later.
for _name, _times in _TIMES.items():
    settings.register_profile(_name, deadline=None, max_examples=_EXAMPLES * _times)
settings.load_profile("ci")


def law(examples: int = _EXAMPLES, *, shares_fixtures: bool = False) -> settings:
    """Settings of one law: so many examples in `ci`.

    `shares_fixtures`: its examples may see the fixtures of one test, since none changes them.
    """
    return settings(
        max_examples=examples * _TIMES[settings.get_current_profile_name()],
        suppress_health_check=_SHARED if shares_fixtures else (),
    )


def at_night(*values: object) -> object:
    """A case of parametrize for `make test-all`; another case of the same test stays in both."""
    return pytest.param(*values, marks=pytest.mark.nightly)
