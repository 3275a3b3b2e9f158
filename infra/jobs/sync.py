"""Sends this checkout's code to the cluster the way `pulumi up` does: one release, then `current`.

Owns how a release arrives over one connection. What it holds is in infra/render/archive.py, how it
becomes the live one in infra/render/login.py.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from infra.jobs.errors import JobsError, last_words
from infra.jobs.slurm import Shell
from infra.render.archive import hash_files, pack
from infra.render.login import activate_script

# Unpacked aside and renamed, so a release is always whole. A folder that was never live may be what
# a killed `pulumi up` left half copied: it is made anew.
_INSTALL = """
set -eu
cd {code_path}
mkdir -p releases
if [ ! -e releases/{hash}.whole ]; then
  rm -rf releases/{hash}.part releases/{hash}
  mkdir releases/{hash}.part
  tar -xz --no-same-owner -C releases/{hash}.part || {{ rm -rf releases/{hash}.part; exit 1; }}
  mv -T releases/{hash}.part releases/{hash}
fi
"""


def send(shell: Shell, code_path: str, files: Mapping[str, bytes]) -> str:
    """Makes the files the live release and returns its hash; sending twice changes nothing."""
    release = hash_files(files)
    install = _INSTALL.format(code_path=shlex.quote(code_path), hash=release)
    result = shell.run(install + activate_script(code_path, release), stdin=pack(files))
    if not result.ok:
        raise JobsError(
            f"{code_path}: the code was not installed: "
            f"{last_words(result.stderr)}; what was live before still is: look at the owner there"
        )
    return release
