# Users of the login node with their keys: keep NAME < KEYS for each declared one, then finish
# "NAME..." with all of them, which drops those that an earlier run kept. With keys=later it does not
# fail where a member's own files are in the way of keys: a later run of the same does.
set -eu
list=$HOME/.soperator-stack-users
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
  [ ! -f authorized_keys ] || sed "/^# soperator-stack begin\$/,/^# soperator-stack end\$/d" authorized_keys
  [ -z "$given" ] || printf "%s\n" "# soperator-stack begin" "$given" "# soperator-stack end"
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
# Meanwhile the home is root's: a process of that user that still runs would bring it back.
make() {
  made=0
  if [ -d "/home/$1" ]; then
    chown root: "/home/$1"
    chmod u=rwx,go-w "/home/$1"
    if [ -e "/home/$1/.ssh" ] || [ -L "/home/$1/.ssh" ]; then
      mv -T "/home/$1/.ssh" "/home/$1/.ssh.$(date +%Y%m%d%H%M%S%N)"
    fi
  fi
  soperator-createuser "$1" --without-external-ssh --without-sudo --without-docker </dev/null ||
    made=$?
  ! id "$1" >/dev/null 2>&1 || chown "$(id -u "$1"):$(id -g "$1")" "/home/$1"
  return $made
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
finish() {  # NAMES of all declared users
  while read -r name <&3; do
    case " $1 " in *" $name "*) ;; *) drop "$name" ;; esac
  done 3< "$list"
  if [ -n "$failed" ]; then
    echo "soperator.users:$failed: ~/.ssh/authorized_keys cannot be written with the member's own" \
      "rights; look what is there (a link, a folder, another owner), put it right, run this again" >&2
    [ "${keys-}" = later ] || exit 1
  fi
  echo "users: $(echo "$1" | wc -w) declared"
}
