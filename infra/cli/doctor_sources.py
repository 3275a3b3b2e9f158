"""What `soperator doctor --sources` does: one stack on the real parts, before anything is paid."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from infra.cli import context
from stacks.errors import UserError

if TYPE_CHECKING:
    from infra.operate.conformance.come_up import Step

NOT_RUN = 69
"""Exit code where nothing failed and the folder lacks something."""


def steps(stack: str, sources: Path) -> Iterator[Step]:
    """The way of the stack from its releases to pods that could run, step by step."""
    from infra.local.kube import api_server
    from infra.operate.conformance.cluster import ApiServer
    from infra.operate.conformance.come_up import ComeUp
    from infra.operate.conformance.sources import Sources
    from infra.state import Ports
    from stacks.check import Level, check

    if not sources.is_dir():
        raise UserError(
            f"--sources: {sources} is no folder; docs/conformance.md says what is in it"
        )
    spec = context.spec(stack)
    if errors := [each for each in check(spec) if each.level is Level.ERROR]:
        raise UserError("\n".join(map(str, errors)))
    with tempfile.TemporaryDirectory(prefix="soperator-come-up-") as name:
        folder = Path(name)
        with api_server.running(folder, Ports.from_environ().come_up) as config:
            server = ApiServer(
                access=config.access(), certificate=config.certificate, key=config.key
            )
            yield from ComeUp(Sources(sources.resolve())).steps(spec, server, folder)


def verdict(stack: str, found: list[Step]) -> tuple[str, int]:
    """One line for a person, and the exit code."""
    stops = [obstacle for step in found for obstacle in step.obstacles]
    if stops:
        return f"{stack} would not come up: {stops[0]}", 1
    # A step may have looked at a part of what is its own.
    missing = {text for step in found for text in step.not_run}
    lacking = [step.name for step in found if step.not_run or step.outcome == "NOT RUN"]
    if lacking:
        where = f"{len(missing)} missing, in {', '.join(lacking)}"
        return f"{stack}: not known whether it would come up: {where}", NOT_RUN
    outside = len({text for step in found for text in step.outside})
    rest = f"; {outside} not looked at, which no folder can give" if outside else ""
    assumed = sum(len(step.assumed) for step in found)
    rest += f"; {assumed} assumed, which you make" if assumed else ""
    return f"{stack} would come up, as far as its charts, operator and pods decide{rest}", 0
