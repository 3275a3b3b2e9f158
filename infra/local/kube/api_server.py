"""The API server of the local stack: etcd and kube-apiserver on loopback, with their certificates.

Owns the two processes and every file they need, all in one folder. Objects survive a restart; the
folder's removal is their end. No scheduler, controller-manager or kubelet: nothing runs pods here.
Its CRDs of the Soperator kinds are ours: reduced and strict.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from infra import files
from infra.clients.kube import Access, KubeClient
from infra.local import process
from infra.local.process import LocalError
from infra.providers.soperator.crds import LOADER, apply_crds
from infra.state import Cache

_VALID_DAYS = 3650
_RENEW_BEFORE_DAYS = 30
_FILES: Final = ("ca.crt", "server.key", "service-account.key", "server.crt")
"""The last one's presence says that all others stand."""


def write_certificates(folder: Path, address: str) -> None:
    """Write the server's certificate, which is trusted for itself, and its key, unless they stand.

    Tokens of service accounts are signed with the same key.
    """
    now = datetime.now(UTC)
    if all((folder / name).exists() for name in _FILES):
        stands = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
        if stands.not_valid_after_utc > now + timedelta(days=_RENEW_BEFORE_DAYS):
            return
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "kube-apiserver")])
    names = [x509.IPAddress(ipaddress.ip_address(address)), x509.DNSName("localhost")]
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=_VALID_DAYS))
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
    for file, content in zip(_FILES, (made, private, private, made), strict=True):
        files.write(folder / file, content, mode=0o600)


_HOST: Final = "127.0.0.1"
_READY_TIMEOUT_S: Final = 300.0
_ETCD: Final = "etcd"
_ETCD_SOCKET: Final = "unix://etcd.sock:0"
"""In the closed folder, where both run: etcd knows no users, and no path there is too long. etcd
asks for the port, which becomes part of the name."""
_PEER_SOCKET: Final = "unix://peer.sock:0"
_API_SERVER: Final = "kube-apiserver"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServerConfig:
    """Where the API server lives and on which loopback ports."""

    folder: Path
    run_dir: Path
    api_port: int
    token: str
    """The administrator's."""

    @property
    def endpoint(self) -> str:
        """URL of the API server."""
        return f"https://{_HOST}:{self.api_port}"

    @property
    def ca_file(self) -> Path:
        """PEM file of the authority that signed the server's certificate."""
        return self.folder / "pki" / "ca.crt"

    @property
    def certificate(self) -> Path:
        """PEM file of the server's certificate, for 127.0.0.1."""
        return self.folder / "pki" / "server.crt"

    @property
    def key(self) -> Path:
        """PEM file of the certificate's key."""
        return self.folder / "pki" / "server.key"

    def access(self) -> Access:
        """The administrator's access."""
        ca_pem = self.ca_file.read_text()
        return Access(server=self.endpoint, ca_pem=ca_pem, static_token=self.token)


def start(config: ApiServerConfig, timeout_s: float = _READY_TIMEOUT_S) -> None:
    """Start what is not running, and return once the API server is ready."""
    if is_ready(config):
        return
    etcd, api_server = _etcd_argv(_find_etcd(), config), _api_server_argv(find_api_server(), config)
    write_certificates(config.folder / "pki", _HOST)
    config.folder.chmod(0o700)
    tokens = f'{config.token},local-admin,local-admin,"system:masters"\n'
    files.write(config.folder / "tokens.csv", tokens, mode=0o600)

    def begin(name: str, argv: list[str], port: int = 0) -> process.Process:
        folder = config.folder
        log, run_dir = folder / f"{name}.log", config.run_dir
        return process.start(name, argv, run_dir=run_dir, log=log, cwd=folder, port=port)

    starts = {
        _ETCD: lambda: begin(_ETCD, etcd),
        _API_SERVER: lambda: begin(_API_SERVER, api_server, config.api_port),
    }
    ready = partial(is_ready, config)
    process.serve(config.run_dir, starts, is_ready=ready, timeout_s=timeout_s)


