"""The text of every shipped job, and the rules it is made by."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from infra.render.delivery import code_files, hash_files, pack
from infra.render.names import shell_file
from infra.render.sbatch import RenderError, chat_profile, check_script, own_place, render_sbatch
from stacks.load import STACKS_DIR, load_stack
from stacks.spec import StackSpec
from stacks.spec.nodes import Billing, WorkerSpec
from stacks.spec.slurm import JobSpec, PartitionSpec
from tests import SHIPPED
from tests.another_user import Neighbour
from tests.conftest import GOLDEN_DIR
from tests.unit.jobs.test_submit import OUTPUTS

JOB = JobSpec(name="train", module="workloads.train", recipe="r", nodes=2, gpus_per_node=2)
CHECKOUT = STACKS_DIR.parent


@pytest.fixture
def spec(public_key_file: Path) -> StackSpec:
    return load_stack("local")


@pytest.mark.feature(
    "S000-09",
    "S000-115",
    "S000-38",
    "S000-60",
    "S001-01",
    "S001-09",
    "S001-31",
    "S001-43",
    "S001-44",
    "S001-84",
    "S001-85",
    "S001-95",
    "S002-32",
    "S002-33",
    "S002-34",
    "S002-35",
    "S002-42",
    "S002-51",
    "S002-52",
    "S002-66",
    "S003-25",
    "S003-31",
    "S003-35",
    "S003-43",
    "S003-46",
    "S003-79",
    "S004-27",
)
@pytest.mark.parametrize("stack", SHIPPED)
def test_every_shipped_job_renders_as_its_golden_file(
    stack: str, public_key_file: Path, golden: Callable[[str, str], None]
) -> None:
    spec = load_stack(stack)
    delivered = code_files(CHECKOUT, spec)
    for job in spec.jobs:
        text = render_sbatch(spec, job)
        subprocess.run(["bash", "-n"], input=text, text=True, check=True)
        golden(f"sbatch/{stack}/{job.name}.sh", text)
        assert delivered[f"jobs/{job.name}"] == text.encode(), "what sbatch is given on the cluster"
    told = json.loads(delivered["configs/stack.json"])
    assert told["places"] == dict(spec.storage.places), "each release keeps what was declared"
    assert told["jobs"].keys() == {job.name for job in spec.jobs}
    kept = {path.stem for path in (GOLDEN_DIR / "sbatch" / stack).glob("*.sh")}
    of_other_tests = {"finetune-in-an-image"} if stack == "h100-prod" else set[str]()
    assert kept == {job.name for job in spec.jobs} | of_other_tests, "a job went, its file stayed"


@pytest.mark.feature("S001-31")
def test_a_job_runs_the_release_that_it_was_submitted_with(spec: StackSpec, tmp_path: Path) -> None:
    """One that waited ran what was live by then, under the commit of its submission."""
    for name in ("old", "new"):
        (tmp_path / "releases" / name).mkdir(parents=True)
    (tmp_path / "current").symlink_to("releases/new")
    text = render_sbatch(replace(spec, code_path=str(tmp_path)), spec.jobs[0])
    lines = text[text.index("user=") : text.index("export SOPERATOR_JOB")]
    script = f"set -euo pipefail\n{lines}echo $SOPERATOR_CODE_HASH $PWD"

    def ran(**environment: str) -> str:
        words = ["bash", "-c", script]
        environment["PATH"] = os.environ["PATH"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        return done.stdout

    assert ran(SOPERATOR_RELEASE="old") == f"old {tmp_path}/releases/old\n"
    assert ran() == f"new {tmp_path}/releases/new\n", "typed by hand it is the live one"


def read_variables(
    spec: StackSpec, file: Path, path: str = os.environ["PATH"]
) -> subprocess.CompletedProcess[str]:
    """The lines of a job that read its file of variables, and what a rank would then see."""
    text = render_sbatch(spec, replace(JOB, environment_file=str(file)))
    lines = text[text.index("environment_file=") : text.index('\nown_folder "')]
    script = f"set -euo pipefail\n{lines}env"
    return subprocess.run(
        ["bash", "-c", script],
        env={"SOPERATOR_JOB": "train", "PATH": path},
        capture_output=True,
        text=True,
    )


def test_variables_are_of_the_file_that_was_looked_at(spec: StackSpec, tmp_path: Path) -> None:
    """Whoever owns its folder exchanges it between the look and the reading."""
    file, tools = tmp_path / "mine.env", tmp_path / "bin"
    file.write_text("HF_TOKEN=mine\n")
    file.chmod(0o600)
    tools.mkdir()
    stat = tools / "stat"
    stat.write_text(
        f'#!/bin/bash\n{shutil.which("stat")} "$@"; rm {file}; echo WANDB_MODE=theirs > {file}\n'
    )
    stat.chmod(0o700)
    seen = read_variables(spec, file, path=f"{tools}:{os.environ['PATH']}").stdout.splitlines()
    assert "HF_TOKEN=mine" in seen
    assert "WANDB_MODE=theirs" not in seen


def test_variables_come_out_of_a_file_of_the_user_and_are_no_text_of_the_job(
    spec: StackSpec, tmp_path: Path
) -> None:
    file = tmp_path / "of me.env"
    file.write_text("# mine\n\nHF_TOKEN=hf_x=$(touch here) 'y'\nWANDB_MODE=offline")
    file.chmod(0o600)
    seen = read_variables(spec, file).stdout.splitlines()
    assert "HF_TOKEN=hf_x=$(touch here) 'y'" in seen
    assert "WANDB_MODE=offline" in seen
    assert "hf_x" not in render_sbatch(spec, replace(JOB, environment_file=str(file)))


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        (None, 0o600, "no such file"),
        ("A=1", 0o640, "is not of this user with mode 600"),
        ("export A=1", 0o600, "has a line that is not NAME=value"),
        ("LD_PRELOAD=/x.so", 0o600, "LD_PRELOAD cannot be set"),
        ("BASH_ENV=/x", 0o600, "BASH_ENV cannot be set"),
        ("SOPERATOR_PYTHON=/x", 0o600, "SOPERATOR_PYTHON cannot be set"),
    ],
)
def test_a_file_of_variables_that_is_not_closed_or_says_more_ends_the_job(
    spec: StackSpec, tmp_path: Path, text: str | None, mode: int, said: str
) -> None:
    file = tmp_path / "token.env"
    if text is not None:
        file.write_text(text)
        file.chmod(mode)
    done = read_variables(spec, file)
    assert done.returncode == 78
    assert f"soperator: train: {file}: {said}" in done.stderr


def test_the_node_rank_is_read_on_the_node(spec: StackSpec) -> None:
    """Outside single quotes the batch host expands it: both nodes were rank 0 and the job hung."""
    text = render_sbatch(spec, JOB)
    quoted = text.split("'")[1::2]
    assert any("[[ $SLURM_NODEID != 0 ]] || is_host=1" in part for part in quoted)
    assert not any("SLURM_NODEID" in part for part in text.split("'")[0::2])


def test_a_job_without_gpus_on_one_node_has_no_launcher(spec: StackSpec) -> None:
    text = render_sbatch(spec, replace(JOB, nodes=1, gpus_per_node=0))
    assert "workloads.common.launch" not in text
    assert "--gpus-per-node" not in text


def test_a_place_in_soperators_memory_is_the_jobs_own_folder_there(spec: StackSpec) -> None:
    """What lies beside the folders of jobs is never removed, until the prolog drains the node."""
    places = {**spec.storage.places, "scratch": "/mnt/memory", "cache": "/mnt/memory/cache"}
    stack = replace(spec, storage=replace(spec.storage, places=places))
    exports = [
        line.removeprefix("export SOPERATOR_PLACE_")
        for line in render_sbatch(stack, JOB).splitlines()
        if "/mnt/memory" in line and line.startswith("export ")
    ]
    assert exports == [
        "CACHE=/mnt/memory/job_$SLURM_JOB_ID/cache/$user",
        "SCRATCH=/mnt/memory/job_$SLURM_JOB_ID/$user",
    ]
    check = render_sbatch(stack, JOB).partition("srun --overlap")[2].partition("' check ")[0]
    made = [line.split()[1] for line in check.splitlines() if line.startswith('own_folder "')]
    assert made == ['"$SOPERATOR_PLACE_CACHE"', '"$SOPERATOR_PLACE_SCRATCH"']


def test_a_server_is_one_process_with_all_its_gpus(spec: StackSpec) -> None:
    """Slurm's SIGTERM must reach the server itself: a launcher would kill it 30 s later."""
    text = render_sbatch(spec, replace(JOB, nodes=1, module="workloads.serve"))
    assert "#SBATCH --gpus-per-node=2\n" in text
    assert text.rstrip().endswith('"$SOPERATOR_PYTHON" -m workloads.serve --recipe r "$@"')
    assert "workloads.common.launch" not in text


