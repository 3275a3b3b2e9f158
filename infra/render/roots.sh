# roots PATH: makes the folder its user's alone (root's, where root runs this), and says so where
# others could write into it; or says what is in the way there, above it or where a link on the
# way leads, and fails: whoever can write into one of these can exchange what lies below. A sticky
# folder is no way in: its entries are moved by their owners only, and each is looked at. After PATH/.
# nothing is changed, as a folder that others write into is in the way then too.
describe() { stat -c "$1: is a %F of %U, mode %a" "$1" 2>&1; }
roots() {
  roots_me=$(id -un)
  roots_at=
  roots_rest=${1#/}/
  while [ -n "$roots_rest" ]; do
    roots_name=${roots_rest%%/*}
    roots_path=$roots_at/$roots_name
    roots_rest=${roots_rest#*/}
    case $roots_name in
      "" | .) continue ;;
      ..) roots_at=${roots_at%/*} && continue ;;
    esac
    [ -e "$roots_path" ] || [ -L "$roots_path" ] || mkdir "$roots_path" || return 1
    roots_owner=$(stat -c %u "$roots_path")
    # Of a link too: whoever made it chose where it leads.
    if { [ "$roots_owner" != 0 ] && [ "$roots_owner" != "$(id -u)" ]; } || [ ! -d "$roots_path" ]; then
      if [ "$roots_me" = root ]; then
        echo "$(describe "$roots_path"), and has to be root's folder; look what is in it, then:" \
          "chown -h root: $roots_path && chmod go-w $roots_path; or: mv -T $roots_path" \
          "$roots_path.other" >&2
      else
        echo "$(describe "$roots_path"), and has to be of $roots_me or root: choose another folder" >&2
      fi
      return 1
    fi
    if [ -L "$roots_path" ]; then
      roots_name=$(readlink "$roots_path")
      case $roots_name in /*) roots_at= ;; esac
      roots_rest=$roots_name/$roots_rest
      continue
    fi
    [ -z "$roots_rest" ] || case $(stat -c %A "$roots_path") in
      *[tT] | d????-??-?) ;;
      *)
        echo "$(describe "$roots_path"), and others may write into it: chmod go-w $roots_path" >&2
        return 1
        ;;
    esac
    roots_at=$roots_path
  done
  if [ $((0$(stat -L -c %a "$1") & 022)) != 0 ]; then
    chmod go-w,-t "$1"
    echo "$1: $roots_me's now"
  fi
}
