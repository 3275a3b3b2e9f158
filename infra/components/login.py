"""The user's door: proves that the cluster is ready, lets members in and delivers the code."""

from __future__ import annotations

from pathlib import Path

import pulumi
import pulumi_command as command

from infra.providers.soperator.resources import KeyPair
from infra.render.delivery import code_files, hash_files
from infra.render.login import (
    activate_script,
    places_script,
    ready_script,
    teams_script,
    users_script,
    write_release,
)
from stacks.spec import StackSpec

# A real login node appears minutes after its release is applied.
_DIAL_ATTEMPTS = 240
_DIAL_TIMEOUT_S = 15


class Login(pulumi.ComponentResource):
    """SSH with the deploy key and the pinned host key: readiness, members, places, one release."""

    code_hash: str
    ready: pulumi.Output[str]
    """What `sinfo` proved."""

    def __init__(
        self,
        name: str,
        spec: StackSpec,
        *,
        root: Path,
        build_folder: Path,
        login_ip: pulumi.Input[str],
        host_key: KeyPair,
        deploy_key: KeyPair,
        opts: pulumi.ResourceOptions | None = None,
    ) -> None:
        super().__init__("soperator:infra:Login", name, None, opts)
        connection = command.remote.ConnectionArgs(
            host=login_ip,
            port=spec.login.ssh_port,
            user="root",
            private_key=deploy_key.private_key,
            host_key=host_key.public_key,
            dial_error_limit=_DIAL_ATTEMPTS,
            per_dial_timeout=_DIAL_TIMEOUT_S,
        )

        def run(part: str, script: str, *needs: pulumi.Resource) -> command.remote.Command:
            return command.remote.Command(
                f"{name}-{part}",
                connection=connection,
                create=script,
                # sshd of a login node takes LANG and LC_* only: each update would warn of it.
                add_previous_output_in_env=False,
                opts=pulumi.ResourceOptions(parent=self, depends_on=[*needs]),
            )

        ready = run("ready", ready_script(spec))
        # They compare with what is there, so they run for a stack without members too: a last one
        # that is no longer declared is removed.
        users = run("users", users_script(spec, keys_later=True), ready)
        places = run("places", places_script(spec), users)
        needs: list[pulumi.Resource] = []
        if spec.slurm.accounting:
            needs.append(run("teams", teams_script(spec), users))
        files = code_files(root, spec)
        self.code_hash = hash_files(files)
        code = command.remote.CopyToRemote(
            f"{name}-code",
            connection=connection,
            source=pulumi.FileArchive(write_release(build_folder / spec.name, files, root)),
            remote_path=f"{spec.code_path}/releases/{self.code_hash}",
            opts=pulumi.ResourceOptions(parent=self, depends_on=[places]),
        )
        # Its schedules are submitted by the deployer, whom Slurm knows by the teams.
        live = run("current", activate_script(spec.code_path, self.code_hash), code, *needs)
        # Last: no user can keep the others from new code by what is in ~/.ssh.
        run("keys", users_script(spec), live)
        self.ready = ready.stdout
        self.register_outputs({"code_hash": self.code_hash})