def on_preemptible(spec: StackSpec) -> StackSpec:
    workers = tuple(replace(each, billing=Billing.PREEMPTIBLE) for each in spec.nodes.workers)
    return replace(spec, nodes=replace(spec.nodes, workers=workers))


def test_ranks_on_preemptible_nodes_are_guarded_and_their_drains_looked_at(
    spec: StackSpec,
) -> None:
    text = render_sbatch(on_preemptible(spec), JOB)
    assert "--max-nodes=2 --save-s=60 --preemptible=worker -- \\\n" in text
    assert "--kill-on-bad-exit=1 --quiet bash" in text, "srun says each time that it was woken"
    on_demand = render_sbatch(spec, JOB)
    assert "--preemptible" not in on_demand
    assert "--kill-on-bad-exit=1 bash" in on_demand


@pytest.mark.parametrize("image", [None, "an/image"])
def test_a_server_comes_back_and_on_preemptible_nodes_no_srun_kills_it(
    spec: StackSpec, image: str | None
) -> None:
    server = replace(JOB, nodes=1, module="workloads.serve", save_s=50, container=image)
    text = render_sbatch(spec, server)
    assert "#SBATCH --signal=B:USR1@50\n" in text
    run = text.partition("supervise --serves --max-nodes=1 --save-s=50")[2]
    assert run.startswith(" -- \\\nsrun --ntasks=1 ")
    text = render_sbatch(on_preemptible(spec), server)
    assert "export SOPERATOR_NOTICE_S=50\n" in text
    run = text.partition("supervise --serves --max-nodes=1 --save-s=50")[2]
    # An image is started by srun alone, which the supervisor then keeps asleep by two files.
    plain = '"$SOPERATOR_PYTHON" -m workloads.serve '
    first = plain if image is None else "srun --quiet --ntasks=1 "
    assert run.startswith(f" --preemptible=worker -- \\\n{first}")
    assert ("SOPERATOR_NODES_FILE=$run/.nodes\n" in text) == (image is not None)


