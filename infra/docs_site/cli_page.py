"""The reference of the `soperator` command as a page, from the command itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer.main

from infra.cli.main import VERBS, app
from infra.docs_site.markdown import cell


def cli_page() -> str:
    """Every verb with its usage, arguments, options and defaults, as Markdown."""
    root: Any = typer.main.get_command(app)
    context = typer.Context(root, info_name="soperator")
    lines = [
        "# Commands",
        "",
        "Made from the command itself. Exit codes: 0 ok, 1 refused, 2 wrong usage, 130 stopped.",
        "",
        "| command | does |",
        "|---|---|",
        *(f"| [{name}](#soperator-{name}) | {cell(verb.help)} |" for name, verb in VERBS.items()),
    ]
    for name in VERBS:
        lines += _command(root.get_command(context, name), f"soperator {name}", depth=2)
    return "\n".join(lines) + "\n"


def _command(command: Any, name: str, *, depth: int) -> Iterator[str]:
    context = typer.Context(command, info_name=name)
    yield from ("", f"{'#' * depth} {name}", "", _paragraphs(command.help))
    inner = getattr(command, "commands", {})
    if not inner:
        usage = " ".join(command.collect_usage_pieces(context))
        yield from ("", f"    {name} {usage}")
    rows = [_row(each, context) for each in command.params if each.name != "help"]
    if rows:
        yield from ("", "| argument or option | means |", "|---|---|", *rows)
    for word, each in inner.items():
        yield from _command(each, f"{name} {word}", depth=depth + 1)


def _row(parameter: Any, context: typer.Context) -> str:
    """The line of `--help`: names with what they take, meaning with its default."""
    words, means = parameter.get_help_record(context)
    code = words.strip().replace("|", "\\|")
    return f"| `{code}` | {cell(means)} |"


def _paragraphs(text: str | None) -> str:
    """Paragraphs of a docstring, each on one line."""
    blocks = (text or "").strip().split("\n\n")
    return "\n\n".join(" ".join(block.split()) for block in blocks)
