"""Metrics of each arm: answers, latencies, votes; kept over a restart in a file without any text.

An arm is a model in one mode: who sees a name votes otherwise than who does not.

Owns what a vote counts for and how sure a share of wins is. Which arm answers is page.py's.
"""

from __future__ import annotations

import json
import math
import os
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

from workloads.chat.conversation import Mode
from workloads.common.exit_codes import ConfigError
from workloads.common.log import log
from workloads.load.measure import percentile

Key = tuple[str, Mode]
"""Model and mode of an arm."""
_Z_95 = 1.959964
"""Two-sided 95 % of the normal distribution."""


@dataclass(slots=True, kw_only=True)
class Arm:
    """What one model did on this page in one mode."""

    num_answers: int = 0
    num_failed: int = 0
    ttfts_s: list[float] = field(default_factory=list)
    totals_s: list[float] = field(default_factory=list)
    tokens_per_s: list[float] = field(default_factory=list)
    good: int = 0
    bad: int = 0
    wins: int = 0
    losses: int = 0
    ties: int = 0


class Arms:
    """All arms of a page."""

    def __init__(self, path: Path | None = None) -> None:
        self.arms: dict[Key, Arm] = {}
        self._path = path
        if path is not None:
            self._read(path)

    def answered(self, answer: Mapping[str, Any], *, mode: Mode) -> None:
        """Count one answer; one that the user stopped counts nowhere."""
        if answer["finish"] == "stopped":
            return
        names = ("model", "ttft_s", "total_s", "tokens_per_s", "output_tokens", "finish")
        self._add({"kind": "answer", "mode": mode, **{name: answer[name] for name in names}})

    def voted(self, models: Sequence[str], vote: str, *, mode: Mode) -> None:
        """Count one vote on answers of one model, or of two."""
        self._add({"kind": "vote", "mode": mode, "models": list(models), "vote": vote})

    def _add(self, event: dict[str, Any]) -> None:
        self._count(event)
        if self._path is not None:
            stamped = {"at": datetime.now(UTC).isoformat(timespec="seconds"), **event}
            _append(self._path, json.dumps(stamped) + "\n")

    def _count(self, event: Mapping[str, Any]) -> None:
        if event["kind"] == "answer":
            arm = self._arm(event["model"], event["mode"])
            if event["finish"] == "failed":
                arm.num_failed += 1
                return
            arm.num_answers += 1
            for name, values in (
                ("ttft_s", arm.ttfts_s),
                ("total_s", arm.totals_s),
                ("tokens_per_s", arm.tokens_per_s),
            ):
                if event[name] is not None:
                    values.append(event[name])
            return
        arms = [self._arm(model, event["mode"]) for model in event["models"]]
        vote = event["vote"]
        if len(arms) == 1:
            arms[0].good += vote == "good"
            arms[0].bad += vote == "bad"
            return
        for arm, side in zip(arms, ("left", "right"), strict=True):
            arm.ties += vote == "tie"
            arm.wins += vote == side
            arm.losses += vote not in (side, "tie")

    def _arm(self, model: str, mode: Mode) -> Arm:
        if mode not in get_args(Mode):
            raise ValueError(f"mode {mode!r}")
        return self.arms.setdefault((model, mode), Arm())

    def _read(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            text = path.read_text(encoding="utf-8") if path.exists() else ""
            with path.open("a", encoding="utf-8"):
                pass
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(
                f"--record {path}: {error}; name a file that can be written"
            ) from error
        whole, newline, cut = text.rpartition("\n")
        if cut:
            log(f"--record {path}: its last line was cut off and is left out")
            os.truncate(path, len((whole + newline).encode()))
        for number, line in enumerate(whole.splitlines(), start=1):
            try:
                self._count(json.loads(line))
            except (ValueError, KeyError, TypeError) as error:
                raise ConfigError(
                    f"--record {path}: line {number} is no event of a chat page; remove that line, "
                    "or the file"
                ) from error


def _append(path: Path, line: str) -> None:
    """Write the line whole or not at all: a full disk must not take the answer from its reader."""
    try:
        num_bytes = path.stat().st_size
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(line)
        except OSError:
            os.truncate(path, num_bytes)
            raise
    except OSError as error:
        log(f"--record {path}: {error}; an answer or a vote is counted on this page only")


def table(arms: Mapping[Key, Arm]) -> list[list[str]]:
    """Return a row an arm, under HEADERS."""
    return [
        [
            model,
            _MODE_NAMES[mode],
            str(arm.num_answers),
            str(arm.num_failed),
            _quantile(arm.ttfts_s, 0.5),
            _quantile(arm.ttfts_s, 0.9),
            _quantile(arm.totals_s, 0.5),
            f"{statistics.median(arm.tokens_per_s):.1f}" if arm.tokens_per_s else "-",
            f"{arm.good} / {arm.bad}",
            f"{arm.wins} / {arm.losses} / {arm.ties}",
            _share(arm.wins, arm.wins + arm.losses),
        ]
        for (model, mode), arm in sorted(arms.items(), key=lambda each: each[0])
    ]


_MODE_NAMES: Mapping[Mode, str] = {
    "pair": "side by side",
    "one": "alone",
    "blind": "blind",
    "split": "A/B split",
}
HEADERS = (
    "Model", "Mode", "Answers", "Failed", "TTFT p50, s", "TTFT p90, s", "Total p50, s",
    "Tokens/s p50", "Good / bad", "Won / lost / tied", "Share won, 95 %"
)  # fmt: skip


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95 % interval of a share after `trials` > 0 (Wilson 1927, without correction)."""
    share, square = successes / trials, _Z_95**2
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    half = math.sqrt(share * (1 - share) / trials + square / (4 * trials**2))
    half *= _Z_95 / (1 + square / trials)
    return max(0.0, middle - half), min(1.0, middle + half)


def _share(wins: int, decided: int) -> str:
    if not decided:
        return "-"
    low, high = wilson(wins, decided)
    return f"{100 * wins / decided:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def _quantile(values: Sequence[float], share: float) -> str:
    return f"{percentile(sorted(values), share):.2f}" if values else "-"