@pytest.mark.feature("S003-04")
def test_a_node_gives_the_launcher_the_cpus_of_all_its_ranks(spec: StackSpec) -> None:
    """Slurm's task is the launcher: eight ranks once shared the CPUs that one was to have."""
    text = render_sbatch(spec, replace(JOB, cpus_per_task=16))
    assert "#SBATCH --cpus-per-task=32\n" in text
    assert text.count(" --cpus-per-task=32 ") == 2, "the checks and the launch say it again"
    assert "OMP_NUM_THREADS=16\n" in text


@pytest.mark.feature("S002-03", "S002-63")
def test_a_rank_has_its_gpus_share_of_the_nodes_cpus(spec: StackSpec) -> None:
    """64 vCPUs and 2 GPUs a node: 32 for each GPU, unless the stack says otherwise."""
    half = render_sbatch(spec, replace(JOB, gpus_per_node=1))
    assert "#SBATCH --gpus-per-node=1\n" in half
    assert "#SBATCH --cpus-per-task=32\n" in half
    assert "OMP_NUM_THREADS=32\n" in half
    whole = render_sbatch(spec, JOB)
    assert "#SBATCH --gpus-per-node=2\n" in whole
    assert "#SBATCH --cpus-per-task=64\n" in whole
    no_gpu = render_sbatch(spec, replace(JOB, nodes=1, gpus_per_node=0))
    assert "#SBATCH --cpus-per-task=1\n" in no_gpu
    assert "--gpus-per-node" not in no_gpu


def test_a_server_of_several_gpus_is_one_process_with_all_their_cpus(spec: StackSpec) -> None:
    job = replace(JOB, nodes=1, module="workloads.serve", cpus_per_task=16)
    assert "OMP_NUM_THREADS=32\n" in render_sbatch(spec, job)


@pytest.mark.feature("S000-17", "S000-62")
def test_a_server_in_an_image_has_the_jails_places_and_the_images_python(spec: StackSpec) -> None:
    """Pyxis gives the image's own values of exported variables, unless they are named."""
    server = replace(JOB, nodes=1, gpus_per_node=1, module="workloads.serve")
    plain = render_sbatch(spec, server).splitlines()
    text = render_sbatch(spec, replace(server, container="vllm/vllm-openai:v0.33.0")).splitlines()
    *_, last = text
    words = shlex.split(last)
    assert words[words.index("$SOPERATOR_PYTHON") :] == shlex.split(plain[-1])[-6:]
    assert "--container-image=vllm/vllm-openai:v0.33.0" in words
    assert "--container-workdir=$code" in words
    assert "--container-env=PYTHONPATH,OMP_NUM_THREADS" in words
    assert "--no-container-entrypoint" in words
    (mounts,) = [word.partition("=")[2] for word in words if word.startswith("--container-mounts")]
    bound = [each.split(":") for each in mounts.split(",")]
    assert all(source == target for source, target in bound)
    for path in (*spec.storage.places.values(), spec.code_path):
        assert any(Path(path).is_relative_to(target) for _, target in bound), path
    assert "export SOPERATOR_PYTHON=python3" in text
    assert any("SOPERATOR_PYTHON is missing" in line for line in plain)
    assert not any("SOPERATOR_PYTHON is missing" in line for line in text)
    (check,) = [line for line in text if line.startswith("srun --overlap")]
    assert "--container" not in check


@pytest.mark.feature("S000-36", "S002-39")
def test_infiniband_is_off_only_where_the_nodeset_has_no_fabric(spec: StackSpec) -> None:
    (worker,) = spec.nodes.workers
    fabric = replace(worker, infiniband_fabric="fabric-3")
    on_fabric = replace(spec, nodes=replace(spec.nodes, workers=(fabric,)))
    text = render_sbatch(spec, JOB)
    assert " NCCL_IB_DISABLE=1" in text
    assert " NCCL_SOCKET_IFNAME='^docker0,lo' " in text, "no port of a fabric is named either"
    assert "TORCH_NCCL" not in text, "a published launcher set these: no library reads them"
    assert "NCCL_IB_DISABLE" not in render_sbatch(on_fabric, JOB)


