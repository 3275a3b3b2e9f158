"""Reading commands out of pages, and running those that a reader would see run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "docs" / "journeys"
_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_STATUS = re.compile(r"\s+# exit (\d+)$")
ANY = "..."
"""A line of a page that stands for any lines of output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One line after `$` of a console block, and the output that the page shows for it."""

    words: tuple[str, ...]
    status: int
    output: tuple[str, ...]


def blocks(text: str, language: str) -> list[str]:
    """Content of every fenced block of that language."""
    return [content for name, content in _FENCE.findall(text) if name == language]


def commands(text: str) -> Iterator[Command]:
    """What console blocks run, in the order of the page."""
    for block in blocks(text, "console"):
        line, *rest = block.split("\n$ ")
        for part in (line.removeprefix("$ "), *rest):
            first, *output = part.strip().splitlines()
            found = _STATUS.search(first)
            yield Command(
                words=tuple(shlex.split(_STATUS.sub("", first))),
                status=int(found[1]) if found else 0,
                output=tuple(output),
            )


def shown(expected: tuple[str, ...], printed: str) -> list[str]:
    """Lines that the page shows and the command did not print, in their order."""
    lines = [line.rstrip() for line in printed.splitlines()]
    missing: list[str] = []
    for line in expected:
        if line == ANY:
            continue
        if line in lines:
            lines = lines[lines.index(line) + 1 :]
        else:
            missing.append(line)
    return missing


def soperator_lines(text: str) -> list[list[str]]:
    """Words of every `soperator` command in bash and console blocks, without comments."""
    found: list[list[str]] = []
    for language in ("bash", "console"):
        for block in blocks(text, language):
            for line in block.splitlines():
                plain = line.removeprefix("$ ")
                if plain.startswith("soperator "):
                    found.append(shlex.split(plain, comments=True)[1:])
    return found
