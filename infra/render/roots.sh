# roots PATH [WORDS]: makes the folder root's alone, and says WORDS where others could write into it;
# or says what is in the way there or above it, and fails: whoever can write into one of these can
# exchange what lies below. A sticky folder is no way in: its entries are moved by their owners only,
# and each is looked at.
describe() { stat -c "$1: is a %F of %U, mode %a" "$1" 2>&1; }
roots() {
  roots_path=
  roots_rest=${1#/}/
  while [ -n "$roots_rest" ]; do
    roots_path=$roots_path/${roots_rest%%/*}
    roots_rest=${roots_rest#*/}
    [ -e "$roots_path" ] || [ -L "$roots_path" ] || mkdir "$roots_path"
    roots_owner=$(stat -c %u "$roots_path")
    # Of a link too: whoever made it chose where it leads.
    if { [ "$roots_owner" != 0 ] && [ "$roots_owner" != "$(id -u)" ]; } || [ ! -d "$roots_path" ]; then
      echo "$(describe "$roots_path"), and has to be root's folder; look what is in it, then:" \
        "chown -h root: $roots_path && chmod go-w $roots_path; or: mv -T $roots_path" \
        "$roots_path.other" >&2
      return 1
    fi
    case $roots_path/$(stat -L -c %A "$roots_path") in
      "$1"/* | *[tT] | *d????-??-?) ;;
      *)
        echo "$(describe "$roots_path"), and others may write into it: chmod go-w $roots_path" >&2
        return 1
        ;;
    esac
  done
  if [ $((0$(stat -L -c %a "$1") & 022)) != 0 ]; then
    chmod go-w,-t "$1"
    echo "$1: root's now${2-}"
  fi
}
