"""A step that could not be looked at is told by its own name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from infra.operate.conformance import come_up
from infra.operate.conformance.cluster import OperatorError


@pytest.mark.parametrize("count", [2, 3, 5])
def test_the_step_at_which_the_operator_ended_is_the_one_with_the_obstacle(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, count: int
) -> None:
    def until_it_ended(*_: object) -> Iterator[come_up.Step]:
        for name in come_up.STEPS[:count]:
            yield come_up.Step(name=name, counted="")
        raise OperatorError("it ended with 1")

    monkeypatch.setattr(come_up.ComeUp, "_steps", until_it_ended)
    nothing: Any = None
    found = list(come_up.ComeUp(nothing).steps(nothing, nothing, tmp_path))
    assert [each.name for each in found] == list(come_up.STEPS)
    assert [each.name for each in found if each.obstacles] == [come_up.STEPS[count]]
    assert all(each.not_run for each in found[count + 1 :])
