"""Property tests: against how many examples a law is held, by the profile of Hypothesis.

`ci` is that of every run; `nightly`, that of `make test-all`, takes ten times as many.
"""

from __future__ import annotations

from typing import Final

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
