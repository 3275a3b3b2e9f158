"""Stacks as the recorder saw them: shipped ones once per run, changed ones on demand."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from stacks.load import KEY_FILE_VARIABLE, load_stack
from stacks.spec import StackSpec
from tests.components.recorder import Recorder, declare
from tests.conftest import PUBLIC_KEY

Deploy = Callable[[str | StackSpec], Recorder]


@pytest.fixture(scope="session")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], StackSpec]:
    """A shipped stack with the tests' public key."""
    key = tmp_path_factory.mktemp("key") / "id_ed25519.pub"
    key.write_text(PUBLIC_KEY + "\n")
    return lambda name: load_stack(name, environ={KEY_FILE_VARIABLE: str(key)})


@pytest.fixture(scope="session")
def deployed(load: Callable[[str], StackSpec], tmp_path_factory: pytest.TempPathFactory) -> Deploy:
    """What the program registers for a shipped stack, by name, or for a changed one."""
    build = tmp_path_factory.mktemp("build")

    @cache
    def shipped(name: str) -> Recorder:
        return declare(load(name), build)

    return lambda stack: shipped(stack) if isinstance(stack, str) else declare(stack, build)
