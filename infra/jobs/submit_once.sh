# One sbatch for one idempotency key: bash on the login node runs this after own_folder.sh, the variables that
# infra/jobs/submit.py sets, and with the words of the sbatch; without words it tells what came of the key. The key's record
# in the user's own folder is what sbatch says, then its job's id. The lock is held by what sbatch still runs, so a hung one
# keeps others out. The plans come as an archive on standard input, read to its end before every exit: else the sender takes
# it for a lost connection. Exit codes are those of submit.py.
end() {
  cat > /dev/null
  [ $# = 1 ] || printf "%s\n" "${*:2}"
  exit "$1"
}

# Writes down the job's id, and ends with it and what follows.
end_with() {
  printf "id %s\n" "$1" > "$record.new" && mv -fT "$record.new" "$record"
  end 0 "$@"
}

# Ends with the job that has the key; removes the record and returns where none has. Accounting may keep no
# comments, but keeps the line of sbatch (SubmitLine, since 21.08), and some have no accounting at all.
end_with_known() {
  local queued ended since seconds unanswered="timed out|unable to contact|zero bytes|connection|communication"
  id=$(sed -nE "s/^id ([0-9]{1,18})$/\1/p" "$record")
  [ -z "$id" ] || end 0 "$id"
  queued=$(squeue --all --me --noheader --states=all --format="%F|%k") || end 72
  since=$(TZ=UTC0 date -d "@$(($(stat -c %Y "$record") - 86400))" +%Y-%m-%dT%H:%M:%S)
  ended=$(TZ=UTC0 sacct --user="$(id -un)" --noheader --parsable2 --allocations --name="$name" \
    --format=JobID,Comment,SubmitLine --starttime="$since" 2>&1) || [[ $ended == *"accounting storage"* ]] || {
    echo "$ended" >&2
    end 72
  }
  id=$(printf "%s\n" "$queued" "$ended" | sed -n "s/^\([0-9]\+\)[^|]*|.*$key.*/\1/p" | head -n 1)
  [ -z "$id" ] || end_with "$id" "$@"
  # Slurm may still list a job of an sbatch that ended less than a minute ago, or was killed, without slurmctld's answer:
  # a call of a controller that is busy waits there for longer than sbatch waits for it.
  seconds=$(($(stat -c %Y "$record") + 60 - $(date +%s)))
  if [ $seconds -gt 0 ] && { [ ! -s "$record" ] || grep -qiE "$unanswered" "$record"; }; then
    echo "sbatch had no answer, and its job may still come; that is known in $seconds s" >&2
    end 72
  fi
  rm -f "$record"
}

umask 077
record=$own/submissions/${key##*:}
(own_folder "$own/submissions") || end 77
exec 9>> "$own/.submit.lock" && flock -w 60 9 || {
  echo "another submission holds $own/.submit.lock, or it cannot be locked" >&2
  [ ! -e "$record" ] || end 72
  end 74
}
[ ! -e "$record" ] || end_with_known
[ $# != 0 ] || end 0
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
  echo "${group%%$'\n'*} is not on the cluster, or is empty; prepare it first (soperator submit $name --pipeline -s STACK \
submits what $name needs), bring it with soperator data push -s STACK, or name the job that makes it with --after ID" >&2
  end 77
done
[ -z "$oldest" ] || queued=$(squeue --all --me --noheader --format="%F|%r|%k") || end 1
while IFS="|" read -r -u 3 id reason comment; do
  [[ $comment != "${key%:*}:"* || ! $id =~ ^[0-9]+$ || 10#$id -lt $oldest ]] || end 76 "$id|$reason|$comment"
done 3<<< "${oldest:+$queued}"
new=$own/.plans # a job that waits keeps its plan whole
rm -rf "$new" && mkdir -p "$new" "$own/plans" && tar -xzm --no-same-owner --no-same-permissions -C "$new" &&
  find "$new" -type f -exec mv -ft "$own/plans" {} + && rmdir "$new" || end 1
cd "$code" && : > "$record" && sync "$record" || end 1
said=$("$@" 2> "$record") && status=0 || status=1
cat "$record" >&2
[ $status = 0 ] || { end_with_known found; end 1; }
id=$(sed -n '$s/^\([0-9]\+\)\(;.*\)\?$/\1/p' <<< "$said")
[ -z "$id" ] || end_with "$id"
end 0 "$said"
