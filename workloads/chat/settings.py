"""What the page's controls say, checked before anything is sent."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Final, cast, get_args

from workloads.chat.client import Model, default_pair
from workloads.chat.conversation import Mode

MODES: Final[Mapping[str, Mode]] = {
    "Side by side": "pair",
    "One model": "one",
    "Blind pair": "blind",
    "A/B split": "split",
}
"""What the page calls each mode."""
HIDING: Final[frozenset[Mode]] = frozenset({"blind", "split"})
"""Modes that show who answered after the vote only."""


class SettingsError(Exception):
    """A control that cannot be sent as it stands; the message says what to change."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The controls of one question."""

    mode: Mode
    left: str
    """Label of the model that answers alone, or left; arm A of a split."""
    right: str
    """Arm B of a split."""
    share_percent: float = 50.0
    """Of new conversations that arm B answers."""
    system: str = ""
    temperature: float = 0.7
    max_tokens: int | None = 512
    """None: the control is empty, which is refused."""
    tools: str = ""
    """JSON list of OpenAI's tools, or of their functions alone."""

    def request(self) -> dict[str, Any]:
        """Return what of a request follows from the controls."""
        tools = parse_tools(self.tools)
        if self.max_tokens is None or self.max_tokens < 1:
            raise SettingsError("Tokens of an answer, at most: a whole number from 1 is needed")
        return {
            "temperature": self.temperature,
            "max_tokens": self.max_tokens,
            **({"tools": tools} if tools else {}),
        }


def default(models: Sequence[Model]) -> Settings:
    """Return what a new page shows: base and tuned side by side, one model alone."""
    left, right = default_pair(models)
    return Settings(mode="one" if left == right else "pair", left=left, right=right)


def restored(value: Any, models: Sequence[Model]) -> Settings:
    """Return kept controls; the defaults where they are not ours or a model is gone."""
    names = {each.name for each in fields(Settings)}
    labels = {each.label for each in models}
    if not isinstance(value, dict) or set(value) != names:
        return default(models)
    if not {value["left"], value["right"]} <= labels or value["mode"] not in get_args(Mode):
        return default(models)
    kept = Settings(**value)
    # A server that lost its adapter has nothing left to put beside its model.
    return kept if len(models) > 1 else replace(kept, mode="one")


def parse_tools(text: str) -> list[dict[str, Any]]:
    """Return the tools in OpenAI's form; SettingsError names what is wrong with which."""
    if not text.strip():
        return []
    try:
        values = json.loads(text)
    except ValueError as error:
        raise SettingsError(f"Tools are no JSON: {error}") from error
    if not isinstance(values, list):
        raise SettingsError("Tools: a list is needed, [ ... ]")
    tools: list[dict[str, Any]] = []
    for index, value in enumerate(values):
        function = value.get("function", value) if isinstance(value, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise SettingsError(f'Tools[{index}]: needs a name, such as {{"name": "get_weather"}}')
        tools.append({"type": "function", "function": cast("dict[str, Any]", function)})
    return tools
