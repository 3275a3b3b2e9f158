#!/usr/bin/env bash
# Jupyter Lab and TensorBoard in an environment of their own, which sees the jobs' packages too: what
# is installed here moves no package of a job. Run it on the login node, once; again: nothing to do.
#   install_tools.sh JOBS_ENVIRONMENT        such as /opt/soperator/venv: makes /opt/soperator/venv-tools
# Every package has the hash that tools.lock names (tools.in, `make lock`).
set -euo pipefail
lock=$(dirname "$0")/tools.lock
jobs=${1:?"usage: $0 JOBS_ENVIRONMENT"}
tools=$jobs-tools

if [ ! -x "$jobs/bin/python" ]; then
  echo "$jobs: no Python environment yet; make it first with soperator data venv" >&2
  exit 1
fi
# pip comes from outside: an environment that uv made has none.
python3 -m pip --version >/dev/null || {
  echo "python3 has no pip here: apt-get install python3-pip python3-venv on the login node" >&2
  exit 1
}
[ -x "$tools/bin/python" ] || "$jobs/bin/python" -m venv --without-pip "$tools"
python3 -m pip --python "$tools/bin/python" install --quiet --disable-pip-version-check \
  --only-binary :all: --no-deps --require-hashes -r "$lock"
# Named by the link and not by what it leads to now, so that a new version of it is seen as well.
site=$(echo "$tools"/lib/python3*/site-packages)
echo "$jobs/lib/$(basename "$(dirname "$site")")/site-packages" >"$site/jobs.pth"
echo "$tools: $(grep -E '^(jupyterlab|tensorboard)==' "$lock" | cut -d' ' -f1 | xargs)"
