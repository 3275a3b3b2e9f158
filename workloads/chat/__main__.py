"""A page to talk to base and tuned models, in the browser of this machine.

Usage: python -m workloads.chat --url http://HOST:PORT/v1 [--url ...] [--port N] [--share]
Prints its address on stderr; ends on SIGINT or SIGTERM. docs/chat.md.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from workloads.chat.client import Client, catalog
from workloads.chat.dialogue import Arms
from workloads.common import exit_codes
from workloads.common.log import log
from workloads.load.client import KEY_VARIABLE

HOST = "127.0.0.1"
DEFAULT_PORT = 7861
"""Beside 7860, which is the server's own on the `local` stack."""
_USER = "chat"


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the flags."""
    parser = argparse.ArgumentParser(prog="python -m workloads.chat")
    parser.add_argument(
        "--url", action="append", required=True, help="server up to /v1; repeatable"
    )
    parser.add_argument("--server", help="what the page calls the first --url: its job and node")
    parser.add_argument("--port", type=int, default=DEFAULT_PORT, help="0: any free one")
    parser.add_argument(
        "--share", action="store_true", help="public link through Gradio, with a password"
    )
    parser.add_argument("--record", type=Path, help="file of votes and times, without any text")
    parser.add_argument(
        "--until-stdin-ends", action="store_true", help="end with whoever started it"
    )
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> exit_codes.ExitCode:
    """Serve the page until a signal; the exit code says what went wrong."""
    options = parse(arguments)
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: over.set())
    if options.until_stdin_ends:
        threading.Thread(target=lambda: (sys.stdin.read(), over.set()), daemon=True).start()
    try:
        serve(options, over)
    except exit_codes.WorkloadError as error:
        log(f"chat: {exit_codes.reason_of(error)}")
        return exit_codes.exit_code_of(error)
    return exit_codes.ExitCode.OK


def serve(options: argparse.Namespace, over: threading.Event) -> None:
    """Check everything that can be wrong, open the page, wait for `over`, close it."""
    port = free_port(options.port)
    client = Client(options.url, os.environ.get(KEY_VARIABLE))
    models = catalog(asyncio.run(client.models()))
    arms = Arms(options.record)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # Gradio reads it when it is imported
    try:
        from workloads.chat import page
        from workloads.chat.page import PageGuard
    except ModuleNotFoundError as error:
        raise exit_codes.NotRunError(
            f"{error.name} is not installed here; the page runs in the project's .venv "
            "(`make setup`), or where requirements.lock is installed"
        ) from error
    from starlette.middleware import Middleware

    from workloads.chat.dialogue import Dialogue

    password = secrets.token_urlsafe(12) if options.share else None
    # Of whoever started the page, who prints its address.
    token = os.environ.get("SOPERATOR_CHAT_TOKEN") or secrets.token_urlsafe()
    dialogue = Dialogue(client, models, arms)
    names = {client.urls[0]: options.server} if options.server else {}
    blocks = page.Page(dialogue, names).blocks
    blocks.launch(
        server_name=HOST,
        server_port=port,
        share=options.share,
        auth=(_USER, password) if password else None,
        quiet=True,
        # As many events at once: every open page has one that never ends.
        max_threads=1000,
        prevent_thread_lock=True,
        ssr_mode=False,
        pwa=False,
        mcp_server=False,
        enable_monitoring=False,
        footer_links=[],
        theme=page.theme(),
        css_paths=[page.CSS],
        app_kwargs={"middleware": [Middleware(PageGuard, token=None if password else token)]},
    )
    if options.share and blocks.share_url is None:
        blocks.close(verbose=False)
        raise exit_codes.NotRunError(
            "--share: Gradio's relay gave no link; look whether this machine reaches the Internet, "
            "or leave --share out"
        )
    opens = "" if password else f"?token={token}"
    log(f"chat with {' and '.join(each.label for each in models)}: http://{HOST}:{port}/{opens}")
    if password:
        # The password opens this run's page only, so the terminal may show it.
        log(f"shared: {blocks.share_url}, user {_USER}, password {password}")
    over.wait()
    blocks.close(verbose=False)
    dialogue.end()


def free_port(wanted: int) -> int:
    """Return the port that the page can have; one that is taken is refused."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except (OSError, OverflowError) as error:
            raise exit_codes.ConfigError(
                f"--port {wanted}: {error}; choose another one, or 0 for any free one"
            ) from error
        return probe.getsockname()[1]


if __name__ == "__main__":
    sys.exit(main())
