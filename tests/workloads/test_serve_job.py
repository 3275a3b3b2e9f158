"""The serving job: its flags, what it refuses before it loads, its start and its end."""

from __future__ import annotations

import http.server
import importlib
import json
import os
import pwd
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import openai
import pytest
from starlette.applications import Starlette

from tests import another_user
from tests.another_user import Neighbour
from tests.ports import free_ports
from tests.workloads.conftest import template
from workloads.common import places as places_module
from workloads.common.exit_codes import ConfigError, DataError, ExitCode, WorkloadError
from workloads.common.places import WEIGHTS, Places, filesystem_of, stage
from workloads.job import run_job
from workloads.recipes import load_recipe
from workloads.recipes.reader import parse
from workloads.recipes.serve import ServeConfig
from workloads.serve import server
from workloads.serve import weights as weights_module
from workloads.serve.__main__ import main, recipe_arguments
from workloads.serve.app import VllmGuard
from workloads.serve.metrics import ServeMetrics, Watch
from workloads.serve.weights import Weights, find_weights
from workloads.train.run_folder import EVALUATED, point

READY_S = 200.0
CHECKOUT = Path(__file__).parents[2]

ALONE = Weights(
    model_dir=Path("/m"),
    tokenizer_dir=Path("/m"),
    adapter_dir=None,
    served_name="a",
    tuned_name=None,
)


