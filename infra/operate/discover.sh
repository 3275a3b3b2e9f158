# What an ordinary user of a login node can find out, between marks that no profile prints: `nonce`.
# It changes nothing: the one file that it writes to see whether a folder takes one is removed. Before
# it come the functions of roots.sh.
export LC_ALL=C LANG=C TZ=UTC0 SLURM_TIME_FORMAT=standard
part() { printf '\n@%s %s\n' "$nonce" "$1"; }
# The script itself is standard input, which a wrapper of sinfo that calls ssh would read to its end.
soon() { timeout 30 "$@" 2>&1 < /dev/null; }
me=$(id -un)
part who
printf '%s\n' "$me" "${HOME:-/}" "$(uname -n)" "${SHELL:-/bin/sh}"
part programs
for each in sinfo sbatch squeue scontrol scancel srun; do command -v "$each" > /dev/null || echo "$each"; done
part login-programs
command -v sinfo > /dev/null ||
  bash -lc 'command -v sinfo' 2> /dev/null < /dev/null | sed -n 's,^\(/.*\)/sinfo$,\1,p'
part version
soon sinfo --version
part nodes
# The reason of a failure is no node: it has no separator.
soon sinfo --noheader --Node --format='%N|%R|%P|%c|%m|%l|%T|%G'
part partitions
soon scontrol show partition --oneliner
part config
soon scontrol show config
part sacct
soon sacct --noheader --allocations --format=JobID --starttime=now > /dev/null && echo yes
part associations
soon sacctmgr --noheader --parsable2 show associations user="$me" format=Account,Partition,QOS,DefaultQOS
part default-account
soon sacctmgr --noheader --parsable2 show user "$me" format=DefaultAccount
part python
for each in python3 python3.14 python3.13 python3.12 python3.11 python3.10 /usr/local/bin/python3; do
  "$each" -c 'import sys; print(sys.executable, "%d.%d.%d" % sys.version_info[:3])' 2> /dev/null < /dev/null
done
part folders
for each in "$HOME" "${SCRATCH-}" "${WORK-}" "${PROJECT-}" /{scratch,work,data,mnt/data}/"$me"; do
  [ -n "$each" ] && [ -d "$each" ] || continue
  # Not the sticky kind of folder that everybody has: only what is this user's own.
  [ -O "$each" ] || continue
  # Where others can exchange what lies there, the name of the file may be a link of theirs.
  probe=$each/.soperator-probe-$$
  why=$( { roots "$each/." && head -c 65536 /dev/zero > "$probe" && sync -- "$probe"; } 2>&1) && why= ||
    why=${why:-no reason was told}
  rm -f -- "$probe"
  printf '%s|%s|%s|%s\n' "$each" "$(stat -f -c %T -- "$each")" \
    "$(df -P -B1 -- "$each" | tail -n 1 | { read -r _ _ _ free _; echo "$free"; })" \
    "$(printf '%s' "$why" | tail -n 1 | tr '|' ' ')"
done
part quota
soon quota -w
part end
