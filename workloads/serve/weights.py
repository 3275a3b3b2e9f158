"""What the settings name, looked at before it is loaded: weights and the key.

A checkpoint of a run is put together first: its slices are read through torch DCP, whatever number
of ranks wrote them, and written as `final/` would be; the optimizer's are not read.

A key never stands in an argument, a log or a file that others can read.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import socket
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from workloads.common import atomic
from workloads.common.exit_codes import ConfigError, DataError
from workloads.common.log import log
from workloads.common.models import torch_dtype
from workloads.common.places import Places
from workloads.common.record import job_id
from workloads.data.manifest import read_object
from workloads.evaluate.subject import check_base
from workloads.recipes.reader import parse
from workloads.recipes.serve import AUTO, ServeConfig
from workloads.recipes.train import TrainConfig
from workloads.train.run_folder import (
    CONFIG,
    EVALUATED,
    FULL_WEIGHTS,
    Candidate,
    candidate,
    resolve_adapter,
)

if TYPE_CHECKING:
    import torch

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
        return (self.served_name, *([self.tuned_name] if self.tuned_name else []))


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
            base_dir = places.model_dir(model)
            config = replace(config, served_name=config.served_name or base_dir.name)
            folder = own_dir = consolidated(found, model_dir=base_dir, places=places)
        try:
            if (folder / ADAPTER_CONFIG).is_file():
                weights = _beside_base(config, folder, places.model_dir(model))
            else:
                weights = _whole(config, folder, model, places, at=at)
        except Exception:
            if own_dir is not None:  # no server comes up that removes it at its end
                shutil.rmtree(own_dir, ignore_errors=True)
            raise
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
        _check_adapter(base_dir, folder)
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
    _check_adapter(base_dir, adapter_dir)
    return _named(config, base_dir, adapter_dir)


def _check_adapter(base_dir: Path, adapter_dir: Path) -> None:
    check_base(base_dir, adapter_dir)
    if read_object(adapter_dir / ADAPTER_CONFIG).get("use_dora") is True:
        raise DataError(
            f"{adapter_dir}: an adapter of DoRA (use_dora), which answers in no batch with its "
            "base; merge it (train.export_merged) and name that by serve.merged"
        )


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


_PREFIX = "model."


def consolidated(found: Candidate, *, model_dir: Path, places: Places) -> Path:
    """Return a new folder with the weights of a checkpoint: an adapter, or a whole model."""
    if problem := found.problem():
        raise DataError(f"{found.path}: {problem}; name another checkpoint, or the run's final/")
    config, weights = _settings(found, places), _weights(found.path)
    if config.has_adapters and config.lora.dora:
        raise DataError(
            f"{found.path}: of a run with DoRA (lora.dora), which answers in no batch with its "
            "base; end the run with train.export_merged: true and name its merged/ by serve.merged"
        )
    target = places.path("results") / job_id() / f"served-{found.path.name}"
    with atomic.new_directory(target, replace=True) as partial:
        if config.has_adapters:
            import torch

            from workloads.train.model import build_model

            model = build_model(model_dir, config, device=torch.device("cpu"), empty=True)
            # A model without weights does not know which folder it is of; the adapter must say it.
            model.peft_config["default"].base_model_name_or_path = str(model_dir)
            model.save_pretrained(partial, state_dict=weights)
        else:
            from safetensors.torch import save_file

            dtype = torch_dtype(config.dtype)
            whole = {name: weight.to(dtype).contiguous() for name, weight in weights.items()}
            save_file(whole, partial / FULL_WEIGHTS, metadata={"format": "pt"})
            shutil.copyfile(found.path / CONFIG, partial / CONFIG)
    log(f"weights of {found.path} put together in {target}")
    return target


def _settings(found: Candidate, places: Places) -> TrainConfig:
    """Return the train settings of the run; a second run of one job id is called `12-2`."""
    run = found.path.parent.name
    for name in dict.fromkeys((run, run.rpartition("-")[0] or run)):
        path = places.path("results") / name / "config.json"
        if path.is_file():
            try:
                return parse(TrainConfig, read_object(path).get("train"), at=f"{path}: train")
            except ConfigError as error:
                raise DataError(f"{error}; the run was made by another version") from error
    raise DataError(
        f"{found.path}: the settings of its run are not in "
        f"{places.path('results') / run}/config.json; pull them there, or serve the run's final/"
    )


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return every trained weight whole, in host memory, by its name in the model."""
    import torch
    from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

    from workloads.train.checkpoint import read

    def places(metadata: Metadata) -> dict[str, Any]:
        return {
            key: torch.empty(entry.size, dtype=entry.properties.dtype)
            for key, entry in metadata.state_dict_metadata.items()
            if key.startswith(_PREFIX) and isinstance(entry, TensorStorageMetadata)
        }

    values = read(folder, places, no_dist=True)
    return {key.removeprefix(_PREFIX): value for key, value in values.items()}


def forget_cached(folder: Path) -> None:
    """Ask the kernel to drop its cached pages of the files of `folder`: the next read is cold."""
    for path in folder.iterdir():
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


KEY_VARIABLE = "SOPERATOR_SERVE_API_KEY"
ENDPOINT_FILE, OWN_KEY_FILE = "endpoint.json", "api_key"
_MIN_KEY_LENGTH = 16


def api_key(key_file: Path, environment: Mapping[str, str] | None = None) -> str:
    """Return the key that requests must bring; loopback is every user's of the machine."""
    environment = os.environ if environment is None else environment
    key = environment.get(KEY_VARIABLE) or _key_in_file(key_file)
    if len(key) < _MIN_KEY_LENGTH or not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"the API key has {len(key)} characters; use at least {_MIN_KEY_LENGTH}, printable "
            "ASCII (openssl rand -hex 32)"
        )
    return key


def write_endpoint(
    results_dir: Path, config: ServeConfig, port: int, weights: Weights, key_file: Path
) -> Path:
    """Write endpoint.json: requests are taken from now on."""
    path = results_dir / ENDPOINT_FILE
    # Of a host that means every interface, the name that other nodes reach.
    every = config.host in ("0.0.0.0", "::")
    is_given = bool(os.environ.get(KEY_VARIABLE))
    values = {
        "host": socket.gethostname() if every else config.host,
        "port": port,
        "models": list(weights.names),
        "adapter_dir": None if weights.adapter_dir is None else str(weights.adapter_dir),
        "needs_key": True,
        # The variable wins over the file, whose key would then open nothing.
        "api_key_file": None if is_given else str(key_file),
        "restarts": int(os.environ.get("SLURM_RESTART_COUNT") or 0),
    }
    atomic.write_text(path, json.dumps(values, indent=2) + "\n")
    return path


def _key_in_file(path: Path) -> str:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        pass
    except OSError as error:
        raise ConfigError(f"serve.api_key_file: {path} cannot be made: {error}") from error
    else:
        with os.fdopen(descriptor, "w", encoding="ascii") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
    if whose := atomic.foreign(path):
        raise ConfigError(f"serve.api_key_file: {path}: {whose}")
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        raise ConfigError(
            f"serve.api_key_file: {path} has mode {mode:04o}, others can read it; chmod 600 it and "
            "put a new key in"
        )
    key = path.read_text(encoding="ascii").strip()
    if not key:
        raise ConfigError(f"serve.api_key_file: {path} is empty; remove it or put a key in")
    return key
