# Shared places that are root's, with a folder in each for every user: place PATH NAME..., then
# finish, which says in one line which of them others could write into until now.
set -eu
umask 022
failed=
moved=
place() {
  place=$1
  shift
  said=$(roots "$place") && moved=$moved${said:+, $place} && roots "$place/users" || {
    failed=1
    return
  }
  chmod 755 "$place/users"
  for each in "$place/users"/*; do
    # Another user may get the number of one that is no more, and with it the files.
    case " $* " in
      *" ${each##*/} "*) ;;
      *) [ ! -e "$each" ] || [ -O "$each" ] || chown -h root: "$each" ;;
    esac
  done
  for name; do
    own=$place/users/$name
    [ -e "$own" ] || [ -L "$own" ] || install -d -m 700 -o "$name" -g "$(id -g "$name")" "$own"
    if [ -L "$own" ] || [ ! -d "$own" ] || [ "$(stat -c %u "$own")" != "$(id -u "$name")" ]; then
      echo "$(describe "$own"), and has to be $name's folder; if these are $name's files:" \
        "chown -R $name: $own; else: mv -T $own $own.other" >&2
      failed=1
    fi
  done
}
finish() {
  [ -z "$moved" ] || echo "${moved#, }: root's now; each user's next files go to users/NAME in each," \
    "and what is there stays (checkpoints are found once root moves them there, with chown -R NAME:)"
  [ -z "$failed" ]
}
