"""Which models the servers list, and which of them is another one's tuned half.

Owns names on the page: a name that two servers share is told apart by the server's address.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from workloads.common.exit_codes import ConfigError

_TUNED_ENDING = "-tuned"
"""What workloads.serve adds to the base's name unless serve.tuned_name says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model that can be asked."""

    label: str
    """Its name on the page, unique there."""
    name: str
    """Its name in the API."""
    url: str
    """Its server, up to /v1."""
    base: str | None = None
    """Label of the model whose adapter it is; None: a whole model."""


def server_models(url: str, body: Any) -> list[Model]:
    """Return the models of one answer to GET /v1/models; ConfigError for anything else.

    A card names its base as `parent`, as vLLM's do; where none does, by the ending of its name.
    """
    try:
        cards: list[Mapping[str, Any]] = body["data"]
        names = [str(card["id"]) for card in cards]
        parents = [card.get("parent") for card in cards]
    except (KeyError, TypeError, AttributeError):
        names, parents = [], []
    if not names:
        raise ConfigError(
            f"--url {url}: answers no list of models; give an OpenAI-compatible server up to /v1"
        )
    return [
        Model(label=name, name=name, url=url, base=_base(name, parent, names))
        for name, parent in zip(names, parents, strict=True)
    ]


def catalog(found: Sequence[Model]) -> tuple[Model, ...]:
    """Return the models of all servers with labels that are unique."""
    counts = Counter(each.name for each in found)

    def label(name: str, url: str) -> str:
        return name if counts[name] == 1 else f"{name} at {urlsplit(url).netloc}"

    labelled = [
        replace(
            each,
            label=label(each.name, each.url),
            base=None if each.base is None else label(each.base, each.url),
        )
        for each in found
    ]
    repeated = [
        name for name, count in Counter(each.label for each in labelled).items() if count > 1
    ]
    if repeated:
        raise ConfigError(f"--url: {repeated[0]} comes twice; give each server once")
    return tuple(labelled)


def by_label(models: Sequence[Model], label: str) -> Model:
    """Return the model with this label."""
    return next(each for each in models if each.label == label)


def partner(models: Sequence[Model], label: str) -> Model | None:
    """Return the tuned half of a base, or the base of a tuned one; None where there is none."""
    chosen = by_label(models, label)
    if chosen.base is not None:
        return by_label(models, chosen.base)
    return next((each for each in models if each.base == label), None)


def default_pair(models: Sequence[Model]) -> tuple[str, str]:
    """Return what stands left and right at first: base and tuned where there are such."""
    for each in models:
        if each.base is not None:
            return each.base, each.label
    return models[0].label, models[min(1, len(models) - 1)].label


def _base(name: str, parent: Any, names: Sequence[str]) -> str | None:
    if isinstance(parent, str) and parent in names and parent != name:
        return parent
    ending = name.removesuffix(_TUNED_ENDING)
    return ending if ending != name and ending in names else None
