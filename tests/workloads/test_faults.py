"""What each fault is called, what is tried again, and when a job saves, requeues and grows."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from workloads.common import record
from workloads.common.exit_codes import ExitCode, HungError, exit_code_of, reason_of
from workloads.common.launch import (
    agent_class,
    cause_of,
    main,
    may_restart,
    say_why,
    shell_status,
)
from workloads.common.supervise import Guard, Job, Supervisor
from workloads.train.loop import Watchdog


class _Rows(torch.utils.data.Dataset[int]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> int:
        os.kill(os.getpid(), signal.SIGKILL)
        return index


def test_a_reader_of_rows_that_dies_has_its_own_code_and_advice() -> None:
    loader = torch.utils.data.DataLoader(_Rows(), num_workers=1)
    with pytest.raises(RuntimeError) as caught:
        next(iter(loader))
    assert exit_code_of(caught.value) is ExitCode.DATA_LOADER
    assert "give the job more memory" in reason_of(caught.value)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (torch.OutOfMemoryError("CUDA out of memory"), ExitCode.OUT_OF_MEMORY),
        (
            RuntimeError("gloo/transport/tcp/pair.cc: Connection closed by peer"),
            ExitCode.DISTRIBUTED,
        ),
        (RuntimeError("gloo/tcp/unbound_buffer.cc: Timed out waiting 30000ms"), ExitCode.HUNG),
        (torch.AcceleratorError("CUDA error: uncorrectable ECC error"), ExitCode.DEVICE),
    ],
)
def test_a_fault_has_its_code_and_says_what_to_change(error: Exception, code: ExitCode) -> None:
    """A published trainer caught RuntimeError and ended with 0."""
    assert exit_code_of(error) is code
    assert "; " in reason_of(error)


@pytest.mark.feature("S003-53")
def test_only_what_may_not_come_again_is_tried_again() -> None:
    again = {ExitCode.DISTRIBUTED, ExitCode.DATA_LOADER, ExitCode.HUNG, ExitCode.DEVICE}
    assert {code for code in ExitCode if may_restart(code)} == again
    assert may_restart(-signal.SIGKILL)


@pytest.mark.feature("S001-38")
def test_a_rank_that_a_signal_ended_is_no_success_of_its_job() -> None:
    found = [shell_status(each) for each in (0, ExitCode.BAD_DATA, -signal.SIGKILL)]
    assert found == [0, 65, 137]


@pytest.mark.parametrize(
    ("status", "ends", "cause"),
    [
        (71, {0: 71, 1: 70}, 1),
        (71, {0: 71, 1: 71}, None),
        (71, {0: 71, 1: 75, 2: 0}, None),
        (71, {0: 71, 1: -signal.SIGTERM}, None),
        (71, {0: 71, 1: -signal.SIGABRT}, None),
        # The kernel's, for memory; a rank that says why is believed first.
        (71, {0: 71, 1: -signal.SIGKILL}, 1),
        (71, {0: 71, 1: -signal.SIGKILL, 2: 70}, 2),
        (76, {0: 76, 1: 70}, None),
    ],
)
def test_a_rank_that_lost_its_peers_is_not_the_cause_where_one_of_them_is(
    status: int, ends: dict[int, int], cause: int | None
) -> None:
    """Out of memory on rank 1 was started again, as rank 0 was seen to end first."""
    assert cause_of(status, ends) == cause


def test_what_an_earlier_start_met_does_not_stand_for_a_rank_that_was_killed_in_a_later_one(
    places: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HUNG was tried again and the next start ran out of memory: the record still said HUNG."""
    monkeypatch.setenv("SLURM_JOB_ID", "13")
    for name in ("SOPERATOR_STARTS", "SOPERATOR_STARTED_S"):
        monkeypatch.setenv(name, "")
    folder = places / "results" / "13"
    record.RunRecord(kind="train", recipe="r", exit_code=ExitCode.HUNG).finish(folder)
    os.utime(folder / "run_record.json", (0, 0))
    agent = agent_class()
    monkeypatch.setattr(agent.__base__, "_start_workers", lambda self, group: {})
    agent._start_workers(agent.__new__(agent), SimpleNamespace(group_rank=1))
    say_why(["-m", "workloads.train", "--recipe", "r"], 1, -signal.SIGKILL)
    assert json.loads((folder / "run_record.json").read_text())["exit_code"] == 137


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([75, 0], ""),
        ([75, None], ""),
        ([75, -signal.SIGTERM], "rank 1 was ended by SIGTERM"),
        ([75, -signal.SIGKILL], "rank 1 was ended by SIGKILL"),
        ([1, 75], "rank 0 ended with 1"),
    ],
)
def test_a_rank_that_was_told_to_stop_and_did_not_end_by_itself_is_named_with_its_end(
    ends: list[int | None], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second signal after the save ends a rank too: that it had not saved is not known."""
    agent = agent_class()
    monkeypatch.setattr(agent.__base__, "_shutdown", lambda self, number: None)
    handlers = {
        rank: SimpleNamespace(proc=SimpleNamespace(returncode=x)) for rank, x in enumerate(ends)
    }
    made = agent.__new__(agent)
    made._pcontext = SimpleNamespace(subprocess_handlers=handlers, close=lambda *_: None)
    made._shutdown()
    assert made.unsure == said


@pytest.mark.feature("S003-51")
def test_a_step_that_stands_ends_the_rank_with_what_it_was_doing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    told: list[HungError] = []
    with Watchdog(0.05, fail=told.append) as watchdog:
        watchdog.beat("step 7")
        watchdog._thread.join(60)  # one that never fails would be waited for without end
    assert told[0].exit_code is ExitCode.HUNG
    assert str(told[0]).startswith("step 7 did not end within 0.05 s")
    assert "test_a_step_that_stands" in capfd.readouterr().err, "the stack shows who waits"


def test_steps_that_end_in_time_leave_the_watchdog_silent() -> None:
    told: list[HungError] = []
    with Watchdog(600, fail=told.append) as watchdog:
        for step in range(3):
            watchdog.beat(f"step {step}")
    assert told == []


def answers(
    state: str = "RUNNING", left: str = "1-00:00:00", nodes: str = ""
) -> Callable[..., str]:
    """Slurm, as far as a supervisor asks it."""

    def ask(*command: str) -> str:
        if command[0] == "sinfo":
            return nodes
        return {"%T": state, "%L": left, "%N": ""}[command[-1]]

    return ask


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """A supervisor takes these for its process, which is pytest's here."""
    former = {n: signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGTERM)}
    yield
    for number, handler in former.items():
        signal.signal(number, handler)