def stop(config: ApiServerConfig) -> None:
    """Stop both processes; what they stored stays."""
    process.stop(_API_SERVER, config.run_dir)
    process.stop(_ETCD, config.run_dir)


def is_ready(config: ApiServerConfig) -> bool:
    """Whether both processes run and the API server is ready."""
    if not all(process.alive(name, config.run_dir) for name in (_ETCD, _API_SERVER)):
        return False
    with contextlib.closing(KubeClient(config.access())) as client:
        return client.is_ready()


@contextlib.contextmanager
def running(folder: Path, api_port: int) -> Iterator[ApiServerConfig]:
    """An API server of its own while the block runs."""
    config = ApiServerConfig(
        folder=folder / "kube",
        run_dir=folder / "run",
        api_port=api_port,
        token=secrets.token_urlsafe(),
    )
    try:
        start(config)
        yield config
    finally:
        stop(config)


def find_api_server() -> str:
    """Path of the kube-apiserver program: PATH, then the cache."""
    built = Cache.from_environ().kube_apiserver
    for candidate in (shutil.which("kube-apiserver"), built):
        if candidate and os.access(candidate, os.X_OK):
            return str(candidate)
    raise LocalError(
        f"kube-apiserver: not on PATH and not at {built}; run `make setup` to build it"
    )


def _find_etcd() -> str:
    found = shutil.which("etcd")
    if found is None:
        raise LocalError("etcd: not on PATH; install the Debian package etcd-server")
    return found


def _etcd_argv(binary: str, config: ApiServerConfig) -> list[str]:
    return [
        # A killed one leaves its sockets, and the next one would not start on them.
        *("/bin/sh", "-c", 'rm -f *.sock:0; exec "$@"', "sh"),
        binary,
        "--name=local",
        f"--data-dir={config.folder / 'etcd'}",
        f"--listen-client-urls={_ETCD_SOCKET}",
        f"--advertise-client-urls={_ETCD_SOCKET}",
        f"--listen-peer-urls={_PEER_SOCKET}",
        f"--initial-advertise-peer-urls={_PEER_SOCKET}",
        f"--initial-cluster=local={_PEER_SOCKET}",
        "--logger=zap",
        "--log-level=warn",
    ]


def _api_server_argv(binary: str, config: ApiServerConfig) -> list[str]:
    pki = config.folder / "pki"
    return [
        binary,
        f"--etcd-servers={_ETCD_SOCKET}",
        f"--bind-address={_HOST}",
        f"--advertise-address={_HOST}",
        f"--secure-port={config.api_port}",
        f"--tls-cert-file={config.certificate}",
        f"--tls-private-key-file={config.key}",
        f"--service-account-key-file={pki / 'service-account.key'}",
        f"--service-account-signing-key-file={pki / 'service-account.key'}",
        f"--service-account-issuer={config.endpoint}",
        f"--token-auth-file={config.folder / 'tokens.csv'}",
        "--anonymous-auth=false",
        "--authorization-mode=RBAC",
        "--service-cluster-ip-range=10.96.0.0/16",
        # Both lean on the controller-manager, which does not run: default ServiceAccounts would be
        # missing, and the finalizers of volumes and claims would never be taken away.
        "--disable-admission-plugins=ServiceAccount,StorageObjectInUseProtection",
        # Its endpoint would be written for a loopback address, which the API refuses.
        "--endpoint-reconciler-type=none",
        # As on the real cluster: mounts and slurmd need privileged containers.
        "--allow-privileged=true",
    ]


_FOLDER = Path(__file__).parent / "crds"


def load_crds() -> list[dict[str, Any]]:
    """The CustomResourceDefinitions of crds/."""
    return [
        yaml.load(path.read_text(), Loader=LOADER)  # noqa: S506 - a safe one
        for path in sorted(_FOLDER.glob("*.yaml"))
    ]


def install_crds(client: KubeClient) -> None:
    """Apply every CRD and return once the API server serves its kind."""
    apply_crds(client, load_crds())
