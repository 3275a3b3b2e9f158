"""Shell text that makes users, Slurm accounts and QOS as declared, and removes what no longer is.

Each run compares with what is there, so a lost state file or a second run changes nothing. What
this program made is marked: users in a list in root's home, accounts by their organization, QOS by
their description; whatever has no mark is left alone. Pure: infra/components/login.py runs it.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import Final

from stacks.slurm_spec import AccountSpec, QosSpec
from stacks.soperator_spec import UserSpec
from stacks.spec import StackSpec

MARK: Final = "soperator-stack"
_BEGIN: Final = f"# {MARK} begin"
_END: Final = f"# {MARK} end"
_NORMAL: Final = "normal"
_NO_LIMIT: Final = "-1"

_USERS: Final = (
    """
set -eu
list=$HOME/.MARK-users
touch "$list"
home_of() { getent passwd "$1" | cut -d: -f6; }
without_ours() { [ ! -f "$1" ] || sed '/^BEGIN$/,/^END$/d' "$1"; }
keep() {
  id "$1" >/dev/null 2>&1 || soperator-createuser "$1" --without-external-ssh </dev/null
  grep -qx "$1" "$list" || echo "$1" >> "$list"
  keys=$(home_of "$1")/.ssh/authorized_keys
  mkdir -p "${keys%/*}"
  { without_ours "$keys"; echo 'BEGIN'; cat; echo 'END'; } > "$keys.new"
  chmod 700 "${keys%/*}"
  chmod 600 "$keys.new"
  chown -R "$1:" "${keys%/*}"
  mv "$keys.new" "$keys"
}
drop() {
  keys=$(home_of "$1")/.ssh/authorized_keys
  if [ -f "$keys" ]; then without_ours "$keys" > "$keys.new"; mv "$keys.new" "$keys"; fi
  if id "$1" >/dev/null 2>&1; then userdel --force "$1"; fi
  grep -vx "$1" "$list" > "$list.new" || true
  mv "$list.new" "$list"
}
""".replace("MARK", MARK)
    .replace("BEGIN", _BEGIN)
    .replace("END", _END)
)

_TEAMS: Final = """
set -eu
say() { sacctmgr --noheader --parsable2 "$@" </dev/null; }
set_up() {
  out=$(sacctmgr --immediate "$@" </dev/null 2>&1) && return
  echo "sacctmgr $*: $out" >&2
  exit 1
}
has_qos() { say list qos format=name | grep -qx "$1"; }
has_account() { say list account format=account | grep -qx "$1"; }
has_user() { say list associations where account="$1" user="$2" format=user | grep -qx "$2"; }
declared() { case " $1 " in *" $2 "*) return 0 ;; esac; return 1; }
leave() {
  if [ "$(say list associations where user="$2" format=account | sort -u | wc -l)" -gt 1 ]; then
    set_up delete user name="$2" account="$1"
  else
    set_up delete user name="$2"
  fi
}
""".strip()


def users_script(spec: StackSpec) -> str:
    """Makes declared users with their keys; one that is gone loses entry, and its files stay."""
    users = spec.soperator.users
    lines = [_keep(user) for user in users]
    names = shlex.quote(" ".join(user.name for user in users))
    return "\n".join(
        [
            _USERS.strip(),
            *lines,
            "while read -r name <&3; do",
            f'  case " "{names}" " in *" $name "*) ;; *) drop "$name" ;; esac',
            'done 3< "$list"',
            f'echo "users: {len(users)} declared"',
        ]
    )


def teams_script(spec: StackSpec) -> str:
    """Makes declared QOS, accounts and who belongs to them; removes marked ones that are gone."""
    slurm = spec.slurm
    lines = [_TEAMS]
    for qos in slurm.qos:
        lines += _qos(qos)
    for account in slurm.accounts:
        lines += _account(account)
    lines += _defaults(slurm.accounts)
    lines += [_leavers(account) for account in slurm.accounts]
    accounts = shlex.quote(" ".join(account.name for account in slurm.accounts))
    names = shlex.quote(" ".join(qos.name for qos in slurm.qos))
    lines.append(
        f"""
for account in $(say list account format=account,organization | sed -n 's/|{MARK}$//p'); do
  declared {accounts} "$account" && continue
  for user in $(say list associations where account="$account" format=user | sort -u); do
    leave "$account" "$user"
  done
  set_up delete account name="$account"
done
for qos in $(say list qos format=name,description | sed -n 's/|{MARK}$//p'); do
  declared {names} "$qos" || set_up delete qos name="$qos"
done
echo "teams: {len(slurm.accounts)} accounts, {len(slurm.qos)} QOS declared"
""".strip()
    )
    return "\n".join(lines)


def _keep(user: UserSpec) -> str:
    keys = "\n".join(user.ssh_public_keys)
    return f"keep {shlex.quote(user.name)} <<'KEYS'\n{keys}\nKEYS"


def _qos(qos: QosSpec) -> list[str]:
    limits = {
        "Priority": str(qos.priority),
        "MaxWall": qos.max_wall or _NO_LIMIT,
        "GrpTRES": f"gres/gpu={_limit(qos.max_gpus)}",
        "MaxTRESPerUser": f"gres/gpu={_limit(qos.max_gpus_per_user)}",
        "MaxJobsPerUser": _limit(qos.max_jobs_per_user),
    }
    name = shlex.quote(qos.name)
    return [
        f"has_qos {name} || set_up add qos {name} description={MARK}",
        f"set_up modify qos {name} set {_settings(limits)}",
    ]


def _account(account: AccountSpec) -> list[str]:
    allowed = account.qos or (_NORMAL,)
    settings = {
        "Fairshare": str(account.fair_share),
        "GrpTRES": f"gres/gpu={_limit(account.max_gpus)},node={_limit(account.max_nodes)}",
        "GrpJobs": _limit(account.max_jobs),
        "QosLevel": ",".join(allowed),
    }
    name = shlex.quote(account.name)
    lines = [
        f"has_account {name} || set_up add account {name} organization={MARK} description={name}",
        f"set_up modify account {name} set {_settings(settings)}",
        # The default must be among the allowed ones, so it is set after them.
        f"set_up modify account {name} set DefaultQOS={shlex.quote(allowed[0])}",
    ]
    for user in ("root", *account.users):
        one = shlex.quote(user)
        lines.append(f"has_user {name} {one} || set_up add user {one} account={name}")
    return lines


def _defaults(accounts: Iterable[AccountSpec]) -> list[str]:
    """Each user's jobs go to the first account that names it, unless they say another."""
    first: dict[str, str] = {}
    for account in accounts:
        for user in account.users:
            first.setdefault(user, account.name)
    return [
        f"set_up modify user {shlex.quote(user)} set DefaultAccount={shlex.quote(name)}"
        for user, name in first.items()
    ]


def _leavers(account: AccountSpec) -> str:
    name = shlex.quote(account.name)
    members = shlex.quote(" ".join(("root", *account.users)))
    return (
        f"for user in $(say list associations where account={name} format=user | sort -u); do\n"
        f'  declared {members} "$user" || leave {name} "$user"\n'
        "done"
    )


def _settings(values: dict[str, str]) -> str:
    return " ".join(f"{key}={shlex.quote(value)}" for key, value in values.items())


def _limit(count: int | None) -> str:
    return _NO_LIMIT if count is None else str(count)