class _Slurm(Job):
    requeued = 0

    def requeue(self) -> bool:
        self.requeued += 1
        return True


def supervisor(tmp_path: Path, code: int, ask: Callable[..., str]) -> tuple[Supervisor, _Slurm]:
    job = _Slurm(id="12", partition="main", ask=ask)
    made = Supervisor(
        job=job,
        command=[sys.executable, "-c", f"import sys; sys.exit({code})"],
        max_nodes=4,
        nodes_file=tmp_path / "nodes",
        exit_file=tmp_path / "exit",
        save_s=120,
        look_every_s=60.0,
    )
    return made, job


@pytest.mark.feature("S003-32")
@pytest.mark.parametrize(
    ("code", "ask", "times"),
    [
        (75, answers(), 1),
        (75, answers(left="UNLIMITED"), 1),
        (75, answers(state="CANCELLED"), 0),
        (75, answers(left="2:30"), 0),
        (72, answers(), 0),
        (0, answers(), 0),
    ],
)
def test_only_a_saved_job_that_slurm_did_not_end_goes_back_into_the_queue(
    tmp_path: Path, code: int, ask: Callable[..., str], times: int
) -> None:
    """A cancelled job must not come back, and a time limit bounds what a job costs."""
    made, job = supervisor(tmp_path, code, ask)
    assert made.run() == code
    assert job.requeued == times


@pytest.mark.parametrize(
    ("code", "ask", "times"),
    [
        (0, answers(), 1),
        (75, answers(), 1),
        (0, answers(state="CANCELLED"), 0),
        (0, answers(left="1:00"), 0),
        (65, answers(), 0),
    ],
)
def test_a_server_that_was_told_to_end_comes_back_unless_it_was_cancelled(
    tmp_path: Path, code: int, ask: Callable[..., str], times: int
) -> None:
    """It had returned every answer, so Slurm called its job COMPLETED, and it stayed away."""
    made, job = supervisor(tmp_path, code, ask)
    made.serves = True
    assert made.run() == code
    assert job.requeued == times


