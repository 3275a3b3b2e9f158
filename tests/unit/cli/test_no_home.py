"""A user of a container with a number and nothing else: no HOME, no line in passwd, no name."""

import os
import subprocess
import sys

import pytest

NAMELESS = """
import pwd

def nobody(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")

pwd.getpwuid = nobody
from infra.cli.main import app
app()
"""
NAMES = {"HOME", "LOGNAME", "USER", "LNAME", "USERNAME"}


def said(*words: str, **more: str) -> tuple[int, str]:
    environ = {name: value for name, value in os.environ.items() if name not in NAMES}
    done = subprocess.run(
        [sys.executable, "-c", NAMELESS, *words],
        env={**environ, **more}, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    "words", [("env",), ("doctor",), ("cost", "-s", "l40s-dev"), ("status", "-s", "l40s-dev")]
)
def test_who_has_no_home_is_told_to_name_one(words):
    code, told = said(*words)
    assert code == 1
    assert told == (
        f"soperator: HOME: not set, and passwd has no uid {os.geteuid()}; what is kept for you "
        "(cache, keys) has no place: export HOME=FOLDER, one of your own\n"
    )


def test_help_needs_no_home():
    assert said("--help") == (0, "")


def test_with_a_home_alone_a_stack_is_priced_and_a_login_node_is_asked_for(tmp_path):
    home = {"HOME": str(tmp_path)}
    assert said("cost", "-s", "l40s-dev", **home)[0] == 0
    key = tmp_path / "key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    code, told = said("attach", "127.0.0.1:1", "--stack", "lab", "--key", str(key), **home)
    assert code == 1
    assert told.startswith("soperator: 127.0.0.1:1: no SSH server"), told
