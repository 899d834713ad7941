"""`asr-server telephony`: lets Twilio, Asterisk and FreeSWITCH send their calls to a server."""

from __future__ import annotations

import argparse
import ipaddress
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from asr_server.cli import arguments
from asr_server.cli.failure import Exit, UsageError

if TYPE_CHECKING:
    from asr_server_telephony.call import Network
    from asr_server_telephony.message_queue import MessageQueue

EXAMPLES = (
    "asr-server telephony                                             calls of this machine, words as lines of JSON",
    "asr-server telephony --host 0.0.0.0 --secret-file secret.txt --to https://crm.example.org/words",
    "asr-server telephony --audiosocket-host 0.0.0.0 --audiosocket-allow 10.0.0.5/32",
)
_CODES = (
    "exit codes: 0 stopped; 1 a port cannot be used; 2 wrong arguments; 130 interrupted; 141 nobody reads the lines"
)
_LOCAL = "127.0.0.1"
_PORT, _AUDIOSOCKET_PORT = 8_200, 9_092
_MAX_CALLS = 500
_LOOK_S = 1.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    arguments.explain(parser, EXAMPLES, _CODES)
    listening = parser.add_argument_group("listening")
    listening.add_argument(
        "--host", default=_LOCAL, help=f"address of the WebSocket with /twilio, /asterisk and /freeswitch ({_LOCAL})"
    )
    listening.add_argument("--port", type=int, default=_PORT, help=f"its port (default {_PORT}; 0: a free one)")
    listening.add_argument("--secret-file", type=Path, metavar="FILE", help="file with what its peers must send")
    listening.add_argument(
        "--audiosocket-host", default=_LOCAL, metavar="HOST", help=f"address of AudioSocket ({_LOCAL})"
    )
    listening.add_argument(
        "--audiosocket-port",
        type=int,
        default=_AUDIOSOCKET_PORT,
        metavar="PORT",
        help=f"its port (default {_AUDIOSOCKET_PORT}; 0: a free one)",
    )
    listening.add_argument(
        "--audiosocket-allow",
        action="append",
        type=_network,
        default=[],
        metavar="NET",
        help="address or network from which AudioSocket may come; repeatable (default: all)",
    )
    listening.add_argument(
        "--open", action="store_true", help="listen for other machines without --secret-file and --audiosocket-allow"
    )
    listening.add_argument(
        "--max-calls", type=_calls, default=50, metavar="N", help=f"calls at a time, at most {_MAX_CALLS} (default 50)"
    )
    output = parser.add_argument_group("output")
    output.add_argument(
        "--to",
        action="append",
        type=_receiver,
        metavar="RECEIVER",
        help="lines (standard output, the default), the http or https address of a webhook, or socket (back to "
        "FreeSWITCH); repeatable",
    )
    output.add_argument("--partials", action="store_true", help="also text that may still change")
    arguments.add_language(parser)
    arguments.add_hotwords(parser)
    arguments.add_server(parser)
    arguments.add_key(parser)
    arguments.add_log_level(parser)
    parser.set_defaults(run=_run)


def _network(text: str) -> Network:
    try:
        return ipaddress.ip_network(text, strict=False)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an address or a network like 10.0.0.0/8") from None


def _calls(text: str) -> int:
    return arguments.within(text, 1, _MAX_CALLS)


def _receiver(text: str) -> str:
    if text in {"lines", "socket"}:
        return text
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        usable = False
    if not usable:
        raise argparse.ArgumentTypeError(f"{text!r} is not lines, socket, or an http or https address")
    return text


def _run(parsed: argparse.Namespace) -> int:
    """Return 0 after SIGTERM, 1 if a port cannot be used. Raises `UsageError`; `BrokenPipeError` once nobody reads."""
    from asr_server.client.live import LiveOptions
    from asr_server.core.logger import configure
    from asr_server.core.setting_types import LogLevel
    from asr_server_telephony.bridge import TelephonyBridge
    from asr_server_telephony.call import BridgeOptions
    from asr_server_telephony.party_session import SessionTarget

    secret = arguments.word_of(parsed.secret_file, "--secret-file") if parsed.secret_file else ""
    _check_hosts(parsed)
    server, token = arguments.server(parsed), arguments.key(parsed)
    configure(LogLevel(parsed.log_level), as_json=False)
    ends: SimpleQueue[Exit] = SimpleQueue()
    live = LiveOptions(language=parsed.language or "", hotwords=tuple(parsed.hotword), token=token)
    queues = _queues(parsed, lambda: ends.put(Exit.BROKEN_PIPE))
    options = BridgeOptions(
        SessionTarget(server, live, parsed.partials),
        queues,
        answers="socket" in (parsed.to or ()),
        secret=secret,
        allowed=parsed.audiosocket_allow,
        max_calls=parsed.max_calls,
    )
    try:
        bridge = TelephonyBridge(
            options, (parsed.host, parsed.port), (parsed.audiosocket_host, parsed.audiosocket_port)
        )
    except (OSError, OverflowError) as error:
        print(f"asr-server telephony: cannot listen: {error}", file=sys.stderr)
        return Exit.FAILED
    try:
        signal.signal(signal.SIGTERM, lambda *_: ends.put(Exit.DONE))
        port, audiosocket_port = bridge.ports
        # On stderr, since standard output has the lines.
        print(
            f"Telephony at ws://{parsed.host}:{port} and audiosocket://{parsed.audiosocket_host}:{audiosocket_port}, "
            f"for the server {server}",
            file=sys.stderr,
            flush=True,
        )
        end = _first(ends)
    finally:
        bridge.close()
        for queue in queues:
            queue.close()
    if end == Exit.BROKEN_PIPE:
        raise BrokenPipeError  # `main` also discards what Python would still write
    return end


def _first(ends: SimpleQueue[Exit]) -> Exit:
    while True:
        # Each wait is short: a signal that comes just before it does not interrupt it.
        with suppress(Empty):
            return ends.get(timeout=_LOOK_S)


def _queues(parsed: argparse.Namespace, on_broken: Callable[[], None]) -> list[MessageQueue]:
    from asr_server_telephony.message_queue import LineWriter, MessageQueue, Webhook

    receivers = dict.fromkeys(parsed.to or ["lines"])
    lines = [MessageQueue("lines", LineWriter(sys.stdout, on_broken))] if "lines" in receivers else []
    return lines + [MessageQueue("webhook", Webhook(each)) for each in receivers if each not in {"lines", "socket"}]


def _check_hosts(parsed: argparse.Namespace) -> None:
    """Refuse to listen for other machines without a rule for who may connect, except with `--open`."""
    for option, host, rule, value in (
        ("--host", parsed.host, "--secret-file", parsed.secret_file),
        ("--audiosocket-host", parsed.audiosocket_host, "--audiosocket-allow", parsed.audiosocket_allow),
    ):
        if not (_is_local(host) or value or parsed.open):
            raise UsageError(f"{option} {host} lets other machines in: add {rule}, or --open to let in everybody.")


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