@pytest.mark.parametrize(
    ("said", "code"), [("2026-11-27T08:46:03", 0), ("N/A", 3), ("NOT_SET", 3), ("", 3)]
)
def test_a_server_is_told_when_slurm_makes_room_for_another_job(
    tmp_path: Path, said: str, code: int
) -> None:
    """Of the grace time Slurm tells steps alone; a server that is none took chats until its end."""

    def ask(*command: str) -> str:
        known = {"PreemptTime": said, "%T": "RUNNING", "%L": "1-00:00:00"}
        return known.get(command[-1], "")  # no node leaves

    made, job = supervisor(tmp_path, 0, ask)
    told = "sys.exit(0 if signal.sigtimedwait([signal.SIGUSR1], 4) else 3)"
    program = "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])"
    made.command = [sys.executable, "-S", "-c", f"{program}; {told}"]
    made.serves, made.preemptible = True, ("worker",)
    assert (made.run(), job.requeued) == (code, code == 0)


@pytest.mark.parametrize("of", ["PreemptTime", "worker-0"])
def test_a_server_that_is_told_during_a_look_is_not_told_again(tmp_path: Path, of: str) -> None:
    """The same signal twice is an order to hurry: answers that had time to end were cut."""
    drained = "NodeName=worker-0 Arch=x86_64 State=ALLOCATED+DRAIN ThreadsPerCore=1"

    def ask(*command: str) -> str:
        if command[-1] == of:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.5)
            return drained if of == "worker-0" else "2026-11-27T08:46:03"
        return {"%T": "RUNNING", "%L": "1-00:00:00"}.get(command[-1], "")

    made, job = supervisor(tmp_path, 0, ask)
    told = "wait([signal.SIGUSR1], 4) and not wait([signal.SIGUSR1], 2)"
    program = "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])"
    words = f"{program}; wait = signal.sigtimedwait; sys.exit(0 if {told} else 3)"
    made.command = [sys.executable, "-S", "-c", words]
    made.serves, made.preemptible, made.nodes = True, ("worker",), "worker-0"
    assert (made.run(), job.requeued) == (0, True)


