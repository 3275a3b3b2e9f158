# Variables out of a file that only the job's user has; what it says is never run.
no_variables() { echo "soperator: $SOPERATOR_JOB: $environment_file: $1" >&2; exit 78; }
[[ -f $environment_file && ! -L $environment_file ]] || no_variables 'no such file: write it'
exec {variables}< "$environment_file"
# Of what is open: whoever owns the folder can have exchanged what has the name.
[[ $(stat -L -c '%u %a' "/dev/fd/$variables") = "$EUID 600" ]] ||
  no_variables 'is not of this user with mode 600: chown and chmod it'
while IFS= read -r line || [[ -n $line ]]; do
  [[ $line =~ ^[[:space:]]*(#|$) ]] && continue
  [[ $line =~ ^([A-Z_][A-Z0-9_]*)=(.*)$ ]] || no_variables 'has a line that is not NAME=value'
  case ${BASH_REMATCH[1]} in
    PATH | PYTHONPATH | PYTHONHOME | BASH_ENV | ENV | LD_* | SLURM* | SOPERATOR_*)
      no_variables "${BASH_REMATCH[1]} cannot be set" ;;
  esac
  export "${BASH_REMATCH[1]}=${BASH_REMATCH[2]}"
done <&"$variables"
exec {variables}<&-
