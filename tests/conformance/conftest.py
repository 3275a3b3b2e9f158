"""Stacks on the real parts: each comes up once a session, on an API server of its own.

SOPERATOR_SOURCES names the folder with parts of upstream; what it lacks skips, by name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import pytest

from infra.local.kube import api_server
from infra.local.process import LocalError
from infra.operate.conformance.cluster import ApiServer
from infra.operate.conformance.come_up import ComeUp, Step
from infra.operate.conformance.sources import Helm, NotRunError, OutsideError, Sources
from stacks.load import KEY_FILE_VARIABLE, STACKS_DIR, load_stack, stack_names
from stacks.spec import StackSpec
from tests.conftest import PUBLIC_KEY
from tests.ports import free_ports

HERE = Path(__file__).parent
SOURCES = "SOPERATOR_SOURCES"
OWN = stack_names(HERE)
STACKS = (*stack_names(), *OWN)
NEXT = "5.0.0"
OUTSIDE = "outside: "
"""Begins the reason of a skip that no folder can take away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """One stack as far as it came."""

    way: ComeUp
    steps: dict[str, Step]


@pytest.fixture(scope="session")
def sources() -> Sources:
    """The folder that the user names."""
    folder = os.environ.get(SOURCES)
    if not folder or not Path(folder).is_dir():
        pytest.skip(f"no folder with parts of upstream: make conformance SOURCES={folder or 'F'}")
    return Sources(Path(folder).resolve())


@pytest.fixture(scope="session")
def helm(sources: Sources, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """The real Helm."""
    try:
        return Helm(sources.program("helm"), tmp_path_factory.mktemp("charts"))
    except NotRunError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def spec(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], StackSpec]:
    """A shipped stack, or one of this folder, with the tests' public key."""
    key = tmp_path_factory.mktemp("key") / "id_ed25519.pub"
    key.write_text(PUBLIC_KEY + "\n")
    environ = {KEY_FILE_VARIABLE: str(key)}
    return lambda name: load_stack(name, HERE if name in OWN else STACKS_DIR, environ=environ)


@pytest.fixture(scope="session")
def came_up(
    sources: Sources,
    spec: Callable[[str], StackSpec],
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[..., Up]:
    """`came_up("h100-prod")`: every step of the stack, of Soperator 4.1.7 or another version."""

    @cache
    def bring(name: str, version: str = "") -> Up:
        declared = spec(name)
        way = ComeUp(sources)
        if version:
            cluster = replace(declared.cluster, soperator_version=version)
            declared = replace(declared, cluster=cluster)
        folder = tmp_path_factory.mktemp(f"{name}{version}")
        (api,) = free_ports(1)
        try:
            with api_server.running(folder, api) as config:
                server = ApiServer(
                    access=config.access(), certificate=config.certificate, key=config.key
                )
                return Up(
                    way=way, steps={each.name: each for each in way.steps(declared, server, folder)}
                )
        except LocalError as error:
            raise NotRunError(str(error)) from error

    return bring


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item):
    """As of the test itself: a fixture may be what finds that a part is missing."""
    return (yield from pytest_runtest_call(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item):
    """A part of upstream that is missing is no failure, and no success."""
    try:
        return (yield)
    except OutsideError as error:
        pytest.skip(f"{OUTSIDE}{error}")
    except NotRunError as error:
        pytest.skip(str(error))


def held(step: Step, record: Callable[[str, object], None]) -> None:
    """What the step looked at holds; what it could not look at is said, and its part not run."""
    record("counted", step.counted)
    for text in step.not_run:
        record("not run", text)
    for text in step.outside:
        record("outside", text)
    assert not step.obstacles, "\n".join(map(str, step.obstacles))
    if not step.counted:
        raise NotRunError("; ".join(step.not_run) or f"{step.name}: nothing to look at")
