"""The embedded cloud of this machine.

Owns what people type and read; infra/local/cloud.py starts and stops. `status` exits 1 when a part
is down.
"""

from __future__ import annotations

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from infra.cli.output import Format, never_silent, note, print_json, print_table


class Fault(StrEnum):
    """What can go wrong on purpose."""

    QUOTA = "quota"
    LATENCY = "latency"
    OPERATION = "operation"
    UNAVAILABLE = "unavailable"
    LOST_ANSWER = "lost-answer"
    EXPIRED_TOKEN = "expired-token"  # noqa: S105
    KILL = "kill"
    CLEAR = "clear"


def up() -> None:
    """Start every part that does not run; a second run changes nothing."""
    import time

    from infra.local import cloud

    started = time.monotonic()
    embedded = cloud.Cloud.from_environ()
    with never_silent("local up"):
        cloud.up(embedded)
    note(f"local cloud: ready after {time.monotonic() - started:.1f} s, in {embedded.state.local}")
    note(cloud.slurm_setup(embedded).describe())


def down(
    purge: Annotated[
        bool, typer.Option("--purge", help="Also remove what the parts stored.")
    ] = False,
) -> None:
    """Stop every part, job and SSH session, and the emulator of previews; what is stored stays."""
    from infra.local import cloud, offline

    embedded = cloud.Cloud.from_environ()
    with never_silent("local down"):
        cloud.down(embedded, purge=purge, say=note)
        offline.stop(embedded.state)
    note(f"local cloud: stopped{' and removed' if purge else ''}, {embedded.state.local}")


def status(
    output: Annotated[Format, typer.Option("--format", help="How to print.")] = Format.TABLE,
) -> None:
    """List the parts; exit 1 if one is down."""
    from infra.local import cloud

    embedded = cloud.Cloud.from_environ()
    parts = cloud.parts(embedded)
    if output is Format.JSON:
        print_json([asdict(part) for part in parts])
    else:
        rows = [
            (part.name, part.pid, part.port, "yes" if part.ready else "no", part.log)
            for part in parts
        ]
        print_table(("part", "pid", "port", "ready", "log"), rows)
        note(cloud.slurm_setup(embedded).describe())
    if not all(part.ready for part in parts):
        raise typer.Exit(1)


def fault(
    kind: Annotated[Fault, typer.Argument(help="What goes wrong.")],
    part: Annotated[str, typer.Argument(help="For `kill`: a part of `status`.")] = "",
    method: Annotated[
        str, typer.Option(help="Regular expression on the API's full method name.")
    ] = "Create$",
    times: Annotated[int, typer.Option(min=1, help="How many calls it meets.")] = 1,
    seconds: Annotated[
        float, typer.Option(min=0, help="For `latency`: seconds of every operation.")
    ] = 5.0,
) -> None:
    """Plant a fault in the Nebius API, or kill -9 a part."""
    from infra.local import cloud, faults

    embedded = cloud.Cloud.from_environ()
    if kind is Fault.KILL:
        faults.kill(embedded, part)
        note(f"local cloud: killed {part}; the reconciler starts it again")
    elif kind is Fault.LATENCY:
        faults.set_latency(embedded, seconds)
        note(f"local cloud: every operation of the Nebius API takes {seconds:g} s now")
    elif kind is Fault.CLEAR:
        faults.clear(embedded)
        note("local cloud: no fault is planted any more")
    else:
        faults.plant(embedded, kind.value, method, times)
        note(f"local cloud: {kind.value} for the next {times} call(s) that match {method!r}")
