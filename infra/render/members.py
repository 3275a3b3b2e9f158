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
    r"""
set -eu
list=$HOME/.MARK-users
failed=
touch "$list"
# A home is its member's, who may have put a link or a pipe wherever root would write: what is read
# or written there is so with the member's own rights, and in a time of its own.
write_keys='
umask 077
given=$(cat)
[ -n "$given" ] || [ -f "$HOME/.ssh/authorized_keys" ] || exit 0
mkdir -p "$HOME/.ssh"
cd "$HOME/.ssh"
chmod 700 .
new=$(mktemp authorized_keys.XXXXXX)
trap "rm -f $new" EXIT
{
  [ ! -f authorized_keys ] || sed "/^BEGIN\$/,/^END\$/d" authorized_keys
  [ -z "$given" ] || printf "%s\n" "BEGIN" "$given" "END"
} > "$new"
mv -fT "$new" authorized_keys
'
write_keys_as() {
  home=$(getent passwd "$1" | cut -d: -f6)
  timeout 60 setpriv --reuid="$(id -u "$1")" --regid="$(id -g "$1")" --clear-groups \
    env -i HOME="$home" PATH="$PATH" sh -euc "$write_keys" 3<&-
}
# Soperator puts a new user into `sudo`, which asks for no password in the jail, and into `docker`,
# unless told not to (ansible/roles/soperator-scripts, images/jail/init-users/sudoers at 4.1.7).
# It works in ~/.ssh as root, so what an earlier user of that name left there goes aside.
make() {
  if [ -e "/home/$1/.ssh" ] || [ -L "/home/$1/.ssh" ]; then
    mv -T "/home/$1/.ssh" "/home/$1/.ssh.$(date +%Y%m%d%H%M%S)"
  fi
  soperator-createuser "$1" --without-external-ssh --without-sudo --without-docker </dev/null
}
keep() {
  id "$1" >/dev/null 2>&1 || make "$1"
  grep -qx "$1" "$list" || echo "$1" >> "$list"
  write_keys_as "$1" || failed="$failed $1"
}
drop() {
  if id "$1" >/dev/null 2>&1; then
    # Without an entry in passwd no key opens anything: what a member refuses here keeps nobody in.
    write_keys_as "$1" </dev/null || echo "users: $1 keeps ~/.ssh/authorized_keys" >&2
    userdel --force "$1"
  fi
  grep -vx "$1" "$list" > "$list.new" || true
  mv "$list.new" "$list"
}
""".replace("MARK", MARK)
    .replace("BEGIN", _BEGIN)
    .replace("END", _END)
)

_UNWRITTEN: Final = """
if [ -n "$failed" ]; then
  echo "soperator.users:$failed: ~/.ssh/authorized_keys cannot be written with the member's own" \\
    "rights; look what is there (a link, a folder, another owner), put it right, run this again" >&2
  exit 1
fi
"""

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
  accounts=$(say list associations where user="$2" format=account | sort -u)
  other=$(echo "$accounts" | grep -vxF "$1" | head -n 1)
  [ -n "$other" ] || { set_up delete user name="$2"; return; }
  # Slurm 25.11 takes nobody out of the account that is the own default.
  if [ "$(say list user "$2" format=defaultaccount)" = "$1" ]; then
    set_up modify user "$2" set DefaultAccount="$other"
  fi
  set_up delete user name="$2" account="$1"
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
            _UNWRITTEN.strip(),
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