@pytest.mark.feature("S003-28", "S003-32")
def test_an_elastic_job_asks_for_a_range_of_nodes_and_outlives_lost_ones(spec: StackSpec) -> None:
    """A published launcher lost the whole job with one node: no --no-kill, one size only."""
    text = render_sbatch(spec, replace(JOB, nodes=4, least_nodes=3))
    assert " --max-nodes=4 " in text
    accept = replace(JOB, nodes=4, least_nodes=3, module="workloads.accept")
    assert ' --max-nodes="$SLURM_JOB_NUM_NODES" ' in render_sbatch(spec, accept)
    assert "#SBATCH --nodes=3-4\n" in text
    assert "#SBATCH --no-kill\n" in text
    assert "#SBATCH --ntasks-per-node" not in text, "Slurm would give the fewest nodes only"
    assert "--kill-on-bad-exit=0 --no-kill bash" in text
    assert "SOPERATOR_MIN_NODES=3 SOPERATOR_MAX_NODES=4" in text
    # One --rdzv-conf: of two, torchrun keeps the last.
    assert text.count("--rdzv-conf") == 1
    # `ps` and `scontrol` show command lines and the script's text to others: the key is in neither.
    keyed = [line.split()[0] for line in text.splitlines() if "RDZV_KEY" in line]
    assert keyed == ["SOPERATOR_RDZV_KEY=$(od", "export"]


def test_a_job_of_one_size_ends_with_its_first_bad_task(spec: StackSpec) -> None:
    text = render_sbatch(spec, JOB)
    assert "#SBATCH --nodes=2\n" in text
    assert "--no-kill" not in text
    assert "--kill-on-bad-exit=1 bash" in text


@pytest.mark.feature("S003-32")
def test_the_batch_process_is_told_in_time_to_save_and_is_no_shell(spec: StackSpec) -> None:
    """bash runs a trap only after its child has ended: the signal would come too late."""
    text = render_sbatch(spec, replace(JOB, save_s=300))
    assert "#SBATCH --signal=B:USR1@300\n" in text
    assert 'exec "$SOPERATOR_PYTHON" -m workloads.common.supervise' in text
    assert "#SBATCH --requeue\n" in text


@pytest.mark.feature("S003-45", "S003-47")
def test_libraries_keep_what_they_fetch_in_the_place_cache_and_scratch_on_the_nodes_disk(
    public_key_file: Path,
) -> None:
    spec = load_stack("h200-elastic")
    text = render_sbatch(spec, spec.jobs[0])
    assert spec.storage.places["cache"] == "/mnt/training-data/cache"
    assert "export HF_HOME=$SOPERATOR_PLACE_CACHE/huggingface\n" in text
    assert "export TMPDIR=/mnt/scratch/tmp\n" in text
    without = {name: path for name, path in spec.storage.places.items() if name != "cache"}
    (worker,) = spec.nodes.workers
    bare = replace(
        spec,
        storage=replace(spec.storage, places=without),
        nodes=replace(spec.nodes, workers=(replace(worker, local_disks=()),)),
    )
    text = render_sbatch(bare, spec.jobs[0])
    assert "HF_HOME" not in text
    assert "TMPDIR" not in text


@pytest.mark.feature("S001-88", "S003-34")
def test_declared_variables_come_after_the_derived_ones_and_win(spec: StackSpec) -> None:
    job = replace(JOB, environment={"NCCL_IB_DISABLE": "0", "NCCL_DEBUG": "INFO"})
    text = render_sbatch(spec, job)
    declared = "export NCCL_DEBUG=INFO NCCL_IB_DISABLE=0 "
    assert f"{declared}SOPERATOR_DECLARED='NCCL_DEBUG NCCL_IB_DISABLE'\n" in text
    assert text.index("NCCL_IB_DISABLE=1") < text.index("NCCL_IB_DISABLE=0")


@pytest.mark.feature("S000-125", "S002-63")
def test_memory_goes_with_the_gpus_that_a_job_asks_for(spec: StackSpec) -> None:
    """2 GPUs of a 2-GPU node are all that slurmd offers there: 384 GiB less what the node needs."""
    (worker,) = spec.nodes.workers
    assert worker.preset == "2gpu-64vcpu-384gb"
    whole, half = render_sbatch(spec, JOB), render_sbatch(spec, replace(JOB, gpus_per_node=1))
    assert "#SBATCH --mem=349184M\n" in whole
    assert "#SBATCH --mem=174592M\n" in half
    assert "--mem" not in render_sbatch(spec, replace(JOB, gpus_per_node=0))