def adapter(folder: Path, base: str = "tiny", *, rank: int = 16) -> Path:
    """A folder that names its base as peft does."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(
        json.dumps({"base_model_name_or_path": f"/mnt/model/{base}", "r": rank})
    )
    return folder


def serve_config(**values: Any) -> ServeConfig:
    return parse(ServeConfig, values, at="serve")


@pytest.mark.parametrize("values", [{"base_model_name_or_path": None}, []])
def test_an_adapter_that_names_no_base_is_left_to_the_job(tmp_path: Path, values: Any) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps(values))
    words = recipe_arguments(["--adapter", str(tmp_path)])
    assert words[3::2] == [f'serve.adapter="{tmp_path}"']


@pytest.mark.feature("S000-54")
def test_flags_are_short_for_keys_of_the_recipe(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "final", base="Qwen3-14B")
    words = recipe_arguments(
        ["--finetune", str(folder), "--port", "0", "--no-thinking", "--set", "serve.port=9"]
    )
    assert words[:2] == ["--recipe", "smollm2_135m_serve_cpu"]
    sets = words[3::2]
    assert sets == [
        'model="Qwen3-14B"',
        f'serve.adapter="{folder}"',
        "serve.port=0",
        "serve.thinking=false",
        "serve.port=9",
    ]
    recipe = load_recipe(words[1], sets)
    assert recipe.serve is not None
    assert (recipe.model, recipe.serve.port, recipe.serve.thinking) == ("Qwen3-14B", 9, False)
    assert recipe_arguments(["--base", "SmolLM2-135M-Instruct", "--recipe", "r"]) == [
        "--recipe",
        "r",
        "--set",
        'model="SmolLM2-135M-Instruct"',
        "--set",
        "serve.adapter=null",
    ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"adapter": "/a", "merged": "/b"}, "adapter and merged: at most one"),
        ({"port": 70000}, "port: got 70000, expected 0 to 65535"),
        ({"limits": {"max_concurrency": 0}}, "max_concurrency: got 0, expected >= 1"),
        ({"limits": {"context": 1}}, "limits.context: unknown key"),
        ({"engine": "tgi"}, "expected one of auto, transformers, vllm"),
        ({"drain_s": -1}, "drain_s: got -1.0, expected >= 0"),
        (
            {"engine": "transformers", "gpus": 2},
            "gpus: got 2, but the transformers engine has its model on one GPU; set engine to vllm",
        ),
    ],
)
def test_a_wrong_setting_is_refused_with_its_path(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        serve_config(**values)
    assert message in str(caught.value)


@pytest.mark.feature("S000-54", "S000-55", "S000-57")
def test_base_adapter_merged_and_checkpoint_are_found(
    places: Path, model_dir: Path, tmp_path: Path
) -> None:
    own = Places()
    assert find_weights(serve_config(), "tiny", own).names == ("tiny",)
    folder = adapter(places / "chkpt" / "finetune" / "12" / "final")
    (places / "chkpt" / "latest").write_text("finetune/12/final\n")
    for config in (
        serve_config(adapter="{place:chkpt}/latest"),
        serve_config(checkpoint=str(folder)),
    ):
        found = find_weights(config, "tiny", own)
        assert (found.model_dir, found.adapter_dir) == (model_dir, folder)
        assert found.names == ("tiny", "tiny-tuned")
    auto = serve_config(adapter="auto")
    assert find_weights(auto, "tiny", own).names == ("tiny",), "trained is not evaluated"
    point(places / "chkpt" / EVALUATED, folder)
    try_out = adapter(places / "chkpt" / "finetune" / "13" / "final")
    (places / "chkpt" / "latest").write_text("finetune/13/final\n")
    assert find_weights(auto, "tiny", own).adapter_dir == folder, "a later try takes its place"
    point(places / "chkpt" / EVALUATED, try_out)
    assert find_weights(auto, "tiny", own).adapter_dir == try_out
    point(places / "chkpt" / EVALUATED, adapter(tmp_path / "other", base="Qwen3-14B"))
    assert find_weights(auto, "tiny", own).names == ("tiny",)
    assert find_weights(auto, "tiny", Places({"SOPERATOR_PLACE_MODEL": str(model_dir.parent)}))
    merged = tmp_path / "merged"
    shutil.copytree(model_dir, merged)
    both = serve_config(merged=str(merged), adapter="auto")
    assert find_weights(both, "none", own).model_dir == merged
    found = find_weights(serve_config(merged=str(merged), served_name="mine"), "none", own)
    assert (found.model_dir, found.adapter_dir, found.names) == (merged, None, ("mine",))
    # A checkpoint of whole weights has no tokenizer: the model's is taken.
    for path in merged.glob("tokenizer*"):
        path.unlink()
    found = find_weights(serve_config(checkpoint=str(merged)), "tiny", own)
    assert found.tokenizer_dir == model_dir


def test_folders_that_are_not_what_their_key_says_are_refused(
    places: Path, model_dir: Path, tmp_path: Path
) -> None:
    other = adapter(tmp_path / "other", base="Qwen3-14B")
    shards = tmp_path / "checkpoint-8"
    shards.mkdir()
    (shards / "config.json").write_text("{}")
    bare = tmp_path / "model" / "bare"
    bare.mkdir(parents=True)
    (bare / "config.json").write_text("{}")
    cases = [
        ({"adapter": str(other)}, "tiny", "adapter of 'Qwen3-14B', the recipe's model is 'tiny'"),
        ({"adapter": str(model_dir)}, "tiny", "it is no adapter; name it with --merged"),
        ({"adapter": "/nowhere"}, "tiny", "serve.adapter: /nowhere is no folder"),
        ({"merged": str(other)}, "tiny", "an adapter, no merged model; name it with --adapter"),
        (
            {"checkpoint": str(shards)},
            "tiny",
            "checkpoint-8: not committed; name another checkpoint",
        ),
        ({}, str(bare), "has no tokenizer (tokenizer.json or tokenizer_config.json)"),
        ({}, "absent", "model 'absent' was not found"),
    ]
    for values, model, message in cases:
        with pytest.raises(DataError) as caught:
            find_weights(serve_config(**values), model, Places())
        assert message in str(caught.value), values


def test_a_model_over_several_gpus_is_refused_where_nothing_divides_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server, "is_installed", lambda: False)
    with pytest.raises(ConfigError, match=r"serve.gpus: 4, this job has 2; raise gpus_per_node"):
        server.choose_engine(serve_config(gpus=4), num_gpus=2)
    with pytest.raises(
        ConfigError, match=r"serve.gpus: 2 takes vLLM, which is not installed .*; install"
    ):
        server.choose_engine(serve_config(gpus=2), num_gpus=2)
    assert server.choose_engine(serve_config(), num_gpus=2) == "transformers"


def test_every_server_has_a_key_that_its_user_alone_may_read(tmp_path: Path) -> None:
    path = tmp_path / "key"
    given = {"SOPERATOR_SERVE_API_KEY": "a-key-that-is-long-enough"}
    assert weights_module.api_key(path, given) == given.popitem()[1]
    with pytest.raises(ConfigError, match="at least 16"):
        weights_module.api_key(path, {"SOPERATOR_SERVE_API_KEY": "short"})
    made = weights_module.api_key(path, {})
    assert len(made) >= 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert weights_module.api_key(path, {}) == made, "the next start has the same"
    path.chmod(0o644)
    with pytest.raises(ConfigError, match="mode 0644, others can read it"):
        weights_module.api_key(path, {})


def test_a_key_of_another_user_or_behind_a_link_is_refused(neighbour: Neighbour) -> None:
    """Who knows the key of a server may ask it as everybody else."""
    neighbour.run("umask 077; echo known-to-the-neighbour > key; ln -s ../../root/.netrc link")
    with pytest.raises(ConfigError, match=r"key: is of nobody \(uid 65534\), not of root"):
        weights_module.api_key(neighbour.folder / "key", {})
    with pytest.raises(ConfigError, match=r"link: is a link of nobody .*rm "):
        weights_module.api_key(neighbour.folder / "link", {})


@pytest.mark.feature("S000-55", "S002-86")
def test_endpoint_json_says_where_the_server_is_and_never_the_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "a-key-that-is-long-enough"
    monkeypatch.setenv("SOPERATOR_SERVE_API_KEY", key)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "2")
    config, key_file = serve_config(host="0.0.0.0"), tmp_path / "key"
    path = weights_module.write_endpoint(tmp_path, config, 7860, ALONE, key_file)
    text = path.read_text()
    assert key not in text
    said = json.loads(text)
    assert (said["port"], said["needs_key"], said["models"]) == (7860, True, ["a"])
    assert said["api_key_file"] is None, "the variable won"
    assert said["host"] == os.uname().nodename
    assert said["restarts"] == 2
    monkeypatch.delenv("SOPERATOR_SERVE_API_KEY")
    both = replace(ALONE, adapter_dir=Path("/a"), tuned_name="a-tuned")
    said = json.loads(
        weights_module.write_endpoint(tmp_path, config, 7860, both, key_file).read_text()
    )
    assert (said["needs_key"], said["api_key_file"]) == (True, str(tmp_path / "key"))
    assert (said["models"], said["adapter_dir"]) == (["a", "a-tuned"], "/a")


def test_refusals_end_the_job_before_it_loads_with_their_exit_code(
    places: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = [
        ('serve.adapter="/nowhere"', ExitCode.BAD_DATA, "is no folder"),
        ('serve.engine="vllm"', ExitCode.BAD_CONFIG, "which is not installed"),
    ]
    for override, code, message in cases:
        arguments = recipe_arguments(["--base", "tiny", "--set", override])
        assert run_job("serve", main, arguments) is code
        record = json.loads(capsys.readouterr().out.splitlines()[-1])
        assert (record["kind"], record["outcome"]) == ("serve", "FAIL")
        assert message in record["reason"]


def test_address_and_key_of_an_earlier_life_are_removed_before_anything_can_fail(
    places: Path,
) -> None:
    """Of one that was killed: who has its port by now may have been sent the key."""
    results = places / "results" / "12"
    results.mkdir(parents=True)
    for name in ("endpoint.json", "api_key"):
        (results / name).write_text("{}")
    arguments = recipe_arguments(["--base", "tiny", "--set", 'serve.adapter="/nowhere"'])
    assert run_job("serve", main, arguments) is ExitCode.BAD_DATA
    assert (results / "run_record.json").is_file()
    assert not {each.name for each in results.iterdir()} & {"endpoint.json", "api_key"}


def test_what_is_put_together_from_a_checkpoint_goes_with_its_server(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is as large as the model, and results are pulled home."""
    checkpoint = places / "checkpoint-2"
    checkpoint.mkdir()
    made: list[Path] = []

    def consolidated(*_: object, **__: object) -> Path:
        made.append(adapter(places / "results" / "12" / "served-checkpoint-2"))
        return made[0]

    monkeypatch.setattr("workloads.serve.weights.candidate", lambda _: checkpoint)
    monkeypatch.setattr("workloads.serve.weights.consolidated", consolidated)
    words = ["--base", "tiny", "--checkpoint", str(checkpoint), "--engine", "vllm"]
    assert run_job("serve", main, recipe_arguments(words)) is ExitCode.BAD_CONFIG
    assert [folder.exists() for folder in made] == [False]
    assert checkpoint.exists()


