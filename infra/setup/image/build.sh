#!/bin/bash
# Builds the jobs' image, names its tags, pushes it.
#   infra/setup/image/build.sh tags|build|push [--stack S | --registry HOST/PATH] [--name NAME]
# tags: sha-<commit> always, v* where the commit has such a tag, latest on main. A tree with changes
# is built as sha-<commit>-dirty and never pushed: no other machine could make that image again.
# A commit has one image: build gets it from the registry where it is, so that a version is what main
# tested and stacks run, under one more name. push sends what was built, and tested by its tag in
# between. DOCKER names another docker.
set -euo pipefail
cd "$(dirname "$0")/../../.."

stop() { echo "build.sh: $1" >&2; exit 1; }

[[ $# -gt 0 ]] || stop "say tags, build or push"
verb=$1
shift
registry=${REGISTRY:-} stack='' name=soperator-jobs
while [[ $# -gt 0 ]]; do
  [[ $# -gt 1 ]] || stop "$1: a value is missing"
  case $1 in
    --registry) registry=$2 ;;
    --stack) stack=$2 ;;
    --name) name=$2 ;;
    *) stop "$1: is none of --stack, --registry, --name" ;;
  esac
  shift 2
done

if [[ -n $stack ]]; then
  # The stack's own output: the registry that storage.registry_gib declares.
  registry=$(pulumi stack output registry --stack "$stack" --non-interactive) ||
    stop "stack $stack has no output registry: declare storage.registry_gib, then pulumi up"
fi
registry=${registry%/}
# Images have no capital letters in their names, organisations may.
image=${registry:+${registry,,}/}$name

commit=$(git rev-parse --short=12 HEAD)
tags=("sha-$commit")
# What goes into the image, and what makes it; a stack file of your own is none of it.
dirty=$(git status --porcelain -- Dockerfile .dockerignore infra/setup/image infra/setup/tools/bootstrap.lock \
  requirements-workloads.lock workloads tests/workloads/image)
if [[ -n $dirty ]]; then
  tags=("sha-$commit-dirty")
else
  while read -r tag; do tags+=("$tag"); done < <(git tag --points-at HEAD --list 'v*')
  # A server that checks out a commit is on no branch, and names it.
  [[ ${GITHUB_REF_NAME:-$(git branch --show-current)} != main ]] || tags+=(latest)
fi

docker() { command "${DOCKER:-docker}" "$@"; }
is_there() { docker manifest inspect "$image:$1" > /dev/null 2>&1; }

case $verb in
  tags) printf "$image:%s\n" "${tags[@]}" ;;
  build)
    if [[ -z $dirty && -n $registry ]] && is_there "${tags[0]}"; then
      echo "$image:${tags[0]} is there already, and is not built anew" >&2
      docker pull "$image:${tags[0]}" >&2
      for tag in "${tags[@]:1}"; do docker tag "$image:${tags[0]}" "$image:$tag"; done
    else
      options=()
      for tag in "${tags[@]}"; do options+=(--tag "$image:$tag"); done
      docker buildx build --load --build-arg "REVISION=$(git rev-parse HEAD)" "${options[@]}" .
    fi
    printf "$image:%s\n" "${tags[@]}"
    ;;
  push)
    [[ -z $dirty ]] || stop "the tree has changes; commit them, build, test, then push"
    [[ -n $registry ]] || stop "push needs --stack with a registry, or --registry HOST/PATH"
    for tag in "${tags[@]}"; do
      # Stacks pin these names: what is there stays what it is.
      if [[ $tag != latest ]] && is_there "$tag"; then
        echo "$image:$tag is there already, and is left as it is" >&2
      elif [[ $tag = "${tags[0]}" ]]; then
        docker push "$image:$tag"
      else
        # In the registry, from the commit's image: the same bytes under another name.
        docker buildx imagetools create --tag "$image:$tag" "$image:${tags[0]}"
      fi
    done
    # enroot divides the registry from the path by '#'.
    echo "jobs[].container: ${image/\//#}:sha-$commit"
    ;;
  *) stop "$verb: is none of tags, build, push" ;;
esac