@pytest.mark.feature("S000-37")
def test_every_node_must_see_the_first_nodes_checkpoints(spec: StackSpec, tmp_path: Path) -> None:
    assert "SHARED_MARK=$(mktemp $SOPERATOR_PLACE_CHKPT/" in render_sbatch(spec, JOB)
    assert "mktemp" not in render_sbatch(spec, replace(JOB, nodes=1))
    mark = tmp_path / "mark"
    words = ["bash", "-c", check_script(JOB)]
    here = {
        "PATH": os.environ["PATH"],
        "SOPERATOR_PYTHON": sys.executable,
        "SOPERATOR_SHARED_MARK": str(mark),
    }
    elsewhere = subprocess.run(words, env=here, capture_output=True, text=True)
    assert elsewhere.returncode == 78
    assert f"{tmp_path} is not the folder that the first node sees" in elsewhere.stderr
    mark.touch()
    assert subprocess.run(words, env=here).returncode == 0


@pytest.mark.feature("S000-37")
@pytest.mark.parametrize("place", ["data", "model", "chkpt", "results"])
def test_a_node_without_one_of_the_places_is_refused_with_its_path(
    tmp_path: Path, place: str
) -> None:
    here = {"PATH": os.environ["PATH"], "SOPERATOR_PYTHON": sys.executable}
    for name in ("data", "model", "chkpt", "results"):
        (tmp_path / name).mkdir()
        here[f"SOPERATOR_PLACE_{name.upper()}"] = str(tmp_path / name)
    words = ["bash", "-c", check_script(JOB)]
    assert subprocess.run(words, env=here).returncode == 0
    (tmp_path / place).rmdir()
    refused = subprocess.run(words, env=here, capture_output=True, text=True)
    assert refused.returncode == 78
    assert f"{tmp_path / place} cannot be " in refused.stderr


@pytest.mark.feature("S000-37")
def test_no_rank_is_launched_before_each_node_has_looked_at_its_mounts_and_places(
    spec: StackSpec, tmp_path: Path
) -> None:
    """The script as Slurm runs it from its checks on, srun on each of two nodes in turn."""
    text = render_sbatch(spec, JOB)
    checks = text[text.index("# Every node must see") :]
    programs = {
        "srun": 'while [ "$1" != bash ]; do shift; done\nfor _ in 0 1; do "$@" || exit; done',
        "mountpoint": f'echo "$2" >> {tmp_path}/asked; [ ! -e {tmp_path}/unmounted ]',
        "scontrol": "echo worker-0",
        "python": f'echo "$*" >> {tmp_path}/launched',
    }
    for name, body in programs.items():
        program = tmp_path / "bin" / name
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    places = {name: tmp_path / name for name in ("data", "model", "chkpt", "results", "scratch")}
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "SOPERATOR_PYTHON": str(tmp_path / "bin" / "python"),
        "SOPERATOR_JOB": "train",
        "SLURM_JOB_NODELIST": "worker-[0-1]",
        **{f"SOPERATOR_PLACE_{name.upper()}": str(path) for name, path in places.items()},
    }
    for path in places.values():
        path.mkdir()

    def run() -> tuple[int, str]:
        words = ["bash", "-euo", "pipefail", "-c", f"inputs=0 run={tmp_path}\n{checks}"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True)
        return done.returncode, done.stderr

    (tmp_path / "unmounted").touch()
    code, said = run()
    assert (code, "is not mounted" in said) == (78, True), said
    (tmp_path / "unmounted").unlink()
    places["model"].rmdir()
    code, said = run()
    assert (code, f"{places['model']} cannot be read" in said) == (78, True), said
    assert not (tmp_path / "launched").exists()
    places["model"].mkdir()
    (tmp_path / "asked").unlink()
    assert run() == (0, "")
    assert "workloads.common.supervise" in (tmp_path / "launched").read_text()
    mounts = (tmp_path / "asked").read_text().split()
    assert {each: mounts.count(each) for each in mounts} == dict.fromkeys(
        ("/home", "/mnt/data", "/mnt/model", "/mnt/chkpt", "/mnt/memory"), 2
    ), "each node looks at each mount that holds a place or the code"


