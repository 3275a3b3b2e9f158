"""When requests come: a Poisson process by seed, or a trace file. No clocks and no network here."""

from __future__ import annotations

import csv
import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.common.exit_codes import DataError
from workloads.load.config import MOST_TOKENS

_KEYS = ("at_s", "prompt_tokens", "output_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """One request of an open loop."""

    at_s: float
    """Seconds after the start."""
    prompt_tokens: int | None = None
    """None: drawn."""
    output_tokens: int | None = None


def poisson(rate_per_s: float, count: int, seed: int) -> tuple[Arrival, ...]:
    """Return `count` arrivals whose gaps are independent and exponential, mean 1 / rate."""
    draw = random.Random(f"arrivals {seed} {rate_per_s!r}")
    at_s, found = 0.0, []
    for _ in range(count):
        at_s += draw.expovariate(rate_per_s)
        found.append(Arrival(at_s=at_s))
    return tuple(found)


def read_trace(path: Path) -> tuple[Arrival, ...]:
    """Return the arrivals of a .csv or .jsonl file in the order of time; every bad row is named."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"load.open_loop.trace: {path} cannot be read: {error}") from error
    problems: list[str] = []
    found: list[Arrival] = []
    for number, row in _rows(path, text, problems):
        arrival = _arrival(row, f"{path}:{number}", problems)
        if arrival is not None:
            found.append(arrival)
    if problems:
        raise DataError("; ".join(problems[:5]) + (" ..." if len(problems) > 5 else ""))
    if len(found) < 2:
        raise DataError(f"{path}: {len(found)} arrivals; a trace needs 2 or more")
    found.sort(key=lambda each: each.at_s)
    return tuple(found)


def _rows(path: Path, text: str, problems: list[str]) -> list[tuple[int, Mapping[str, Any]]]:
    rows: list[tuple[int, Mapping[str, Any]]] = []
    if path.suffix == ".csv":
        reader = csv.DictReader(text.splitlines())
        unknown = [name for name in reader.fieldnames or () if name not in _KEYS]
        if unknown or "at_s" not in (reader.fieldnames or ()):
            raise DataError(
                f"{path}:1: got the columns {', '.join(map(str, reader.fieldnames or ['none']))}; "
                f"allowed: {', '.join(_KEYS)}, at_s is needed"
            )
        for number, row in enumerate(reader, 2):
            if None in row:
                problems.append(f"{path}:{number}: more values than columns")
                continue
            rows.append((number, {key: _number(value) for key, value in row.items() if value}))
        return rows
    if path.suffix != ".jsonl":
        raise DataError(f"{path}: a trace is a .csv or a .jsonl file")
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError:
            row = None
        if not isinstance(row, dict) or set(row) - set(_KEYS):
            problems.append(f"{path}:{number}: expected an object of {', '.join(_KEYS)}")
            continue
        rows.append((number, row))
    return rows


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def _arrival(row: Mapping[str, Any], at: str, problems: list[str]) -> Arrival | None:
    at_s = row.get("at_s")
    before = len(problems)
    if isinstance(at_s, bool) or not isinstance(at_s, (int, float)) or not 0 <= at_s < math.inf:
        problems.append(f"{at}: at_s: got {at_s!r}, expected seconds of 0 or more")
    for name in _KEYS[1:]:
        value = row.get(name)
        if value is not None and (
            isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST_TOKENS
        ):
            problems.append(f"{at}: {name}: got {value!r}, expected 1 to {MOST_TOKENS}")
    if len(problems) > before or not isinstance(at_s, (int, float)):
        return None
    return Arrival(
        at_s=float(at_s),
        prompt_tokens=row.get("prompt_tokens"),
        output_tokens=row.get("output_tokens"),
    )
