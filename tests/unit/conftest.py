"""Settings of the property tests: none may fail because the machine is busy."""

from __future__ import annotations

from hypothesis import settings

settings.register_profile("unit", deadline=None)
settings.load_profile("unit")