@pytest.mark.feature("S000-35", "S002-02", "S003-53")
def test_the_launchers_of_all_nodes_meet_on_the_first_as_one_run(tmp_path: Path) -> None:
    """A launcher of one node would train a model of its own, and so would each of the others."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    python.chmod(0o755)
    told: list[list[str]] = []
    for node in (0, 1):
        environment = {
            "PATH": os.environ["PATH"],
            "SOPERATOR_PYTHON": str(python),
            "SOPERATOR_MIN_NODES": "2",
            "SOPERATOR_RANKS_PER_NODE": "8",
            "SOPERATOR_RESTARTS": "3",
            "SLURM_NNODES": "2",
            "SLURM_NODEID": str(node),
            "SLURM_JOB_ID": "12",
            "SLURMD_NODENAME": f"worker-{node}",
            "MASTER_ADDR": "worker-0",
            "MASTER_PORT": "29500",
        }
        words = ["bash", "-c", shell_file("launch"), "launch", "workloads.train"]
        done = subprocess.run(words, env=environment, capture_output=True, text=True, check=True)
        told.append(done.stdout.splitlines())
    for node, words in enumerate(told):
        assert {"--nnodes=2:2", "--nproc-per-node=8", "--max-restarts=3", "--rdzv-id=12.0"} <= {
            *words
        }
        assert {"--rdzv-backend=c10d", "--rdzv-endpoint=worker-0:29500"} <= {*words}
        (conf,) = [word for word in words if word.startswith("--rdzv-conf=")]
        assert f"is_host={1 - node}," in conf
        assert words[-3:] == [f"--local-addr=worker-{node}", "-m", "workloads.train"]


@pytest.mark.feature("S000-37")
def test_a_node_that_reads_another_data_set_or_model_is_refused_before_ranks_start(
    spec: StackSpec, tmp_path: Path
) -> None:
    """The places were looked at and not what the recipe names in them: ranks met without it."""
    data, model = tmp_path / "data" / "sets", tmp_path / "model" / "tiny"
    for path, text in ((data / "manifest.json", "{}"), (model / "config.json", "{}")):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    (tmp_path / "results").mkdir()
    (tmp_path / "recipe.json").write_text(
        '{"model": "tiny", "train": {"dataset": "none", "max_steps": 1, "learning_rate": 0.1}}'
    )
    job = replace(JOB, recipe=str(tmp_path / "recipe.json"), args=("--set", "train.dataset=sets"))
    places = ("DATA", "MODEL", "RESULTS")
    environment = {
        **os.environ,
        **{f"SOPERATOR_PLACE_{name}": str(tmp_path / name.lower()) for name in places},
        "SLURM_JOB_ID": "12",
        "SOPERATOR_PYTHON": sys.executable,
        "SOPERATOR_JOB": "train",
    }

    def run(script: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            ["bash", "-c", script],
            cwd=CHECKOUT,
            env={**environment, **more},
            capture_output=True,
            text=True,
        )

    lines = render_sbatch(spec, job).splitlines()
    named = lines[lines.index("inputs=0") : lines.index("export SOPERATOR_INPUTS") + 1]
    first = "\n".join([*named, 'echo "$inputs$SOPERATOR_INPUTS"'])
    inputs = run(first).stdout.strip()
    assert inputs.startswith('0{"')
    here = {"SOPERATOR_INPUTS": inputs.removeprefix("0")}
    assert run(check_script(job), **here).returncode == 0
    (model / "config.json").write_text('{"a": 1}')
    (data / "manifest.json").unlink()
    data.rmdir()
    refused = run(check_script(job), **here)
    assert refused.returncode == 65
    assert f"{model} on " in refused.stderr
    assert "has other files than on the first node" in refused.stderr
    assert f"{data} is not on " in refused.stderr
    # No rank has run, and still the run record says why.
    record = json.loads((tmp_path / "results" / "12" / "run_record.json").read_text())
    assert (record["outcome"], record["exit_code"]) == ("FAIL", 65)
    assert record["recipe"] == job.recipe
    assert f"{model} on " in record["reason"]
    (refusal,) = [line for line in lines if line.startswith("(( inputs == 0 ))")]
    told = run(f"{first}; {refusal}")
    assert told.returncode == 65
    assert "data 'sets' was not found" in told.stderr


@pytest.mark.feature("S001-85")
def test_a_job_ends_on_a_node_that_lacks_a_mount_and_names_it(tmp_path: Path) -> None:
    program = tmp_path / "mountpoint"
    program.write_text('#!/bin/sh\n[ "$2" != /mnt/shared ]\n')
    program.chmod(0o755)
    environment = {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "SOPERATOR_PYTHON": sys.executable,
        "SOPERATOR_JOB": "train",
    }
    for paths, status in ((["/home"], 0), (["/home", "/mnt/shared", "/mnt/data"], 78)):
        done = subprocess.run(
            ["bash", "-c", check_script(JOB), "check", *paths],
            env=environment,
            capture_output=True,
            text=True,
        )
        assert done.returncode == status
    assert "soperator: train on " in done.stderr
    assert ": /mnt/shared is not mounted: " in done.stderr


@pytest.mark.feature("S001-44")
def test_a_training_job_has_a_log_by_its_number(spec: StackSpec) -> None:
    named = replace(JOB, name="finetune")
    link = "finetune_$SLURM_JOB_ID.log $SOPERATOR_PLACE_LOGS/train_$SLURM_JOB_ID.log || true\n"
    text = render_sbatch(spec, named)
    assert link in text
    (output,) = re.findall(r"^#SBATCH --output=(\S+)$", text, re.MULTILINE)
    written = output.replace("%u", "me").replace("%x", "finetune").replace("%j", "12")
    places = {"logs": own_place(spec.storage.places["logs"], "me")}
    assert replace(OUTPUTS, places=places).log_path("finetune", "12") == written
    # The log of a job of that name has the name already: a link would lead to itself.
    assert "ln -sfn" not in render_sbatch(spec, replace(JOB, name="train"))
    assert "train_$SLURM" not in render_sbatch(spec, replace(JOB, module="workloads.evaluate"))


@pytest.mark.feature("S002-03", "S002-63")
def test_a_job_asks_for_what_the_smaller_nodes_of_its_partition_have(spec: StackSpec) -> None:
    """Slurm may give it either: 32 CPUs go with a GPU of one, 16 with that of the other."""
    (worker,) = spec.nodes.workers
    other = replace(worker, name="cheap", preset="1gpu-16vcpu-96gb")
    job = replace(JOB, gpus_per_node=1)

    def asked(*workers: WorkerSpec) -> list[str]:
        text = render_sbatch(replace(spec, nodes=replace(spec.nodes, workers=workers)), job)
        return re.findall(r"^#SBATCH --(?:cpus-per-task|mem)=.*", text, re.MULTILINE)

    assert asked(worker, other) == asked(other, worker) == asked(other)
    assert asked(other)[0] == "#SBATCH --cpus-per-task=16"
    assert asked(worker)[0] == "#SBATCH --cpus-per-task=32"
    assert asked(worker)[1] != asked(other)[1]


def test_two_nodesets_in_one_partition_are_told_apart_on_the_node(spec: StackSpec) -> None:
    (worker,) = spec.nodes.workers
    other = replace(worker, name="cheap", preset="1gpu-16vcpu-96gb")
    both = replace(spec, nodes=replace(spec.nodes, workers=(worker, other)))
    text = render_sbatch(both, replace(JOB, gpus_per_node=1))
    assert 'case "${SLURMD_NODENAME%-*}" in' in text
    assert "cheap) export SOPERATOR_PLATFORM=gpu-l40s-d SOPERATOR_PRESET=1gpu-16vcpu-96gb" in text
    # The smaller nodes cannot run two ranks, so they are no candidates.
    assert "cheap" not in render_sbatch(both, JOB)


def test_more_gpus_than_a_node_has_are_refused_with_what_it_has(spec: StackSpec) -> None:
    with pytest.raises(RenderError, match=r"jobs.train.gpus_per_node: 8 .*worker has 2"):
        render_sbatch(spec, replace(JOB, gpus_per_node=8))


@pytest.mark.feature("S002-34")
def test_an_unknown_partition_is_refused_with_the_declared_ones(spec: StackSpec) -> None:
    with pytest.raises(RenderError, match=r"'gpu' is not a partition \(has: main, hidden\)"):
        render_sbatch(spec, replace(JOB, partition="gpu"))


def test_a_partition_without_fitting_nodesets_is_refused(spec: StackSpec) -> None:
    partition = PartitionSpec(name="main", nodesets=("elsewhere",))
    slurm = replace(spec.slurm, partitions=(partition,))
    with pytest.raises(RenderError, match="no nodeset"):
        render_sbatch(replace(spec, slurm=slurm), JOB)


def test_words_from_the_stack_file_stay_words(spec: StackSpec) -> None:
    text = render_sbatch(spec, replace(JOB, args=("--note", "a b; $(reboot)")))
    assert "--note 'a b; $(reboot)'" in text


@pytest.mark.feature("S003-74")
def test_the_hash_changes_with_the_code_and_with_a_declared_job(
    spec: StackSpec, tmp_path: Path
) -> None:
    (tmp_path / "workloads").mkdir()
    source = tmp_path / "workloads" / "train.py"
    source.write_text("a")
    first = hash_files(code_files(tmp_path, spec))
    assert hash_files(code_files(tmp_path, spec)) == first
    source.write_text("b")
    second = hash_files(code_files(tmp_path, spec))
    assert second != first
    job = replace(spec.jobs[0], time_limit="00:01:00")
    changed = replace(spec, jobs=(job, *spec.jobs[1:]))
    assert hash_files(code_files(tmp_path, changed)) != second


def test_the_hash_ignores_what_python_writes_beside_the_code(
    spec: StackSpec, tmp_path: Path
) -> None:
    (tmp_path / "workloads" / "__pycache__").mkdir(parents=True)
    (tmp_path / "workloads" / "train.py").write_text("a")
    first = hash_files(code_files(tmp_path, spec))
    (tmp_path / "workloads" / "__pycache__" / "train.pyc").write_bytes(b"x")
    assert hash_files(code_files(tmp_path, spec)) == first


def test_the_hash_does_not_depend_on_where_a_byte_stands() -> None:
    assert hash_files({"ab": b"c"}) != hash_files({"a": b"bc"})


def test_equal_files_pack_to_equal_bytes() -> None:
    files = {"jobs/a": b"1", "workloads/b.py": b"2"}
    assert pack(files) == pack(dict(reversed(files.items())))


def test_a_folder_without_workloads_is_not_a_checkout(spec: StackSpec, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="run this in a checkout"):
        code_files(tmp_path, spec)


def test_a_load_test_knows_the_chat_and_leaves_its_node_memory_for_the_server(
    spec: StackSpec,
) -> None:
    text = render_sbatch(spec, replace(JOB, nodes=1, gpus_per_node=0, module="workloads.load"))
    (line,) = [each for each in text.splitlines() if "SOPERATOR_CHAT_PROFILE" in each]
    (word,) = shlex.split(line.removeprefix("export "))
    assert json.loads(word.partition("=")[2]) == chat_profile(spec)
    assert chat_profile(spec)["context_tokens"] == spec.chat.context_tokens
    assert "#SBATCH --mem=8192M" in text
    assert text.rstrip().endswith('"$SOPERATOR_PYTHON" -m workloads.load --recipe r "$@"')


def test_results_of_another_clusters_job_are_not_written_over(
    spec: StackSpec, tmp_path: Path
) -> None:
    """Slurm counts from 1 again on a new cluster; a requeued job goes on in its own folder."""
    text = render_sbatch(spec, spec.jobs[0])
    start = text.index("run=$SOPERATOR_PLACE_RESULTS")
    lines = text[start : text.index("\nfi\n", start) + 4]
    results = tmp_path / "results"
    record = results / "12" / "run_record.json"

    def begin(**environment: str) -> list[str]:
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("earlier")
        known = {"SOPERATOR_PLACE_RESULTS": str(results), "SLURM_JOB_ID": "12", **environment}
        subprocess.run(["bash", "-euc", lines], env={**os.environ, **known}, check=True)
        return sorted(path.name for path in results.iterdir())

    assert begin(SLURM_RESTART_COUNT="1") == ["12"]
    (kept,) = begin()
    assert kept.startswith("12.of-another-cluster-")
    assert (results / kept / "run_record.json").read_text() == "earlier"


FOREIGN = {
    "a folder": "mkdir 12",
    "a folder with a record": "mkdir 12; echo {} > 12/run_record.json",
    "a link to root's": "ln -s ../../mine 12",
    "a link to nothing": "ln -s nowhere 12",
    "a file": "touch 12",
}


@pytest.mark.parametrize("made", FOREIGN)
def test_a_result_folder_that_another_user_made_before_ends_the_job(
    spec: StackSpec, neighbour: Neighbour, made: str
) -> None:
    """Job ids count up: who may write to the place knows the next ones."""
    text = render_sbatch(spec, spec.jobs[0])
    function = text[text.index("own_folder() {") : text.index("\nset -euo pipefail")]
    start = text.index("run=$SOPERATOR_PLACE_RESULTS")
    lines = text[start : text.index('own_folder "$run"', start) + len('own_folder "$run"')]
    mine = neighbour.folder / "mine"
    mine.mkdir(mode=0o755)
    results = neighbour.folder / "results"
    results.mkdir()
    results.chmod(0o1777)
    neighbour.run(f"cd results; {FOREIGN[made]}")
    before = neighbour.run("find . | sort; ls -ld results/12")
    known = {"SOPERATOR_PLACE_RESULTS": str(results), "SLURM_JOB_ID": "12"}
    words = ["bash", "-euc", f"{function}\n{lines}"]
    done = subprocess.run(words, env={**os.environ, **known}, capture_output=True, text=True)
    assert done.returncode == 78
    assert re.search(
        rf"{results}/12 on \S+: is a .* of nobody, mode .* and has to be a folder of root: ",
        done.stderr,
    )
    assert f"as its owner or root: mv -T {results}/12 {results}/12.other" in done.stderr
    assert neighbour.run("find . | sort; ls -ld results/12") == before, "nothing is touched"
    neighbour.run(f"mv -T {results}/12 {results}/12.other")
    for _ in range(2):  # also of a requeue, which finds its own
        assert subprocess.run(words, env={**os.environ, **known}).returncode == 0
    assert (results / "12").stat().st_uid == 0


@pytest.mark.parametrize(("around", "code"), [("1777", 0), ("755", 78), ("777", 78)])
def test_a_folder_that_another_user_could_exchange_is_not_used(
    spec: StackSpec, neighbour: Neighbour, around: str, code: int
) -> None:
    """On a node's own disk: whoever owns the folder around one's own moves it away later."""
    text = render_sbatch(spec, spec.jobs[0])
    function = text[text.index("own_folder() {") : text.index("\nset -euo pipefail")]
    disk = neighbour.folder / "disk"
    if around == "755":
        neighbour.folder.chmod(0o1777)
        neighbour.run("mkdir disk")
    else:
        disk.mkdir()
        disk.chmod(int(around, 8))
    words = ["bash", "-euc", f"{function}\nown_folder {disk}/me"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    if code:
        assert f"{disk} on " in done.stderr
        assert "has to be of root" in done.stderr
    else:
        assert (disk / "me").stat().st_mode & 0o777 == 0o700