def test_a_drain_and_then_the_node_s_own_signal_are_one_notice(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The second one, of another name, was passed on as the first: answers were cut."""
    drained = "NodeName=worker-0 Arch=x86_64 State=ALLOCATED+DRAIN ThreadsPerCore=1"
    late = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGTERM))
    request.addfinalizer(late.cancel)

    def ask(*command: str) -> str:
        if command[-1] == "worker-0" and (tmp_path / "up").exists():
            late.start()
            return drained
        return {"%T": "RUNNING", "%L": "1-00:00:00"}.get(command[-1], "")

    made, job = supervisor(tmp_path, 0, ask)
    told = "wait([signal.SIGUSR1], 60) and not wait([signal.SIGUSR1], 2)"
    program = "import signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])"
    words = f"{program}; open(sys.argv[1], 'w'); wait = signal.sigtimedwait"
    words = f"{words}; sys.exit(0 if {told} else 3)"
    made.command = [sys.executable, "-S", "-c", words, str(tmp_path / "up")]
    made.serves, made.preemptible, made.nodes = True, ("worker",), "worker-0"
    assert (made.run(), job.requeued) == (0, True)


def test_a_server_in_an_image_is_over_once_it_has_ended_whatever_srun_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """srun waits KillWait for a node that is gone, and the node is gone before that."""
    program = tmp_path / "scancel"
    program.write_text(f"#!/bin/sh\necho 0 > {tmp_path}/exit\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    drained = "NodeName=worker-0 Arch=x86_64 State=ALLOCATED+DRAIN ThreadsPerCore=1"

    def ask(*command: str) -> str:
        if command[-1] == "worker-0":
            return drained if (tmp_path / "nodes").is_file() else ""
        return {"%T": "RUNNING", "%L": "1-00:00:00"}.get(command[-1], "")

    made, job = supervisor(tmp_path, 0, ask)
    words = "import pathlib, sys, time; pathlib.Path(sys.argv[1]).touch(); time.sleep(99)"
    made.command = [sys.executable, "-S", "-c", words, str(tmp_path / "nodes")]
    made.serves, made.preemptible, made.nodes = True, ("worker",), "worker-0"
    began_s = time.monotonic()
    assert (made.run(), job.requeued) == (0, True)
    assert time.monotonic() - began_s < 60


@pytest.mark.parametrize(("num_looks", "is_heard"), [(3, True), (10**9, False)])
def test_a_job_asks_for_its_requeue_once_slurm_has_heard_how_its_step_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_looks: int, is_heard: bool
) -> None:
    """It asked at once, and the accounting took the requeue for one by hand while all ran well."""
    program = tmp_path / "scontrol"
    program.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\n')
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr("workloads.common.supervise._POLL_S", 0.01)
    monkeypatch.setattr("workloads.common.supervise._HEARD_S", 60 if is_heard else 0.1)
    looks: list[tuple[str, ...]] = []

    def ask(*command: str) -> str:
        assert not (tmp_path / "asked").exists()
        looks.append(command)
        return "12.batch" if len(looks) > num_looks else "12.0\n12.batch"

    assert Job(id="12", partition="main", ask=ask).requeue()
    assert (tmp_path / "asked").read_text() == "requeue 12\n"
    assert set(looks) == {("squeue", "-h", "-s", "-j", "12", "-o", "%i")}
    assert (len(looks) == num_looks + 1) is is_heard


@pytest.mark.parametrize("status", [15, 143])
def test_a_rank_that_its_node_ended_before_it_could_hear_is_no_failure(
    tmp_path: Path, status: int
) -> None:
    """Python takes a second to start: SIGTERM of a node that is taken then was a failed job."""
    made, job = supervisor(tmp_path, status, answers())
    assert made.run() == 75
    assert job.requeued == 1


_NODES = """
NodeName=worker-0 Arch=x86_64 CoresPerSocket=1 State=ALLOCATED ThreadsPerCore=1
NodeName=worker-1 Arch=x86_64 CoresPerSocket=1 State=MIXED*+DRAIN ThreadsPerCore=1
NodeName=worker-2 Arch=x86_64 CoresPerSocket=1 State=ALLOCATED+POWERING_DOWN ThreadsPerCore=1
NodeName=steady-0 Arch=x86_64 CoresPerSocket=1 State=ALLOCATED+DRAIN ThreadsPerCore=1
"""


def test_preemptible_nodes_that_slurm_drains_or_switches_off_are_about_to_go() -> None:
    """A node that is billed on demand and drained lets its jobs end."""
    asked: list[tuple[str, ...]] = []

    def ask(*command: str) -> str:
        asked.append(command)
        return _NODES.strip()

    job = Job(id="12", partition="main", ask=ask)
    assert job.leaving_nodes("worker-[0-2],steady-0", {"worker"}) == ["worker-1", "worker-2"]
    assert asked == [("scontrol", "--oneliner", "show", "node", "worker-[0-2],steady-0")]


# Signals its supervisor once that listens, and ends as srun does where no rank takes the signal.
_SIGNALLED_STEP = """
import os, re, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: os._exit(int(sys.argv[1])))
listens = 1 << int(sys.argv[2]) - 1
for _ in range(2000):
    caught = re.search(r"SigCgt:\\s*(\\w+)", open(f"/proc/{os.getppid()}/status").read())
    if int(caught[1], 16) & listens:
        break
    time.sleep(0.01)
else:
    sys.exit("nobody listens")