def test_a_port_that_is_taken_is_refused_with_its_number(places: Path) -> None:
    from workloads.serve.server import listen

    with listen(serve_config(port=0)) as taken:
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}: Address already in use"):
            listen(serve_config(port=port))


@another_user.as_root
def test_nobody_takes_the_port_of_a_server_that_still_loads() -> None:
    """Its weights take minutes, and then it would tell an address of somebody else."""
    with (
        server.listen(serve_config(port=0)) as own,
        another_user.listening(own.getsockname()[1]) as neighbour,
    ):
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "Address already in use\n"


def test_a_server_that_cannot_listen_says_no_address() -> None:
    config = serve_config(port=0)
    gone = server.listen(config)
    gone.close()
    engine: Any = SimpleNamespace(start=lambda: None)
    serving = server.Serving(Starlette(), engine, engine, config, gone)
    with pytest.raises((OSError, ValueError)):
        serving.run(lambda: pytest.fail("an address was told"))


@another_user.as_root
@pytest.mark.parametrize("theirs", ["127.0.0.1", "0.0.0.0", "::", "::ffff:127.0.0.1"])
def test_a_neighbour_at_the_port_of_vllm_is_not_taken_for_it_nor_gets_the_key(
    theirs: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """vLLM binds the port itself, a while after it was started, and may die before its metrics."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    (port,) = free_ports(1)
    ready: list[int] = []
    words = [sys.executable, "-c", "import time; time.sleep(2)"]
    with another_user.listening(port, theirs) as neighbour:
        assert neighbour.stdout is not None
        assert neighbour.stdout.readline() == "listens\n"
        config = serve_config(engine="vllm")
        with pytest.raises(WorkloadError, match="vLLM ended with 0"):
            server.run_vllm(
                words, config, port, "a-key", lambda: ready.append(1), results_dir=tmp_path
            )
        neighbour.kill()
        told = neighbour.stdout.read()
    assert (ready, "a-key" in told, "Authorization" in told) == ([], False, False), told


def test_vllm_starts_for_a_user_of_a_container_who_has_no_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither HOME nor a line in passwd: what is compiled lies in a folder of the run's own."""

    def nobody(uid: int) -> None:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    for name in ("HOME", "TORCHINDUCTOR_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    code = (
        "import os, pathlib, sys; own = pathlib.Path(os.environ['TORCHINDUCTOR_CACHE_DIR'])"
        ".parents[1]; open(sys.argv[1], 'w').write(f'{own} {own.stat().st_mode & 0o777:o}')"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "said")]
    with pytest.raises(WorkloadError, match="vLLM ended with 0"):
        server.run_vllm(
            words,
            serve_config(engine="vllm"),
            free_ports(1)[0],
            "a-key",
            lambda: None,
            results_dir=tmp_path,
        )
    folder, mode = (tmp_path / "said").read_text().split()
    assert Path(folder).is_relative_to(tmp_path / "temporary")
    assert (mode, Path(folder).exists()) == ("700", False)


