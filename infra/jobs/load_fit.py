"""Whether the longest chat of a load test fits a server of the same stack: read from their recipes.

Owns the comparison; the workload refuses the same when it meets the server, hours later.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cost.size.errors import SizeError
from infra.jobs.recipes import recipe_of
from infra.render.archive import recipe_file
from stacks.slurm_spec import JobSpec
from stacks.spec import StackSpec

DEFAULT_CONTEXT_TOKENS: Final = 8192
"""Of a serve recipe without serve.limits.context_tokens: workloads/serve/config.py."""
DEFAULT_SPREAD: Final = 4
"""Longest drawn length over the mean where a recipe names none: workloads/load/config.py."""


def load_fit_problems(root: Path, spec: StackSpec) -> list[str]:
    """A line for each load test whose longest chat no server of the stack takes."""
    servers = {
        job.name: _context_tokens(recipe) for job, recipe in _recipes(root, spec) if job.is_server
    }
    if not servers:
        return []
    widest = max(servers, key=lambda name: servers[name])
    problems: list[str] = []
    for job, recipe in _recipes(root, spec):
        if not job.is_load_test:
            continue
        prompt, output = _longest_chat(recipe, spec)
        if prompt + output > servers[widest]:
            problems.append(
                f"{spec.name}: jobs.{job.name}.recipe: '{job.recipe}' asks for chats of up to "
                f"{prompt} + {output} tokens, but job '{widest}' takes {servers[widest]} in all; "
                "raise serve.limits.context_tokens of its recipe, or lower the lengths of the load "
                "test (without them: chat.context_tokens and chat.output_tokens)"
            )
    return problems


def _recipes(root: Path, spec: StackSpec) -> Iterator[tuple[JobSpec, Mapping[str, Any]]]:
    """Servers and load tests with their recipes; one that cannot be read is told elsewhere."""
    for job in spec.jobs:
        path = recipe_file(root, job.recipe)
        if path is None or not (job.is_server or job.is_load_test):
            continue
        try:
            files = {path.relative_to(root).as_posix(): path.read_bytes()}
            yield job, recipe_of(job, files)
        except SizeError:
            continue


def _context_tokens(recipe: Mapping[str, Any]) -> int:
    found = _section(_section(recipe, "serve"), "limits").get("context_tokens")
    return found if isinstance(found, int) else DEFAULT_CONTEXT_TOKENS


def _longest_chat(recipe: Mapping[str, Any], spec: StackSpec) -> tuple[int, int]:
    load, chat = _section(recipe, "load"), spec.chat
    if _section(load, "prompts").get("rows"):
        prompt = 0  # rows have their own lengths, known where the job runs
    else:
        prompt = _longest(_section(load, "prompt_tokens"), chat.context_tokens)
    answer = max(1, round(chat.output_tokens / chat.turns))
    return prompt, _longest(_section(load, "output_tokens"), answer)


def _longest(lengths: Mapping[str, Any], mean: int) -> int:
    mean = lengths.get("mean") or mean
    most = lengths.get("most") or DEFAULT_SPREAD * mean
    return min(mean, most) if lengths.get("distribution", "fixed") == "fixed" else most


def _section(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = of.get(name)
    return found if isinstance(found, dict) else {}
