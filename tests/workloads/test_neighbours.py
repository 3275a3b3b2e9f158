"""What another user of the machine puts into the way of a job: refused, and none of it run."""

from __future__ import annotations

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed import TCPStore
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING, Metadata
from torch.distributed.elastic.rendezvous.api import RendezvousStateError

from tests.another_user import UID, Neighbour, Runs, as_root
from tests.nightly import at_night
from tests.workloads.ranks import REPOSITORY
from tests.workloads.test_checkpoint import run_in, saved
from workloads.common import atomic
from workloads.common.exit_codes import ConfigError, DataError, ExitCode
from workloads.common.launch import backend_class, free_port
from workloads.common.models import load_model, load_tokenizer
from workloads.job import run_job
from workloads.recipes.reader import parse
from workloads.recipes.train import TrainConfig
from workloads.serve.weights import consolidated
from workloads.train.model import build_model
from workloads.train.run_folder import Candidate, RunFolder, candidate, digest


def of_a_run(folder: Path) -> Candidate:
    """A good checkpoint."""
    saved(folder, 2)
    found = candidate(folder / "proof" / "run" / "checkpoint-2")
    assert found is not None
    return found


def put(found: Candidate, name: str, content: bytes) -> None:
    """Exchange a file of a checkpoint, with the digest that the marker has of it."""
    (found.path / name).write_bytes(content)
    marker = found.path / found.kind.marker
    values = json.loads(marker.read_text())
    new = digest(found.path / name)
    values["files"][name] = {"size_bytes": new.size_bytes, "sha256": new.sha256}
    marker.write_text(json.dumps(values))


def load(folder: Path, found: Candidate) -> None:
    run = run_in(folder, resume=str(found.path))
    run.checkpoints.load(run.state)


