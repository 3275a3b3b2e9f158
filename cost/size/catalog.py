"""Models by name: models.yaml, and config.json files of any other.

Owns names and look-up. `Qwen/Qwen3-14B` and `SmolLM2-135M-Instruct` are the rows Qwen3-14B and
SmolLM2-135M: a tuned model has the shape of its base.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final

import yaml

from cost.size.errors import SizeError
from cost.size.shape import ModelShape, shape_from_config
from stacks.text_file import read_text

MODELS_FILE: Final = Path(__file__).parent / "models.yaml"
_TUNED: Final = ("-Instruct", "-Chat", "-chat", "-Base", "-hf", "-v0.1")
_NOTES: Final = ("parameters", "source", "date")


@cache
def rows() -> Mapping[str, Mapping[str, Any]]:
    """Every row of models.yaml by name, with its source, date and number of weights."""
    return MappingProxyType(yaml.safe_load(MODELS_FILE.read_text(encoding="utf-8")))


def load_shape(model: str) -> ModelShape:
    """The shape of a model: a name of the catalog, a config.json, or a folder that holds one."""
    path = Path(model)
    if path.suffix == ".json" or path.is_dir():
        return _read(path / "config.json" if path.is_dir() else path)
    name = base_name(model)
    by_lower = {each.lower(): each for each in rows()}
    known = by_lower.get(name.lower())
    if known is None:
        near = get_close_matches(name.lower(), by_lower, n=1, cutoff=0.5)
        hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
        raise SizeError(
            f"model: {model!r} is not in the catalog{hint} "
            f"(has: {', '.join(rows())}; or give the path of a config.json)"
        )
    values = {key: value for key, value in rows()[known].items() if key not in _NOTES}
    return ModelShape(name=known, **values)


def base_name(model: str) -> str:
    """`Qwen/Qwen3-14B` and `SmolLM2-135M-Instruct` as Qwen3-14B and SmolLM2-135M."""
    name = PurePosixPath(model).name
    for ending in _TUNED * 2:
        name = name.removesuffix(ending)
    return name


def _read(path: Path) -> ModelShape:
    try:
        config: object = json.loads(read_text(path))
    except OSError as error:
        raise SizeError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise SizeError(f"{path}: not JSON: {error}") from error
    return shape_from_config(config, name=path.resolve().parent.name, at=str(path))
