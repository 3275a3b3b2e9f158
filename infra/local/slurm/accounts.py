"""Users of the jail: the account files that all pods share, and the programs that change them.

Every pod has the jail's passwd, group and shadow files mounted over those of this machine, so that
a user who is made on the login node is the same one for slurmctld and every slurmd, and no user of
this machine. A mount keeps the file that it was made with: the programs write in place.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from infra.local.slurm.pod import STATE_PATH

PROGRAMS: Final = f"{STATE_PATH}/bin"
"""Before every other folder on the PATH of the login node."""
_CREATE: Final = "soperator-createuser"
_DELETE: Final = "userdel"
# What both do: work on a copy, which shadow's tools replace file by file, and write it back.
_CHANGE: Final = """#!/bin/sh
set -eu
umask 077
exec 9< /etc/passwd
flock 9
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/etc"
cp /etc/login.defs "$work/etc"  # says that a user's own group goes with the user
for file in passwd group shadow gshadow; do cp -p "/etc/$file" "$work/etc/$file"; done
change() {{ {change}; }}
change "$@"
for file in passwd group shadow gshadow; do cat "$work/etc/$file" > "/etc/$file"; done
{after}
"""
_NEW_HOME: Final = """home=/home/$1
mkdir -p "$home"
cp -rnT /etc/skel "$home"
chown -R "$1:" "$home"
chmod 700 "$home"
"""


def write_programs(shared: Path) -> None:
    """Puts the programs into the shared folder."""
    texts = {
        # No password opens it, and it is not locked: sshd refuses the keys of a locked account.
        _CREATE: _CHANGE.format(
            change='/usr/sbin/useradd --prefix "$work" --no-create-home --user-group '
            '--home-dir "/home/$1" --shell /bin/bash --password \'*\' "$1"',
            after=_NEW_HOME,
        ),
        _DELETE: _CHANGE.format(change='/usr/sbin/userdel --prefix "$work" "$@"', after=""),
    }
    folder = shared / "bin"
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            path.chmod(0o755)
