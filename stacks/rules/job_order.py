"""Rules of the order of jobs: `jobs[].after`, which makes pipelines."""

from __future__ import annotations

from collections.abc import Mapping

from stacks.errors import Findings
from stacks.rules.naming import check_unique
from stacks.spec import StackSpec


def check_order(spec: StackSpec, findings: Findings) -> None:
    """What a job needs exists, ends, and does not need the job itself."""
    after = {job.name: job.after for job in spec.jobs}
    fewest = {job.name: job.least_nodes or job.nodes for job in spec.jobs}
    servers = {job.name for job in spec.jobs if job.is_server}
    for index, job in enumerate(spec.jobs):
        for name in job.after:
            other = fewest.get(name, 0)
            if job.least_nodes is not None and other > job.least_nodes:
                findings.warn(
                    f"jobs[{index}].after",
                    f"'{job.name}' starts with {job.least_nodes} nodes, but waits for '{name}', "
                    f"which waits for {other}; give '{name}' least_nodes: {job.least_nodes}",
                    rule="jobs.after-nodes",
                )
            if name not in after:
                findings.error(
                    f"jobs[{index}].after",
                    f"'{name}' is not a job (has: {', '.join(after)})",
                    rule="jobs.after",
                )
        check_unique(
            job.after,
            f"jobs[{index}].after",
            findings,
            rule="jobs.after-twice",
            advice="name each once",
        )
        for name in sorted(servers.intersection(job.after)):
            findings.error(
                f"jobs[{index}].after",
                f"'{name}' serves until it is stopped, so '{job.name}' would wait for ever; "
                "leave it out of `after`",
                rule="jobs.after-server",
            )
        circle = _circle(job.name, after)
        if circle:
            findings.error(
                f"jobs[{index}].after",
                f"{' -> '.join(circle)} is a circle; no job could start",
                rule="jobs.circle",
            )


def _circle(start: str, after: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """The shortest way from the job back to itself by what it needs; empty: there is none."""
    ways: list[tuple[str, ...]] = [(start,)]
    seen: set[str] = set()
    for way in ways:
        for name in after.get(way[-1], ()):
            if name == start:
                return (*way, name)
            if name not in seen:
                seen.add(name)
                ways.append((*way, name))
    return ()
