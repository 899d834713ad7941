"""`asr-server wyoming`: lets Home Assistant, and other clients of the Wyoming protocol, use a server."""

from __future__ import annotations

import argparse
import signal
import threading
from contextlib import ExitStack, closing
from pathlib import Path

from asr_server.cli import arguments
from asr_server.cli.failure import CommandError, UsageError

_DEFAULT_PORT = 10_300
# The bridge waits this long for the names of a home, then starts without them.
_FIRST_NAMES_S = 5.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1: this machine)")
    parser.add_argument(
        "--port", type=int, default=_DEFAULT_PORT, help=f"port (default {_DEFAULT_PORT}; 0: a free one)"
    )
    arguments.add_server(parser)
    arguments.add_key(parser)
    parser.add_argument("--language", type=arguments.language, help="for clients that state none (default: detect it)")
    parser.add_argument(
        "--ha-url",
        type=arguments.server_address,
        metavar="URL",
        help="address of a Home Assistant whose names of rooms and devices are to be expected (default: ASR_HA_URL)",
    )
    parser.add_argument(
        "--ha-token-file",
        type=Path,
        metavar="FILE",
        help="file with a long-lived access token of an administrator of that Home Assistant; default: ASR_HA_TOKEN of "
        "the environment. Never on the command line itself",
    )
    arguments.add_log_level(parser)
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> None:
    from dataclasses import replace

    from loguru import logger

    from asr_server.core.logger import configure
    from asr_server.core.setting_types import LogLevel
    from asr_server.features.wyoming.home_names import HomeNames
    from asr_server.features.wyoming.wyoming import Bridge, BridgeTarget
    from asr_server.text import languages

    server = arguments.server(parsed)
    configure(LogLevel(parsed.log_level), as_json=False)
    target = BridgeTarget(server, arguments.key(parsed), languages.code(parsed.language) if parsed.language else "")
    with ExitStack() as open_parts:
        if address := arguments.address(parsed.ha_url, "ASR_HA_URL"):
            if not (token := arguments.secret(parsed.ha_token_file, "--ha-token-file", "ASR_HA_TOKEN")):
                raise UsageError("--ha-url takes a token of that Home Assistant: --ha-token-file, or ASR_HA_TOKEN.")
            names = open_parts.enter_context(closing(HomeNames(address, token)))
            names.tried.wait(_FIRST_NAMES_S)
            if names.refusal:
                raise UsageError(f"{names.refusal} Make one in the profile of an administrator.")
            target = replace(target, names=lambda: names.current)
        try:
            bridge = open_parts.enter_context(Bridge(parsed.host, parsed.port, target))
        except (OSError, OverflowError) as error:
            raise CommandError(f"cannot listen on {parsed.host}:{parsed.port}: {error}") from None
        # `shutdown` waits for the loop that this signal handler interrupts, so it runs on its own thread.
        signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=bridge.shutdown).start())
        print(f"Wyoming at tcp://{parsed.host}:{bridge.port}, for the server {server}", flush=True)
        # The bridge may start before its server, so this is no reason to stop.
        if problem := bridge.monitor.state().problem:
            logger.warning("the server is not ready", reason=problem)
        else:
            logger.info("the server is ready", server=server)
        bridge.serve_forever()
