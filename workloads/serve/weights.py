"""What the settings name, checked: folders of weights, adapter and tokenizer, and model names.

Owns every refusal that needs no weights in memory. Does not load: load.py does, sharded.py puts a
checkpoint of the training loop together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from workloads.common.exit_codes import DataError
from workloads.common.log import log
from workloads.common.places import Places
from workloads.evaluate.adapter import check_base
from workloads.evaluate.header import read_object
from workloads.serve.config import AUTO, ServeConfig
from workloads.train.checkpoint_format import candidate
from workloads.train.run_folder import EVALUATED, resolve_adapter

ADAPTER_CONFIG, MODEL_CONFIG = "adapter_config.json", "config.json"
_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """What one server loads and how it is called."""

    model_dir: Path
    tokenizer_dir: Path
    adapter_dir: Path | None
    served_name: str
    tuned_name: str | None
    """None: no adapter is served beside the model."""
    own_dir: Path | None = None
    """What was written for this server alone, which removes it at its end."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the models in the API."""
        return (self.served_name, *([self.tuned_name] if self.tuned_name else []))

    @property
    def has_dora(self) -> bool:
        """Whether the adapter is DoRA's, which not every engine computes."""
        if self.adapter_dir is None:
            return False
        return read_object(self.adapter_dir / ADAPTER_CONFIG).get("use_dora") is True


def find_weights(config: ServeConfig, model: str, places: Places) -> Weights:
    """Return what `config` serves; a folder that is not what its key says is refused."""
    if config.merged is not None:
        folder = _existing(places.expand(config.merged, at="serve.merged"), "serve.merged")
        if (folder / ADAPTER_CONFIG).is_file():
            raise DataError(f"{folder}: an adapter, no merged model; name it with --adapter")
        return _whole(config, folder, model, places, at="serve.merged")
    if config.checkpoint is not None:
        at = "serve.checkpoint"
        folder = _existing(resolve_adapter(places.expand(config.checkpoint, at=at)), at)
        own_dir = None
        if (found := candidate(folder)) is not None:
            from workloads.serve.sharded import consolidated

            base_dir = places.model_dir(model)
            config = replace(config, served_name=config.served_name or base_dir.name)
            folder = own_dir = consolidated(found, model_dir=base_dir, places=places)
        if (folder / ADAPTER_CONFIG).is_file():
            weights = _beside_base(config, folder, places.model_dir(model))
        else:
            weights = _whole(config, folder, model, places, at=at)
        return replace(weights, own_dir=own_dir)
    if config.adapter == AUTO:
        base_dir = places.model_dir(model)
        return _named(config, base_dir, _evaluated(base_dir, places))
    if config.adapter is not None:
        at = "serve.adapter"
        folder = _existing(resolve_adapter(places.expand(config.adapter, at=at)), at)
        if not (folder / ADAPTER_CONFIG).is_file():
            hint = "; name it with --merged" if (folder / MODEL_CONFIG).is_file() else ""
            raise DataError(f"{folder}: has no {ADAPTER_CONFIG}, so it is no adapter{hint}")
        return _beside_base(config, folder, places.model_dir(model))
    return _named(config, places.model_dir(model), None)


def _evaluated(base_dir: Path, places: Places) -> Path | None:
    """Return the adapter that passed its evaluation last; None where there is none for the base."""
    pointer = places.path("chkpt") / EVALUATED if places.has("chkpt") else None
    if pointer is None or not pointer.is_file():
        log("serve.adapter: auto: no adapter has passed an evaluation here; the base alone")
        return None
    folder = resolve_adapter(pointer)
    try:
        if not (folder / ADAPTER_CONFIG).is_file():
            raise DataError(f"{folder} has no {ADAPTER_CONFIG}; serve.checkpoint serves it alone")
        check_base(base_dir, folder)
    except DataError as error:
        log(f"serve.adapter: auto: the base alone: {error}")
        return None
    log(f"serve.adapter: auto: {folder}, which passed its evaluation last")
    return folder


def _existing(folder: Path, at: str) -> Path:
    if not folder.is_dir():
        raise DataError(f"{at}: {folder} is no folder; run the train job first, or name another")
    return folder


def _beside_base(config: ServeConfig, adapter_dir: Path, base_dir: Path) -> Weights:
    check_base(base_dir, adapter_dir)
    return _named(config, base_dir, adapter_dir)


def _whole(config: ServeConfig, folder: Path, model: str, places: Places, *, at: str) -> Weights:
    if not (folder / MODEL_CONFIG).is_file() or not any(folder.glob("*.safetensors")):
        raise DataError(
            f"{at}: {folder}: has no {MODEL_CONFIG} with *.safetensors beside it; name a folder "
            "checkpoint-N of a run, its final/, or a whole model"
        )
    has_tokenizer = any((folder / name).is_file() for name in _TOKENIZER_FILES)
    return _named(
        config, folder, None, tokenizer_dir=folder if has_tokenizer else places.model_dir(model)
    )


def _named(
    config: ServeConfig,
    model_dir: Path,
    adapter_dir: Path | None,
    *,
    tokenizer_dir: Path | None = None,
) -> Weights:
    tokenizer_dir = tokenizer_dir or model_dir
    if not any((tokenizer_dir / name).is_file() for name in _TOKENIZER_FILES):
        raise DataError(
            f"{tokenizer_dir}: has no tokenizer ({' or '.join(_TOKENIZER_FILES)}); copy those of "
            "the base model there"
        )
    served = config.served_name or model_dir.name
    tuned = (config.tuned_name or f"{served}-tuned") if adapter_dir else None
    if served == tuned:
        raise DataError(f"serve.tuned_name: '{tuned}' is the base's name too; choose another")
    return Weights(
        model_dir=model_dir,
        tokenizer_dir=tokenizer_dir,
        adapter_dir=adapter_dir,
        served_name=served,
        tuned_name=tuned,
    )