class Healthy(http.server.BaseHTTPRequestHandler):
    """Answers as vLLM does once it is up."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"up")


@another_user.as_root
@pytest.mark.parametrize(
    ("ours", "asked", "theirs"),
    [
        ("127.0.0.1", "127.0.0.1", "127.0.0.2"),
        ("127.0.0.1", "127.0.0.1", "::1"),
        ("::1", "::1", "127.0.0.1"),
        ("127.0.0.1", "localhost", "127.0.0.2"),
    ],
)
def test_a_neighbour_at_the_same_port_of_another_address_keeps_vllm_not_down(
    ours: str, asked: str, theirs: str
) -> None:
    """A loopback has many addresses, and each job of a shared node may choose its own."""

    class Server(http.server.HTTPServer):
        address_family = socket.AF_INET6 if ":" in ours else socket.AF_INET

    with Server((ours, free_ports(1)[0]), Healthy) as vllm:
        threading.Thread(target=vllm.serve_forever, daemon=True).start()
        with another_user.listening(vllm.server_port, theirs) as neighbour:
            assert neighbour.stdout is not None
            assert neighbour.stdout.readline() == "listens\n"
            said = server.page(asked, vllm.server_port, "health")
        vllm.shutdown()
    assert said == b"up"


def test_vllm_keeps_what_it_compiles_where_no_neighbour_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, neighbour: Neighbour
) -> None:
    """Torch loads pickles and libraries from there, by default of a name in /tmp that all know."""
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setenv("TMPDIR", str(neighbour.folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    user = pwd.getpwuid(os.geteuid()).pw_name
    neighbour.run(f"umask 0; mkdir torchinductor_{user}; echo > torchinductor_{user}/theirs")
    seen = tmp_path / "seen"
    code = "from torch._inductor.runtime.cache_dir_utils import cache_dir; "
    code += f"import os; open('{seen}', 'w').write(str(os.listdir(cache_dir())))"
    config, words = serve_config(engine="vllm"), [sys.executable, "-c", code]
    (port,) = free_ports(1)
    with pytest.raises(WorkloadError, match="vLLM ended with 0"):
        server.run_vllm(words, config, port, "a-key", lambda: None, results_dir=tmp_path)
    assert seen.read_text() == "[]"


@pytest.mark.feature("S000-72", "S003-43")
def test_weights_are_staged_to_a_ram_disk_once(ram_disk: Path, model_dir: Path) -> None:
    own = Places({"SOPERATOR_PLACE_SCRATCH": str(ram_disk)})
    first = stage(model_dir, own, WEIGHTS)
    assert first.is_staged
    assert first.path.is_relative_to(ram_disk)
    weights = "model.safetensors"
    assert (first.path / weights).read_bytes() == (model_dir / weights).read_bytes()
    assert first.num_bytes == sum(path.stat().st_size for path in model_dir.iterdir())
    again = stage(model_dir, own, WEIGHTS)
    assert (again.path, again.copy_s) == (first.path, 0.0)
    assert again.text == f"weights are in {first.path} already"


def test_weights_that_another_user_may_have_put_there_are_not_taken(
    ram_disk: Path, model_dir: Path
) -> None:
    own = Places({"SOPERATOR_PLACE_SCRATCH": str(ram_disk)})
    target = stage(model_dir, own, WEIGHTS).path
    target.chmod(0o777)
    assert f"{target}: has mode 0777" in stage(model_dir, own, WEIGHTS).text
    theirs = target.rename(ram_disk / "theirs")
    target.symlink_to(theirs)
    assert f"{target}: is a link" in stage(model_dir, own, WEIGHTS).text
    target.unlink()
    for folder in (target.parent, ram_disk):
        folder.chmod(0o777)
        assert f"{folder}: has mode" in stage(model_dir, own, WEIGHTS).text
        folder.chmod(0o755)


@pytest.mark.feature("S000-72")
def test_weights_that_cannot_be_staged_are_read_where_they_lie_with_the_reason(
    tmp_path: Path, ram_disk: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "names no place scratch" in stage(model_dir, Places({}), WEIGHTS).text
    disk = Places({"SOPERATOR_PLACE_SCRATCH": str(tmp_path)})
    why = f"is {filesystem_of(tmp_path)}, not tmpfs or ramfs"
    assert why in stage(model_dir, disk, WEIGHTS).text
    monkeypatch.setattr(places_module, "available_bytes", lambda: 1000)
    full = stage(model_dir, Places({"SOPERATOR_PLACE_SCRATCH": str(ram_disk)}), WEIGHTS)
    assert (full.is_staged, full.path) == (False, model_dir)
    assert "0.00 GiB of room" in full.text
    assert not list(ram_disk.rglob("*.safetensors"))


def test_the_kind_of_a_filesystem_is_that_of_its_deepest_mount() -> None:
    assert filesystem_of(Path("/proc/self")) == "proc"


@pytest.mark.parametrize("has_level", [False, True], ids=["without", "with"])
def test_vllm_holds_arguments_to_their_schema_where_it_can(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, has_level: bool
) -> None:
    """By itself it takes any JSON for the arguments of a call that must be made."""
    (tmp_path / "vllm" / "tool_parsers").mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").write_text("raise ImportError('it is not imported')")
    if has_level:
        (tmp_path / "vllm" / "tool_parsers" / "tool_strict_level.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    weights = Weights(
        model_dir=tmp_path,
        tokenizer_dir=model_dir,
        adapter_dir=None,
        served_name="m",
        tuned_name="m-tuned",
    )
    text = " ".join(server.vllm_command(serve_config(), weights, tmp_path, 8000))
    assert ("--tool-strict-level parameter" in text) is has_level


@pytest.mark.feature("S000-72")
@pytest.mark.usefixtures("places")
def test_vllm_reads_the_weights_from_the_ram_disk(
    ram_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOPERATOR_PLACE_SCRATCH", str(ram_disk))
    monkeypatch.setattr(server, "is_installed", lambda: True)
    run_vllm = Mock()
    monkeypatch.setattr(server, "run_vllm", run_vllm)
    arguments = recipe_arguments(["--base", "tiny", "--engine", "vllm", "--port", "0"])
    assert run_job("serve", main, arguments) is ExitCode.OK
    words = run_vllm.call_args.args[0]
    assert Path(words[words.index("--model") + 1]).is_relative_to(ram_disk)


@pytest.mark.feature("S000-16")
def test_vllm_gets_the_same_settings_and_its_key_by_environment(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = Weights(
        model_dir=tmp_path,
        tokenizer_dir=model_dir,
        adapter_dir=adapter(tmp_path / "a"),
        served_name="m",
        tuned_name="m-tuned",
    )
    config = serve_config(thinking=False, host="0.0.0.0", limits={"context_tokens": 4096})
    words = server.vllm_command(config, weights, tmp_path / "ram", 8000)
    options = dict(zip(words[3::2], words[4::2], strict=False))
    assert words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert options["--model"] == str(tmp_path / "ram")
    assert options["--max-model-len"] == "4096"
    # On SIGTERM; by itself vLLM gives answers no time to end.
    assert options["--shutdown-timeout"] == "20"
    monkeypatch.setenv("SOPERATOR_NOTICE_S", "25")
    words_of_taken = server.vllm_command(config, weights, tmp_path, 8000)
    assert words_of_taken[words_of_taken.index("--shutdown-timeout") + 1] == "15"
    text = " ".join(words)
    assert f"--enable-lora --max-lora-rank 16 --lora-modules m-tuned={tmp_path / 'a'}" in text
    assert '{"enable_thinking": false}' in words
    # Without a parser vLLM takes no tools; named and required calls and JSON need no option more.
    assert "--enable-auto-tool-choice --tool-call-parser hermes" in text
    for name, parser in (("llama3_1", "llama3_json"), ("mistral_nemo", "mistral")):
        template(name).save_pretrained(tmp_path)
        own = server.vllm_command(config, replace(weights, tokenizer_dir=tmp_path), tmp_path, 8000)
        assert own[own.index("--tool-call-parser") + 1] == parser
    # Its own key guards /v1 alone: /invocations answers chats too.
    module, _, name = options["--middleware"].rpartition(".")
    assert getattr(importlib.import_module(module), name) is VllmGuard
    assert not any("key" in word for word in words)
    monkeypatch.setattr(server, "is_installed", lambda: True)
    assert server.choose_engine(serve_config(), num_gpus=1) == "vllm"
    assert server.choose_engine(serve_config(), num_gpus=0) == "transformers"
    assert server.choose_engine(serve_config(engine="transformers"), num_gpus=1) == "transformers"
    assert server.choose_engine(serve_config(gpus=2), num_gpus=2) == "vllm"


def test_vllm_makes_room_for_an_adapter_in_the_ranks_that_it_knows(
    tmp_path: Path, model_dir: Path
) -> None:
    """Its parser refuses others: "invalid choice: 4 (choose from 1, 8, 16, 32, ...)"."""

    def words(rank: int) -> list[str]:
        folder = adapter(tmp_path / str(rank), rank=rank)
        weights = Weights(
            model_dir=tmp_path,
            tokenizer_dir=model_dir,
            adapter_dir=folder,
            served_name="m",
            tuned_name="m-tuned",
        )
        return server.vllm_command(serve_config(), weights, tmp_path, 8000)

    for rank, room in ((1, "1"), (4, "8"), (64, "64"), (500, "512")):
        given = words(rank)
        assert given[given.index("--max-lora-rank") + 1] == room
    with pytest.raises(ConfigError, match=r"rank 513, vLLM takes at most 512; merge it"):
        words(513)


def test_an_adapter_of_dora_is_refused_with_the_way_to_serve_it(
    tmp_path: Path, places: Path
) -> None:
    """peft mixes no rows of DoRA with others, and vLLM does not load it."""
    folder = adapter(tmp_path / "a")
    values = json.loads((folder / "adapter_config.json").read_text())
    (folder / "adapter_config.json").write_text(json.dumps({**values, "use_dora": True}))
    with pytest.raises(DataError, match=r"use_dora.* merge it .*serve\.merged"):
        find_weights(serve_config(adapter=str(folder)), "tiny", Places())


def test_an_engine_program_that_ends_by_itself_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    words = [sys.executable, "-c", "raise SystemExit(3)"]
    with pytest.raises(WorkloadError, match="vLLM ended with 3"):
        server.run_vllm(words, serve_config(), 1, "a-key", lambda: None, results_dir=tmp_path)


def test_one_notice_by_two_signals_drains_vllm_and_the_same_again_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node signals its processes, and the job's supervisor hands its own signal on to them."""
    handlers: dict[int, Any] = {}
    sent: list[int] = []

    class Program:
        def poll(self) -> None:
            return None

        def wait(self) -> int:
            return 0

        def send_signal(self, number: int) -> None:
            sent.append(number)

        def kill(self) -> None:
            sent.append(signal.SIGKILL)

    def told() -> None:
        for number in (signal.SIGUSR1, signal.SIGTERM):
            handlers[number](number, None)
        assert sent == [signal.SIGTERM]
        handlers[signal.SIGTERM](signal.SIGTERM, None)

    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    monkeypatch.setattr(server.subprocess, "Popen", lambda words, env: Program())
    monkeypatch.setattr(server, "page", lambda *_: b"")
    server.run_vllm(["vllm"], serve_config(), 1, "a-key", told, results_dir=tmp_path)
    assert sent == [signal.SIGTERM] * 2