os.kill(os.getppid(), int(sys.argv[2]))
time.sleep(60)
"""


@pytest.mark.feature("S003-32")
@pytest.mark.parametrize("sent", [signal.SIGUSR1, signal.SIGTERM])
@pytest.mark.parametrize("status", [10, 138])
def test_a_signal_before_a_rank_can_take_it_is_no_failure(
    tmp_path: Path, status: int, sent: int
) -> None:
    """A node that is taken back in the first seconds ended the job as FAILED, signal 10."""
    made, job = supervisor(tmp_path, 0, answers())
    former = {n: signal.getsignal(n) for n in (signal.SIGUSR1, signal.SIGTERM)}
    (tmp_path / "step.py").write_text(_SIGNALLED_STEP)
    made.command = [sys.executable, str(tmp_path / "step.py"), str(status), str(int(sent))]
    try:
        assert made.run() == 75
        assert job.requeued == 1
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


@pytest.mark.feature("S003-28", "S003-30", "S003-50")
@pytest.mark.parametrize(
    ("used", "nodes", "grows"),
    [
        (3, "1 idle", False),
        (3, "4 idle", True),
        (1, "4 idle", True),
        (4, "9 idle", False),
        (3, "4 idle*", False),
        (3, "4 idle~\n2 down*", False),
    ],
)
def test_a_job_grows_when_nodes_that_answer_were_seen_twice(
    tmp_path: Path, used: int, nodes: str, grows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = supervisor(tmp_path, 0, answers(nodes=nodes))
    assert not made.can_grow(), "no ranks run yet"
    (tmp_path / "nodes").write_text(f"{used}\n")
    assert not made.can_grow(), "seen once"
    said: list[str] = []
    monkeypatch.setattr("workloads.common.supervise.log", said.append)
    assert made.can_grow() is grows
    told = f"4 nodes are there again, {used} are in use: saving to use them"
    assert said == ([told] if grows else [])
    made, _ = supervisor(tmp_path, 0, answers(nodes=nodes))
    seen = iter((4, used, 4))
    made.job.num_available_nodes = lambda: next(seen)  # type: ignore[method-assign]
    assert not any(made.can_grow() for _ in range(3)), "one that went again is not counted twice"


@pytest.mark.feature("S003-30", "S003-50")
def test_a_new_start_could_have_idle_nodes_of_its_partition_and_those_that_it_holds() -> None:
    def ask(*command: str) -> str:
        if command[0] == "squeue":
            return "worker-[0-2]"
        of_partition = ("sinfo", "-h", "-p", "main", "-o", "%D %t")
        if command == of_partition:
            return "2 idle\n4 alloc\n1 mix\n8 idle*\n16 idle~"
        assert command == (*of_partition, "-n", "worker-[0-2]")
        return "1 alloc\n1 mix\n1 alloc*"

    assert Job(id="12", partition="main", ask=ask).num_available_nodes() == 4


@pytest.mark.feature("S001-38")
def test_a_launcher_that_was_stopped_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    """COMPLETED and 0 are for jobs that reached their end."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.rendezvous import api as rendezvous
    from torch.distributed.elastic.rendezvous import c10d_rendezvous_backend as backend
    from torch.distributed.launcher import api

    def stopped(_: object) -> None:
        raise SignalException("told to stop", signal.SIGTERM)

    # What the launcher replaces for the rest of its process comes back.
    for place, name in (
        (api, "LocalElasticAgent"),
        (backend, "C10dRendezvousBackend"),
        (rendezvous, "get_free_port"),
    ):
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "0")
    monkeypatch.delenv("SOPERATOR_PLACE_RESULTS", raising=False)
    monkeypatch.setattr("torch.distributed.run.main", stopped)
    former = signal.getsignal(signal.SIGUSR1)
    try:
        assert main([]) == ExitCode.PREEMPTED
    finally:
        signal.signal(signal.SIGUSR1, former)


def test_srun_is_woken_only_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It writes `srun: got SIGCONT` into the job's log each time."""
    monkeypatch.setattr("workloads.common.supervise.time.sleep", lambda _: None)
    sent: list[signal.Signals] = []
    step: Any = SimpleNamespace(send_signal=sent.append)
    nodes, ended = tmp_path / "nodes", tmp_path / "exit"
    nodes.touch()
    on_demand = Guard(step, (), nodes, ended, 10)
    on_demand.rest()
    on_demand.rest()
    assert sent == []
    taken = Guard(step, ("worker",), nodes, ended, 10)
    taken.rest()
    assert sent == [signal.SIGSTOP]
    ended.touch()
    taken.rest()
    taken.rest()
    assert sent == [signal.SIGSTOP, signal.SIGCONT]
