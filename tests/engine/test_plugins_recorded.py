"""The stand-in for pulumi-command against the official plugin, case by case.

Each case gives one line. `tests/conformance/plugins.tsv` has the official plugin's, and beside it
the stand-in's where that differs, with the effect: no difference is unknown, and none is listed
that is gone.
The official side needs SOPERATOR_PLUGINS; the stand-in is held against its recorded lines always.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.conformance import command_cases
from tests.conformance.command_cases import World, started
from tests.conformance.plugin import RefusedError
from tests.conformance.recorded import OFFICIAL, SIDES, check, program_of
from tests.engine.sshd import running_sshd

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module", params=SIDES)
def world(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[World]:
    """Two servers, a folder and one plugin, official or stand-in."""
    program = program_of("command", official=request.param == OFFICIAL)
    folders = [tmp_path_factory.mktemp(name) for name in ("taking", "strict", "files")]
    with (
        running_sshd(folders[0]) as sshd,
        running_sshd(folders[1], accept_env=False) as strict,
        started(World(program, folders[2], sshd, strict)) as running,
    ):
        yield running


@pytest.mark.parametrize("case", command_cases.CASES, ids=lambda case: case.__name__)
def test_a_case_is_as_recorded(
    world: World, case: Callable[[World], str], request: pytest.FixtureRequest
) -> None:
    plugin = world.plugin
    try:
        answer = case(world)
    except RefusedError as error:  # an input that the stand-in does not serve
        answer = f"refused: {error}"
    finally:
        world.plugin = plugin  # a case may have had one of its own
        world.plugin.take_lines()
    side = request.node.callspec.params["world"]
    check("command", case.__name__, world.tidy(answer), official=side == OFFICIAL)