def test_percentiles_of_two_answers_are_not_below_their_median() -> None:
    metrics = ServeMetrics(lambda: None, lambda: 0)  # type: ignore[arg-type, return-value]
    for tokens in (2, 3):
        watch = Watch(metrics, "m", 1)
        for _ in range(tokens):
            watch.saw(1)
        watch.end("finished")
        watch.end("cancelled")
    values = metrics.record()
    assert values["num_answers"] == 2
    assert values["num_output_tokens"] == 5
    assert values["p99_ttft_ms"] >= values["median_ttft_ms"] > 0


class Job:
    """A serving job in a process of its own."""

    def __init__(self, places: Path, *arguments: str) -> None:
        self.results = places / "results" / "12"
        self._log = places / "log"
        with self._log.open("w") as log:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "workloads.serve", "--base", "tiny", "--port", "0"),
                    *("--set", "serve.dtype=fp32", "--set", "serve.cpu_threads=1"),
                    *("--set", "serve.limits.context_tokens=2048", *arguments),
                ],
                cwd=CHECKOUT,
                stdout=log,
                stderr=log,
            )
        deadline = time.monotonic() + READY_S
        path = self.results / "endpoint.json"
        while not path.is_file():
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            threading.Event().wait(0.1)
        url = f"http://127.0.0.1:{json.loads(path.read_text())['port']}/v1"
        key = (self.results / "api_key").read_text().strip()
        self.client = openai.OpenAI(base_url=url, api_key=key, max_retries=0, timeout=60)

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self._log.read_text()

    def stream(self, max_tokens: int) -> Any:
        """Start an answer of that length; its first token has come, so it no longer waits."""
        made = self.client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "x"}],
            max_tokens=max_tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        # The role comes before the answer has begun.
        next(chunk for chunk in made if chunk.choices[0].delta.content)
        return made

    def ask_until_refused(self) -> None:
        """Ask until the signal has been seen."""
        while True:
            self.client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "x"}], max_tokens=1
            )

    def end(self) -> tuple[int, dict[str, Any]]:
        """Wait for its end; exit status and run record."""
        status = self.process.wait(60)
        return status, json.loads((self.results / "run_record.json").read_text())


