# The jobs' image: the locked packages, this project's workloads, and the tests that hold in it.
# No CUDA base: torch's own wheels bring it, with the hashes of the lock file; the driver comes from
# the node. Build, tag and push: infra/setup/image/build.sh.
# The digest is of all platforms; .github/dependabot.yml proposes the newer one.
# https://github.com/docker-library/repo-info/blob/master/repos/python/remote/3.11-slim-bookworm.md
FROM python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b AS packages
COPY infra/setup/tools/bootstrap.lock requirements-workloads.lock infra/setup/image/image.lock /locks/
RUN python -m venv /uv && \
    /uv/bin/pip install --no-cache-dir --require-hashes -r /locks/bootstrap.lock && \
    /uv/bin/uv venv --python /usr/local/bin/python3.11 /opt/venv && \
    /uv/bin/uv pip sync --no-cache --require-hashes --compile-bytecode \
      --python /opt/venv/bin/python /locks/requirements-workloads.lock /locks/image.lock

# The same base: the environment links to its Python.
FROM python:3.11-slim-bookworm@sha256:0bee7276f83efd4a1ee05bbbf4281d95ed28e079220a9457f25a93e3f1e3c31b
# NCCL opens these by name; without them it takes the network for InfiniBand. Debian keeps no old
# versions, so a pinned one cannot be built again.
# hadolint ignore=DL3008
RUN apt-get update && \
    apt-get install -y --no-install-recommends ibverbs-providers libibverbs1 && \
    rm -rf /var/lib/apt/lists/*
COPY --from=packages /opt/venv /opt/venv
COPY --from=packages /locks/requirements-workloads.lock /app/
COPY infra/setup/image/entrypoint.sh /usr/local/bin/entrypoint
COPY workloads /app/workloads
COPY tests/workloads/image /app/tests
# The last two: what the hooks of the NVIDIA runtime and of enroot mount into the container.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility \
    MELLANOX_VISIBLE_DEVICES=all
# After the packages: another commit makes no layer of theirs anew.
ARG REVISION
ENV SOPERATOR_GIT_REVISION=$REVISION
LABEL org.opencontainers.image.revision=$REVISION \
      org.opencontainers.image.licenses=Apache-2.0
WORKDIR /app
# As root: IPC_LOCK, which InfiniBand needs, has no effect for another user.
ENTRYPOINT ["/usr/local/bin/entrypoint"]
CMD ["benchmark", "--mode", "health"]
