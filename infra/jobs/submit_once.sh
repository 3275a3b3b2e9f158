# One sbatch for one idempotency key, and the record of it in the user's own folder: bash on the login node runs this
# after own_folder.sh and the variables that infra/jobs/submit.py sets. The lock is held by what sbatch still runs, so a
# hung one keeps others out. The record and the plans come on standard input, which is read to its end before every
# exit: else the sender takes it for a lost connection. Exit codes are those of submit.py.
end() {
  local code=$1
  shift
  cat > /dev/null
  [ $# = 0 ] || printf "%s\n" "$*"
  exit "$code"
}

lock() {
  exec 9>> "$own/.submit.lock" && flock -w 60 9 && return
  echo "another submission holds $own/.submit.lock, or it cannot be locked" >&2
  [ ! -e "$record" ] || end 72
  end 74
}

# Sets id to the job that has the key; 1: there is none, 2: Slurm does not answer. Accounting may keep no comments,
# but keeps the line of sbatch (SubmitLine, since 21.08), and some have no accounting at all.
find_job() {
  local queued ended since
  id=$(grep -sxE "[0-9]{1,18}" "$record.id") && return
  queued=$(squeue --all --me --noheader --states=all --format="%F|%k") || return 2
  since=$(TZ=UTC0 date -d "@$(($(stat -c %Y "$record") - 86400))" +%Y-%m-%dT%H:%M:%S)
  ended=$(TZ=UTC0 sacct --user="$(id -un)" --noheader --parsable2 --allocations --name="$name" \
    --format=JobID,Comment,SubmitLine --starttime="$since" 2>&1) || [[ $ended == *"accounting storage"* ]] || {
    echo "$ended" >&2
    return 2
  }
  id=$(printf "%s\n" "$queued" "$ended" | sed -n "s/^\([0-9]\+\)[^|]*|.*$key.*/\1/p" | head -n 1)
  [ -n "$id" ]
}

submit() {
  local code folder group path queued reason comment plan size said status found=
  (own_folder "$own/submissions") || end 77
  lock
  if [ -e "$record" ]; then
    find_job
    case $? in 0) end 0 "$id" ;; 2) end 72 ;; esac
    ! may_come || end 72
  fi
  for code in "${releases[@]}"; do [ ! -e "$code.whole" ] || break; done
  [ -e "$code.whole" ] || end 75 "$(basename "$(readlink "$current")")"
  for folder in "${folders[@]}"; do # Slurm opens the log before the job's first line, and says nothing where it cannot
    [ -d "$folder" ] && [ ! -L "$folder" ] && [ -O "$folder" ] && continue
    stat -c "$folder is a %F of %U, mode %a, and has to be a folder of $(id -un): root moves it away (mv -T $folder \
$folder.other), then pulumi up makes it" "$folder" >&2 || echo "$folder is not there: run pulumi up, or as root: \
install -d -m 700 -o $(id -un) $folder" >&2
    end 77
  done
  [ ! -d "$data" ] || for group in "${reads[@]}"; do # a login node without the place cannot tell
    while read -r -u 3 path; do [ ! -s "$path" ] || continue 2; done 3<<< "$group"
    end 66 "${group%%$'\n'*}"
  done
  if [ -n "$oldest" ]; then
    queued=$(squeue --all --me --noheader --format="%F|%r|%k") || end 1
    while IFS="|" read -r -u 3 id reason comment; do
      [[ $comment != "${key%:*}:"* || ! $id =~ ^[0-9]+$ || 10#$id -lt $oldest ]] || end 76 "$id|$reason|$comment"
    done 3<<< "$queued"
  fi
  take "$record_size" "$record.new" || end 1
  mkdir -p "$own/plans"
  for plan in "${plans[@]}"; do
    take "${plan% *}" "$own/plans/${plan#* }" || end 1
  done
  sync "$record.new" && mv -fT "$record.new" "$record" && cd "$code" || end 1
  said=$("$@" 2> "$record.err")
  status=$?
  cat "$record.err" >&2
  id=$(sed -n '$s/^\([0-9]\+\)\(;.*\)\?$/\1/p' <<< "$said")
  if [ $status != 0 ]; then
    find_job
    case $? in
      0) found=" found" ;;
      1) may_come && end 72
        rm -f "$record" "$record.err"
        end 1 ;;
      2) end 72 ;;
    esac
  fi
  rm -f "$record.err"
  [ -z "$id" ] || { printf "%s\n" "$id" > "$record.new" && mv -fT "$record.new" "$record.id"; }
  end 0 "${id:-$said}$found"
}

# Whether Slurm may still list a job of the record: its sbatch ended less than a minute ago, or was killed, without
# slurmctld's answer. A call of a controller that is busy waits there for longer than sbatch waits for it.
may_come() {
  local ended seconds unanswered="timed out|unable to contact|zero bytes|connection|communication"
  ended=$(stat -c %Y "$record.err" 2> /dev/null) || return
  seconds=$((ended + 60 - $(date +%s)))
  [ $seconds -gt 0 ] && { [ ! -s "$record.err" ] || grep -qiE "$unanswered" "$record.err"; } || return
  echo "sbatch had no answer, and its job may still come; that is known in $seconds s" >&2
}

# take BYTES PATH: so much of standard input becomes the file, whole or not at all.
take() {
  head -c "$1" > "$2.$$" && [ "$(stat -c %s "$2.$$")" = "$1" ] && mv -fT "$2.$$" "$2" && return
  rm -f "$2.$$"
  return 1
}

# Prints every record that no machine has taken over yet, each on a line of at most 64 KiB.
records() {
  cd "$own/submissions" 2> /dev/null || return 0
  for record in ????????????; do
    [ ! -f "$record" ] || [ -L "$record" ] || head -c 65536 "$record"
    echo
  done | head -c 4194304
}

# Prints the id of the job that came of the record; removes a record of which none came.
look_up() {
  lock
  [ -e "$record" ] || end 0
  find_job
  case $? in 0) end 0 "$id" ;; 2) end 72 ;; esac
  ! may_come || end 72
  rm -f "$record" "$record.err"
}

forget() { rm -f "$record" "$record.id" "$record.err"; }

umask 077
record=$own/submissions/${key##*:}
"$verb" "$@"
