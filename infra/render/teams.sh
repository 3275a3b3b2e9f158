# QOS, accounts and who belongs to them: functions of the lines that follow, then finish with what is
# declared. What Slurm has beside it goes where its organization or description says soperator-stack.
# say WORDS asks sacctmgr (a line each, split by |), set_up WORDS changes and ends where it is refused,
# declared "NAME..." NAME, leave ACCOUNT USER takes the user out, and off Slurm without another account.
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
finish() {  # names of declared accounts, and of declared QOS
  for account in $(say list account format=account,organization | sed -n 's/|soperator-stack$//p'); do
    declared "$1" "$account" && continue
    for user in $(say list associations where account="$account" format=user | sort -u); do
      leave "$account" "$user"
    done
    set_up delete account name="$account"
  done
  for qos in $(say list qos format=name,description | sed -n 's/|soperator-stack$//p'); do
    declared "$2" "$qos" || set_up delete qos name="$qos"
  done
  echo "teams: $(echo "$1" | wc -w) accounts, $(echo "$2" | wc -w) QOS declared"
}