@pytest.mark.feature("S002-86")
def test_a_server_that_is_stopped_ends_what_runs_and_exits_0(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # By them the supervisor knows when srun, which runs a server in an image, may be kept asleep.
    began, ended = places / "began", places / "ended"
    monkeypatch.setenv("SOPERATOR_NODES_FILE", str(began))
    monkeypatch.setenv("SOPERATOR_EXIT_FILE", str(ended))
    job = Job(places, "--set", "serve.drain_s=300")  # a busy machine takes its time for 300 tokens
    try:
        running = job.stream(300)
        assert (began.read_text(), ended.exists()) == ("1\n", False)
        job.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.InternalServerError) as refused:
            job.ask_until_refused()
        assert refused.value.status_code == 503
        assert list(running)[-1].choices[0].finish_reason == "length"
        status, record = job.end()
    finally:
        job.process.kill()
    assert (status, record["outcome"], record["reason"]) == (0, "PASS", None)
    assert ended.read_text() == "0\n"
    assert record["engine"] == "transformers"
    assert record["metrics"]["num_output_tokens"] >= 300
    assert "Traceback" not in job.log


@pytest.mark.nightly
def test_two_signals_of_one_notice_do_not_cut_what_runs(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node signals the server, and the job's supervisor does: the second skipped the drain."""
    monkeypatch.setenv("SOPERATOR_NOTICE_S", "310")
    job = Job(places, "--set", "serve.drain_s=400")
    try:
        running = job.stream(300)
        for number in (signal.SIGTERM, signal.SIGUSR1):
            job.process.send_signal(number)
            with pytest.raises(openai.InternalServerError) as refused:
                job.ask_until_refused()
            assert int(refused.value.response.headers["retry-after"]) > 0
        assert list(running)[-1].choices[0].finish_reason == "length"
        status, _ = job.end()
    finally:
        job.process.kill()
    assert status == 0
    assert "serve.drain_s: 400, cut to 300: the node gives 310 s" in job.log


def test_what_cannot_end_in_time_is_returned_and_the_job_says_so(places: Path) -> None:
    job = Job(places, "--set", "serve.drain_s=0")
    try:
        running = job.stream(1900)
        job.process.send_signal(signal.SIGTERM)
        with pytest.raises(openai.APIError, match="stopped before the answer was whole"):
            list(running)
        status, record = job.end()
    finally:
        job.process.kill()
    assert (status, record["outcome"]) == (ExitCode.PREEMPTED, "FAIL")
    assert "1 answers were returned unfinished after 0 s" in record["reason"]
    assert record["metrics"]["num_failed_answers"] == 1