def serve(found: Candidate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read it as `serve.checkpoint` does; the settings of its run are not asked for."""
    monkeypatch.setattr("workloads.serve.weights._settings", lambda *_: None)
    consolidated(found, model_dir=found.path, places=None)  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["train", "serve"])
def test_a_checkpoint_of_another_user_is_refused_with_the_owner_and_what_mends_it(
    neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    found = of_a_run(neighbour.folder)
    put(found, ".metadata", neighbour.payload())
    subprocess.run(["chown", "-R", f"{UID}:{UID}", neighbour.folder / "proof"], check=True)
    shutil.move(neighbour.folder / "proof", neighbour.folder / "theirs")
    theirs = Candidate(
        path=neighbour.folder / "theirs" / "run" / "checkpoint-2", kind=found.kind, step=2
    )
    with pytest.raises(
        (ConfigError, DataError),
        match=rf"theirs/run/checkpoint-2: .*nobody \(uid {UID}\).*chown -R root {theirs.path}",
    ):
        load(neighbour.folder, theirs) if way == "train" else serve(theirs, monkeypatch)
    assert not neighbour.proof.exists()


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("train", ".metadata"),
        ("serve", ".metadata"),
        # A server reads nothing but tensors from it.
        ("train", "__0_0.distcp"),
    ],
)
def test_a_checkpoint_that_holds_a_program_is_refused_and_none_of_it_runs(
    neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch, way: str, name: str
) -> None:
    """As a copy of somebody else's is: by pull, from a bucket, of a colleague."""
    found = of_a_run(neighbour.folder / "mine")
    if name == ".metadata":
        put(found, name, neighbour.payload())
    else:
        replace_bytes(found, Runs(f"id -u > {neighbour.proof}"))
    with pytest.raises(DataError, match=r"checkpoint-2.* holds posix\.system, which may run a"):
        load(neighbour.folder / "mine", found) if way == "train" else serve(found, monkeypatch)
    assert not neighbour.proof.exists()


@pytest.mark.parametrize(
    "named",
    [
        "pathlib PosixPath\n",
        "torch.distributed.checkpoint.metadata Metadata\n",
        # The member of value 0: K0, a tuple of it, R.
        "torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING\nK\0\x85R",
    ],
)
def test_what_a_checkpoint_names_is_not_changed_by_it(tmp_path: Path, named: str) -> None:
    """With PosixPath's `/` of its own choice, all that the job writes and removes is elsewhere."""
    found = of_a_run(tmp_path)
    state = pickle.dumps((None, {"planted": 1}), protocol=2)[2:-1]
    names = named.replace(" ", "\n").encode("latin-1")
    put(found, ".metadata", b"\x80\x02c" + names + state + b"b.")
    with pytest.raises(DataError, match=r"checkpoint-2.* changes [\w.]+, which it may only name"):
        load(tmp_path, found)
    assert not hasattr(type(tmp_path), "planted")
    assert not hasattr(Metadata, "planted")
    assert not hasattr(_MEM_FORMAT_ENCODING(0), "planted")


def replace_bytes(found: Candidate, value: Any) -> None:
    """Put `value` where the checkpoint has its scalars."""
    metadata: Metadata = pickle.loads((found.path / ".metadata").read_bytes())
    (index,) = (each for each in metadata.storage_data if each.fqn == "scalars")
    stored = metadata.storage_data[index]
    file = found.path / stored.relative_path
    stored.offset = file.stat().st_size
    with file.open("ab") as sink:
        torch.save(value, sink)
    stored.length = file.stat().st_size - stored.offset
    put(found, file.name, file.read_bytes())
    put(found, ".metadata", pickle.dumps(metadata))


_STRANGER = """
import os, sys
import torch, torch.distributed as dist
from tests.another_user import UID, Runs
from workloads.common.dist import world
# Reads files of the checkout, which may lie where the stranger reads nothing.
dist.Backend._ensure_backend_registered("gloo")
child = os.fork()
os.environ.update(RANK="1" if child == 0 else "0", LOCAL_RANK="0", WORLD_SIZE="2")
if child == 0:
    os.setgroups([]); os.setgid(UID); os.setuid(UID)
    dist.init_process_group("gloo")
    dist.distributed_c10d._tensor_to_object = lambda *_: None  # not in its own process
    answers = [None, None]
    if sys.argv[1] == "gather":
        dist.all_gather_object(answers, Runs(sys.argv[2]))
    else:
        dist.gather_object(Runs(sys.argv[2]), None, dst=0)
    os._exit(0)
import torch.distributed.checkpoint.state_dict_saver
with world() as here:
    try:
        if sys.argv[1] == "gather":
            here.gather("hello")
        else:
            dist.gather_object("hello", [None, None], dst=0)
    except Exception as error:
        print(f"refused: {error}")
os._exit(0)
"""


@pytest.mark.parametrize("way", ["gather", "torch's own"])
def test_what_a_rank_of_somebody_else_sends_is_not_run(neighbour: Neighbour, way: str) -> None:
    """A collective of objects carries pickles, and so do those of a checkpoint's plan."""
    environment = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "PYTHONPATH": str(REPOSITORY),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    done = subprocess.run(
        [sys.executable, "-c", _STRANGER, way, f"id -u > {neighbour.proof}"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert not neighbour.proof.exists(), neighbour.proof.read_text()
    assert "refused: " in done.stdout, done.stderr
    assert "posix.system" in done.stdout


_WRITER = """
import base64, os, pickle, sys, time
from torch.distributed import TCPStore
from tests.another_user import UID, Runs
state = base64.b64encode(pickle.dumps(Runs(sys.argv[2]))).decode()
os.setgroups([]); os.setgid(UID); os.setuid(UID)
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
store.get("torch.rendezvous.77.0")  # there since the first node waits
store.set("torch.rendezvous.77.0", state)
"""


def launched(port: int, key: str | None, node: int, join_s: int = 30) -> subprocess.Popen[str]:
    """The launcher of one of two nodes, as a job starts it; its rank says that it ran."""
    conf = f"is_host={1 - node},join_timeout={join_s},last_call_timeout=1"
    words = ["--nnodes=2:2", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-id=77.0"]
    words += [f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf={conf}", "--local-addr=127.0.0.1"]
    environment = {**os.environ, "SOPERATOR_RDZV_KEY": key or "", "PYTHONPATH": str(REPOSITORY)}
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "workloads.common.launch", *words),
            *(
                "--no-python",
                "sh",
                "-c",
                'echo "rank $RANK key ${SOPERATOR_RDZV_KEY-none}"; echo "at $MASTER_PORT"',
            ),
        ],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def said_after(first: subprocess.Popen[str], writer: str, port: int, neighbour: Neighbour) -> str:
    """What the first node says of what another user wrote; none of it ran, and the job failed."""
    subprocess.run(
        [sys.executable, "-c", writer, str(port), f"id -u > {neighbour.proof}"],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        check=True,
        timeout=120,
    )
    said = first.communicate(timeout=120)[0]
    assert not neighbour.proof.exists(), neighbour.proof.read_text()
    assert first.returncode not in (0, None)
    return said


def test_what_somebody_else_writes_where_nodes_meet_is_not_run(neighbour: Neighbour) -> None:
    """The job's id, which everybody sees, is all that it takes to find the place."""
    port = free_port()
    first = launched(port, "a" * 64, 0, join_s=120)
    said = said_after(first, _WRITER, port, neighbour)
    assert "rendezvous 77.0: holds what somebody without SOPERATOR_RDZV_KEY wrote" in said


_NOTICE_WRITER = """
import base64, os, sys
from torch.distributed import TCPStore
from tests.another_user import UID
os.setgroups([]); os.setgid(UID); os.setuid(UID)
store = TCPStore("127.0.0.1", int(sys.argv[1]), is_master=False)
state = "torch.rendezvous.77.0"
told = store.get(f"{state}.notice.0")
for notice in (f"{state}.notice.1", "torch.rendezvous.77.1.notice.0"):
    store.set(notice, told)
store.set(f"{state}.notice.2", b"\\xff" * 64)
for state in (b"", b"0"):
    print(base64.b64encode(bytes.fromhex(told.decode()) + state).decode())
"""


@as_root
def test_a_notice_counts_once_in_its_life_and_is_no_state() -> None:
    """Whoever reads it at the store may write it elsewhere there, and stop other nodes by it."""
    master = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    sealed = backend_class("a" * 64)
    node, next_life = sealed(master, "77.0"), sealed(master, "77.1")
    node.give_notice(0)
    done = subprocess.run(
        [sys.executable, "-c", _NOTICE_WRITER, str(master.port)],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert node.has_notice(0)
    assert not node.has_notice(1)
    assert not node.has_notice(2)
    assert not next_life.has_notice(0)
    for written in done.stdout.split():
        master.set("torch.rendezvous.77.0", written)
        with pytest.raises(RendezvousStateError, match="somebody without SOPERATOR_RDZV_KEY"):
            node.get_state()


_STATIC_WRITER = """
import os, pickle, sys, time
from torch.distributed import TCPStore
from tests.another_user import UID, Runs
written = pickle.dumps(Runs(sys.argv[2]))
os.setgroups([]); os.setgid(UID); os.setuid(UID)
store = TCPStore("127.0.0.1", int(sys.argv[1]), 2, is_master=False)  # as the second node
while not (first := [key for key in store.list_keys() if key.endswith("role_info/0")]):
    time.sleep(0.1)
for key in (*store.list_keys(), first[0][:-1] + "1"):  # what the first node waits for is last
    store.set(key, written)
"""


def test_nodes_without_a_seal_unpickle_nothing_that_somebody_else_writes(
    neighbour: Neighbour,
) -> None:
    """Those of a Kubernetes Job and plain hosts, which know each other by number."""
    port = free_port()
    words = ["--nnodes=2", "--node-rank=0", "--nproc-per-node=1", "--master-addr=127.0.0.1"]
    first = subprocess.Popen(
        [
            *(sys.executable, "-m", "torch.distributed.run", *words, f"--master-port={port}"),
            *("--no-python", "echo", "ran"),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    said = said_after(first, _STATIC_WRITER, port, neighbour)
    assert "UnicodeDecodeError: 'utf-8' codec" in said, "what was written is read, as JSON"
    assert "ran" not in said.splitlines()


def test_runs_that_cannot_be_listed_are_no_reason_to_train_all_anew(neighbour: Neighbour) -> None:
    neighbour.run("mkdir -p finetune/12/checkpoint-4; chmod 311 finetune")
    folder = neighbour.folder
    runs = RunFolder(
        chkpt=folder, elastic=folder, resume="auto", job="finetune", own_id="13", name="13"
    )
    os.seteuid(UID)
    try:
        with pytest.raises(PermissionError, match="finetune"):
            runs.candidates(restarted=False, fingerprint="")
    finally:
        os.seteuid(0)


@pytest.mark.parametrize(
    "keys", [("a" * 64, "a" * 64), ("a" * 64, "b" * 64), at_night((None, None))]
)
def test_nodes_meet_with_the_same_key_alone_and_their_ranks_have_none(
    keys: tuple[str | None, str | None],
) -> None:
    port = free_port()
    meet = keys[0] == keys[1] == "a" * 64
    both = [launched(port, key, node, 120 if meet else 30) for node, key in enumerate(keys)]
    said = "".join(each.communicate(timeout=180)[0] for each in both)
    if meet:
        assert [each.returncode for each in both] == [0, 0], said
        assert {"rank 0 key none", "rank 1 key none"} <= set(said.splitlines())
        (at,) = set(re.findall(r"^at (\d+)$", said, re.MULTILINE))
        assert int(at) < 32_768, "a port of the kernel's is another program's by the time"
    else:
        assert all(each.returncode for each in both)
        assert "rank 0" not in said
        assert "export the same on every node" in said


@pytest.mark.parametrize(
    ("made", "whose"),
    [
        ("mkdir results/12", r"is of nobody \(uid 65534\), not of root .*chown -R root"),
        ("ln -s ../mine results/12", r"is a link of nobody .* to \.\./mine; remove it: rm"),
        ("mkdir -m 777 results/12", "is of nobody"),
    ],
)
def test_a_job_leaves_a_result_folder_of_another_user_as_it_is(
    neighbour: Neighbour,
    recipe_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made: str,
    whose: str,
) -> None:
    shared(neighbour, monkeypatch)
    neighbour.run(made)
    before = neighbour.run("find . | sort")

    def nothing(_job: Any) -> None:
        raise AssertionError("it must not begin")

    assert run_job("data", nothing, ["--recipe", str(recipe_file)]) == ExitCode.BAD_CONFIG
    record = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert re.match(rf"{neighbour.folder}/results/12: {whose}", record["reason"])
    assert neighbour.run("find . | sort") == before


def shared(neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch) -> None:
    """Places that everybody may write to, and a folder of root's beside them."""
    (neighbour.folder / "mine").mkdir(mode=0o755)
    for place in ("results", "chkpt"):
        (neighbour.folder / place).mkdir()
        (neighbour.folder / place).chmod(0o1777)
        monkeypatch.setenv(f"SOPERATOR_PLACE_{place.upper()}", str(neighbour.folder / place))
    monkeypatch.setenv("SLURM_JOB_ID", "12")


@pytest.mark.parametrize("made", ["mkdir -p {0}/proof", "mkdir {0}; ln -s {1} {0}/proof"])
def test_a_run_neither_starts_nor_saves_in_the_folder_of_another_user(
    neighbour: Neighbour, made: str
) -> None:
    mine = neighbour.folder / "mine"
    mine.mkdir()
    place = neighbour.folder / "chkpt"
    neighbour.run(made.format(place, mine))
    place.chmod(0o1777)
    run = run_in(place, resume="auto")
    with pytest.raises(ConfigError, match=r"chkpt/proof: is (of nobody|a link of nobody)"):
        run.checkpoints.load(run.state)
    assert not any(mine.iterdir())


def test_a_folder_of_a_team_is_its_members_own_and_one_that_all_may_write_to_is_nobodys(
    neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With umask 002 and a folder that hands its group on, all that a job makes is the team's."""
    made = neighbour.folder / "made"
    made.mkdir()
    os.chown(made, 0, UID)
    made.chmod(0o2775)
    assert (
        atomic.foreign(made) == f"has mode 2775, others may write to it; mend it: chmod go-w {made}"
    )
    monkeypatch.setattr(os, "getgroups", lambda: [UID])
    assert atomic.foreign(made) is None
    made.chmod(0o777)
    assert "has mode 0777" in str(atomic.foreign(made))


def test_a_file_is_written_through_no_link_of_another_user(
    neighbour: Neighbour, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = neighbour.folder / "mine"
    mine.write_text("as it was")
    neighbour.run(f"ln -s mine latest; ln -s mine .latest.{os.getpid()}.partial")
    atomic.write_text(neighbour.folder / "latest", "new")
    assert mine.read_text() == "as it was"
    neighbour.run("mkdir theirs; touch theirs/kept")
    with (
        pytest.raises(ConfigError, match=r"theirs: is of nobody"),
        atomic.new_directory(neighbour.folder / "theirs", replace=True),
    ):
        pass
    assert (neighbour.folder / "theirs" / "kept").exists()


@pytest.mark.parametrize("part", ["model", "tokenizer", "shape"])
def test_a_model_that_brings_a_program_is_refused_and_nobody_is_asked(
    tmp_path: Path, model_dir: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """By itself transformers asks at a terminal, and runs it where somebody says y."""
    folder = tmp_path / "model"
    shutil.copytree(model_dir, folder)
    (folder / "own.py").write_text(f"open({str(tmp_path / 'proof')!r}, 'w')\n")
    names = {
        "AutoConfig": "own.C",
        "AutoModelForCausalLM": "own.M",
        "AutoTokenizer": ["own.T", None],
    }
    for name in ("config.json", "tokenizer_config.json"):
        values = json.loads((folder / name).read_text())
        values |= {"auto_map": names, "model_type": "own", "tokenizer_class": "T"}
        (folder / name).write_text(json.dumps(values))
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    cpu = torch.device("cpu")
    config = parse(TrainConfig, {"dataset": "d", "learning_rate": 0.1, "epochs": 1}, at="train")
    load = {
        "model": lambda: load_model(folder, dtype=torch.float32, device=cpu),
        "tokenizer": lambda: load_tokenizer(folder),
        "shape": lambda: build_model(folder, config, device=cpu, empty=True),
    }
    with pytest.raises((DataError, ValueError), match=r"trust_remote_code"):
        load[part]()
    assert not (tmp_path / "proof").exists()
