"""The program of the engine process. Servers start it; users do not."""

from __future__ import annotations

import argparse
import asyncio
import socket

import uvloop

from asr_server import feature_list
from asr_server.core import logger
from asr_server.core import settings as settings_module
from asr_server.features.engine_process.server import serve
from asr_server.features.gateway.child import end_with_gateway


def main() -> None:
    """Run it until its server ends or sends SIGTERM."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--socket", type=int, required=True, help="open descriptor of the Unix socket to listen on")
    listener = socket.socket(fileno=parser.parse_args().socket)
    settings = settings_module.load()
    logger.configure(settings.log_level, as_json=settings.log_json)
    end_with_gateway(shut_down_s=0)  # at once: the next server's process needs the memory of the accelerator
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(settings, feature_list.resolve(settings), listener))


if __name__ == "__main__":
    main()
