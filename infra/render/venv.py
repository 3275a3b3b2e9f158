"""Shell text that makes the jobs' Python environment in the jail, on the login node. Pure.

Owns where versions lie and how one becomes the live one. The environment's name is what its lock
file holds, so a second run finds it made. Does not connect: infra/jobs/venv.py does.
"""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from stacks.errors import UserError
from stacks.spec import StackSpec

PYTHON: Final = "3.11"
"""The Python that requirements-workloads.lock is resolved for (Makefile: LOCK)."""
BOOTSTRAP_LOCK: Final = "bootstrap.lock"
WORKLOADS_LOCK: Final = "requirements-workloads.lock"

# uv's cache is beside the environment, on the same filesystem: files are linked, not copied, and a
# second version of the environment costs what changed. The folder of a version gets its name when
# it is whole. `exit 3`: told apart from a package that was not found.
_MAKE: Final = r"""
set -eu
final={path}
made=$final-{version}
stop() {{ echo "$1" >&2; exit 3; }}
[ -L "$final" ] || [ ! -e "$final" ] ||
  stop "not made by this command: move it away, or declare another python_env_path"
mkdir -p "$(dirname "$final")"
exec 9>"$final.lock"
flock -n 9 || stop "another one is being made; wait for it ($final.lock)"
if [ "$(readlink "$final" || true)" = "$made" ] && [ -x "$made/bin/python" ]; then
  echo "same"
  exit 0
fi
begin=$(date +%s)
if [ ! -x "$made/bin/python" ]; then
  locks=$(mktemp -d)
  trap 'rm -rf "$locks"' EXIT
  tar -xz --no-same-owner -C "$locks"
  export UV_CACHE_DIR=$final.cache UV_NO_PROGRESS=1
  uv=$(command -v uv || true)
  if [ -z "$uv" ]; then
    python3 -m venv "$locks/uv" || stop "apt-get install python3-venv on the login node first"
    "$locks/uv/bin/python" -m pip install --quiet --disable-pip-version-check {pip} \
      --require-hashes -r "$locks/{bootstrap}" >&2
    uv=$locks/uv/bin/uv
  fi
  rm -rf "$made.part"
  "$uv" venv --quiet --relocatable --python {python} "$made.part" >&2
  "$uv" pip sync --quiet {uv} --require-hashes --compile-bytecode \
    --python "$made.part/bin/python" "$locks/{lock}" >&2
  "$uv" pip check --quiet --python "$made.part/bin/python" >&2
  site=$("$made.part/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  # What an editable install leaves too: `import workloads` finds the live release in any shell.
  echo {code}/current >"$site/soperator-workloads.pth"
  rm -rf "$made"
  mv -T "$made.part" "$made"
fi
ln -sfn "$made" "$final.new"
mv -T "$final.new" "$final"
echo "made $(( $(date +%s) - begin )) $(du -sm "$made" | cut -f1)"
""".strip("\n")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSource:
    """Where packages come from; without any value: the index that the login node is set up for."""

    index: str | None = None
    """Address of a package index, or of a mirror, in the place of the default one."""
    extra_index: str | None = None
    """Address of one more index, such as PyTorch's for one CUDA version."""
    wheelhouse: str | None = None
    """Folder of wheels on the cluster; nothing is downloaded then."""

    def __post_init__(self) -> None:
        for option, address in (("--index", self.index), ("--extra-index", self.extra_index)):
            if address is None:
                continue
            parts = urlsplit(address)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise UserError(f"{option} {address}: write https://HOST/PATH")
            if parts.username or parts.password:
                raise UserError(
                    f"{option}: an address with a password in it is seen by everybody in the list "
                    "of processes; put it into ~/.netrc of the login node"
                )
        if self.wheelhouse is not None:
            if not self.wheelhouse.startswith("/"):
                raise UserError(
                    f"--wheelhouse {self.wheelhouse}: give an absolute path on the cluster; "
                    "`soperator push` brings a folder there"
                )
            if self.index or self.extra_index:
                raise UserError(
                    "--wheelhouse: with it no index is asked; leave --index and --extra-index out"
                )

    def pip_options(self) -> str:
        """Options of pip, which installs uv."""
        if self.wheelhouse is not None:
            return f"--no-index --find-links {shlex.quote(self.wheelhouse)}"
        pairs = (("--index-url", self.index), ("--extra-index-url", self.extra_index))
        return " ".join(f"{name} {shlex.quote(value)}" for name, value in pairs if value)

    def uv_options(self) -> str:
        """Options of uv, which installs the rest."""
        if self.wheelhouse is not None:
            return f"--no-index --find-links {shlex.quote(self.wheelhouse)}"
        pairs = (("--default-index", self.index), ("--index", self.extra_index))
        options = [f"{name} {shlex.quote(value)}" for name, value in pairs if value]
        if self.extra_index:
            # Every file is pinned by its hash, so it does not matter which index has it.
            options.append("--index-strategy unsafe-best-match")
        return " ".join(options)


def version_of(lock: bytes) -> str:
    """12 hex digits that change with the lock file and the Python that it is for."""
    return hashlib.sha256(f"python {PYTHON}\n".encode() + lock).hexdigest()[:12]


def venv_script(spec: StackSpec, lock: bytes, source: PackageSource) -> str:
    """Makes `python_env_path` from the lock; stdin: a gzipped tar of it and of uv's own lock.

    Prints `same`, or `made SECONDS MEBIBYTES`; ends with 3 where nothing was tried.
    """
    return _MAKE.format(
        path=shlex.quote(spec.python_env_path),
        version=version_of(lock),
        python=PYTHON,
        bootstrap=BOOTSTRAP_LOCK,
        lock=WORKLOADS_LOCK,
        pip=source.pip_options(),
        uv=source.uv_options(),
        code=shlex.quote(spec.code_path),
    )
