"""`asr-server speakers`: lists, adds and deletes the voices by which a server recognises people."""

from __future__ import annotations

import argparse
import json
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from asr_server.cli import arguments
from asr_server.cli.failure import Failure, server_errors, shown

if TYPE_CHECKING:
    from asr_server.client.connection import Connection

EXAMPLES = (
    "asr-server speakers list",
    'asr-server speakers add Ann ann.wav ann2.mp3 --consent "By e-mail of 1 June"',
    "asr-server speakers delete ID",
)
_CODES = "exit codes: 0 done; 1 refused, or there is no such voice or file; 2 wrong arguments; 3 no server"
_ROUTE = "/v1/speakers"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.explain(parser, EXAMPLES, _CODES)
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    listing = actions.add_parser("list", help="list the voices that are stored for the key")
    adding = actions.add_parser("add", help="store the voice of a person; one of the same name is replaced")
    adding.add_argument("name", metavar="NAME", help="the person's name, which transcripts show")
    adding.add_argument(
        "files", nargs="+", metavar="FILE", help="recordings of 2 to 60 s in which only that person speaks"
    )
    adding.add_argument(
        "--consent", required=True, metavar="NOTE", help="on what ground the voice is stored; the server keeps the note"
    )
    deleting = actions.add_parser("delete", help="delete a voice")
    deleting.add_argument("id", metavar="ID", help="the id from the list: spk_...")
    for action, act in ((listing, _list), (adding, _add), (deleting, _delete)):
        arguments.add_server(action)
        arguments.add_key(action)
        action.set_defaults(run=_run, act=act)


def _run(parsed: argparse.Namespace) -> None:
    from asr_server.client.connection import Connection

    server = arguments.server(parsed)
    with server_errors(server), Connection(server, key=arguments.key(parsed)) as client:
        parsed.act(client, parsed)


def _answer(client: Connection, method: str, route: str, **content: Any) -> Any:
    with client.answer(method, route, **content) as answer:
        return json.loads(answer.read())


def _list(client: Connection, _: argparse.Namespace) -> None:
    for voice in _answer(client, "GET", _ROUTE)["data"]:
        day = time.strftime("%Y-%m-%d", time.gmtime(voice["created_at"]))
        print(f"{voice['id']}  {day}  {shown(voice['name'])}  ({shown(voice['consent'])})")


def _add(client: Connection, parsed: argparse.Namespace) -> None:
    from asr_server.client.connection import upload

    fields = {"name": parsed.name, "consent": parsed.consent}
    try:
        with ExitStack() as opened:
            files = [("files[]", opened.enter_context(upload(file))) for file in parsed.files]
            voice = _answer(client, "POST", _ROUTE, data=fields, files=files)
    except OSError as error:
        code = "no_such_file" if isinstance(error, FileNotFoundError) else "cannot_read"
        raise Failure(code, f"{shown(str(error.filename))}: {error.strerror}.") from error
    print(voice["id"])


def _delete(client: Connection, parsed: argparse.Namespace) -> None:
    _answer(client, "DELETE", f"{_ROUTE}/{quote(parsed.id, safe='')}")
