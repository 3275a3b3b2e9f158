"""The script that builds a pod's root: nothing is made in the host's own directories."""

from __future__ import annotations

from pathlib import Path

import jinja2
import pytest

from infra.local.slurm.pod import Mount, PodSpec, marker, render_script


def lines_for(*mounts: Mount) -> list[str]:
    """The script of a pod with these mounts."""
    pod = PodSpec(name="worker-0", argv=("slurmd", "-D"), jail=Path("/s/jail"), mounts=mounts)
    return render_script(pod, Path("/s/slurm")).splitlines()


ROOT = "/s/slurm/pods/worker-0/root"


def test_the_host_is_read_only_in_the_pod() -> None:
    lines = lines_for()
    assert f"mkdir -p {ROOT}/usr && mount --rbind /usr {ROOT}/usr" in lines
    assert f"mount -o remount,bind,ro {ROOT}/usr" in lines


def test_homes_and_mounts_come_from_the_jail() -> None:
    lines = lines_for()
    for path in ("/home", "/mnt", "/root"):
        assert f"mount --bind /s/jail{path} {ROOT}{path}" in lines
        assert not any(line.startswith(f"mount --rbind {path} ") for line in lines)


def test_a_mount_point_that_the_host_lacks_gets_its_parent_from_the_jail() -> None:
    venv = Mount(path="/opt/no-such-folder/venv", source=Path("/s/venv"), read_only=True)
    lines = lines_for(venv)
    assert f"mount --bind /s/jail/opt {ROOT}/opt" in lines
    assert not any("--rbind /opt " in line for line in lines)
    assert f"mount --bind /s/venv {ROOT}/opt/no-such-folder/venv" in lines
    assert f"mount -o remount,bind,ro {ROOT}/opt/no-such-folder/venv" in lines


def test_a_new_top_level_folder_touches_no_host_folder() -> None:
    lines = lines_for(Mount(path="/no-such-data", source=Path("/s/data")))
    assert f"mkdir -p {ROOT}/no-such-data" in lines
    assert "mkdir -p /no-such-data" not in lines


def test_outer_mounts_come_before_inner_ones() -> None:
    lines = lines_for(
        Mount(path="/mnt/a/b", source=Path("/s/b")), Mount(path="/mnt/a", source=Path("/s/a"))
    )
    outer = lines.index(f"mount --bind /s/a {ROOT}/mnt/a")
    assert outer < lines.index(f"mount --bind /s/b {ROOT}/mnt/a/b")


def test_a_memory_mount_has_its_size() -> None:
    line = f"mount -t tmpfs -o mode=1777,size=1024 tmpfs {ROOT}/mnt/memory"
    assert line in lines_for(Mount(path="/mnt/memory", tmpfs_bytes=1024))


def test_the_daemon_replaces_the_script() -> None:
    assert lines_for()[-1].startswith("exec env ")
    assert lines_for()[-1].endswith(" slurmd -D")


def test_pods_of_two_state_folders_have_different_markers() -> None:
    assert marker(Path("/a"), "login-0") != marker(Path("/b"), "login-0")


def test_the_template_is_compiled_once_for_all_pods(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiling it takes 30 times as long as filling it in."""
    lines_for()
    monkeypatch.setattr(jinja2.Environment, "compile", None)
    assert lines_for()
