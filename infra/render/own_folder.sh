# own_folder PATH: a folder of this user alone (0700) from now on; or it says what is there, and ends
# with 78. -O: of this user. The number of the next job is known to everybody who could make its folder, and
# who can write into the folder around it can exchange it; in the job's memory all may (prolog).
own_folder() {
  (umask 077 && mkdir -p -- "${1%/*}" 2> /dev/null) || :
  mkdir -m 700 -- "$1" 2> /dev/null || [[ -d $1 && ! -L $1 && -O $1 ]] || {
    fix="move it away, as its owner or root: mv -T $1 $1.other"
    [[ -e $1 || -L $1 ]] || fix="let root make it: install -d -m 700 -o $(id -un) $1"
    echo "soperator: $1 on $(hostname): $(stat -c "is a %F of %U, mode %a" -- "$1" 2>&1), and has" \
      "to be a folder of $(id -un): $fix" >&2
    exit 78
  }
  chmod 700 -- "$1"
  around=$(stat -L -c "%u %A" -- "${1%/*}")
  case $1/$around in
    /mnt/memory/job_"${SLURM_JOB_ID-}"/*) ;;
    *"/0 d"*[tT] | *"/0 d"????-??-? | *"/$EUID d"????-??-?) ;;
    *)
      echo "soperator: ${1%/*} on $(hostname): $(stat -c "is a %F of %U, mode %a" -- "${1%/*}"), and" \
        "has to be of root or $(id -un), with no others who write: chmod go-w it, or move it away" >&2
      exit 78
      ;;
  esac
}
