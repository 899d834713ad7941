"""The names of a home, from Home Assistant: its areas, its floors, and the entities that voice assistants may use.

https://developers.home-assistant.io/docs/api/websocket describes the protocol. Home Assistant's source has the commands
for registries and for exposed entities; only administrators may use the latter.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import accumulate, chain
from typing import Any

from loguru import logger
from websockets.exceptions import WebSocketException
from websockets.sync.client import ClientConnection, connect

# The engine keeps the keys and values of the names from one utterance to the next, and each step reads them. 4,000
# characters are about a thousand tokens, as many as for more than a minute of speech.
_MAX_NAMES, _MAX_CHARACTERS = 300, 4_000
# A longer name is a description, which nobody says.
_MAX_NAME_CHARACTERS = 60
# The states of a home with thousands of entities are some megabytes.
_MAX_MESSAGE_BYTES = 64 * 1024 * 1024
_ANSWER_S = 30.0
# One change makes several events, and the names of states change after the names in the registry.
_SETTLED_S, _LONGEST_UNSETTLED_S = 1.0, 10.0
# Names of entities that are defined in a file and have no entry in the registry change without an event.
_REREAD_S = 900.0
# Home Assistant can be set to ban addresses after some failed logins, so a refused token is retried rarely.
_FIRST_DELAY_S, _LONGEST_DELAY_S = 1.0, 300.0
_EVENTS = (
    *("entity_registry_updated", "device_registry_updated", "area_registry_updated", "floor_registry_updated"),
    "homeassistant_started",  # before it, entities may be missing
)
# Home Assistant's name for the assistant that answers the commands of Wyoming clients.
_ASSIST = "conversation"
# Domains of entities that report and take no commands.
_SENSORS = ("sensor.", "binary_sensor.")


class HomeRefused(Exception):
    """Home Assistant refuses the token, or the token's user may not read the names. The message is for users."""


class HomeNames:
    """Keeps the names of a home. A thread of its own reads them, so that no utterance waits for Home Assistant.

    While Home Assistant cannot be reached, the names that were read before remain.
    """

    def __init__(self, address: str, token: str) -> None:
        """`address`: http or https, without a slash at its end. The thread begins at once."""
        # The names that were read last, the most likely ones first. Replaced, never changed in place: other threads
        # read them without a lock.
        self.current: tuple[str, ...] = ()
        self.refusal = ""  # why Home Assistant refuses to be read, "" if it does not
        self._url = f"{address.replace('http', 'ws', 1)}/api/websocket"
        self._token = token
        self._problem = ""  # the last one that was logged
        self.tried = threading.Event()  # set after the first try to read the names
        self._closed = threading.Event()
        self._socket: ClientConnection | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._closed.set()
        # The thread checks `_closed` after it has set `_socket`, so either it stops or its socket is closed here.
        if (socket := self._socket) is not None:
            socket.close()

    def _run(self) -> None:
        delay_s = _FIRST_DELAY_S
        while not self._closed.is_set():
            try:
                for names in self._read():
                    delay_s = _FIRST_DELAY_S
                    self._take(names)
            except HomeRefused as refused:
                self.refusal, delay_s = str(refused), _LONGEST_DELAY_S
                self._report(self.refusal)
            except (OSError, WebSocketException) as error:
                self._report(f"Home Assistant cannot be reached ({type(error).__name__}).")
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                self._report("Home Assistant's answers are not those that are known.")
            self.tried.set()
            self._closed.wait(delay_s)
            delay_s = min(2 * delay_s, _LONGEST_DELAY_S)

    def _read(self) -> Iterator[tuple[str, ...]]:
        """Yield the names now and after each change, until the connection breaks."""
        with connect(
            self._url, open_timeout=_ANSWER_S, close_timeout=1, max_size=_MAX_MESSAGE_BYTES, proxy=None
        ) as socket:
            self._socket = socket
            if self._closed.is_set():
                return
            home = _Connection(socket, self._token)
            while True:
                yield home.names()
                home.wait_for_change()

    def _take(self, names: tuple[str, ...]) -> None:
        if self._problem or names != self.current:
            logger.info("names of the home", names=len(names), characters=len(", ".join(names)))
        self.current, self.refusal, self._problem = names, "", ""
        self.tried.set()

    def _report(self, problem: str) -> None:
        """Log a problem, but not at every try."""
        if problem != self._problem and not self._closed.is_set():
            logger.warning("no names of the home", reason=problem)
        self._problem = problem


class _Connection:
    """A connection on which the token was accepted, and which reports changes."""

    def __init__(self, socket: ClientConnection, token: str) -> None:
        self._socket = socket
        self._number = 0
        self._is_changed = False
        self._receive(_ANSWER_S)
        socket.send(json.dumps({"type": "auth", "access_token": token}))
        if self._receive(_ANSWER_S)["type"] != "auth_ok":
            raise HomeRefused("Home Assistant refuses the token.")
        for event in _EVENTS:
            self._ask("subscribe_events", event_type=event)

    def names(self) -> tuple[str, ...]:
        """Read all names and return those that are to be expected, the most likely ones first."""
        self._is_changed = False
        exposed = self._ask("homeassistant/expose_entity/list")["exposed_entities"]
        states = {state["entity_id"]: state["attributes"].get("friendly_name") for state in self._ask("get_states")}
        wanted = [entity for entity, shown in exposed.items() if shown.get(_ASSIST) and entity in states]
        entries = self._ask("config/entity_registry/get_entries", entity_ids=wanted)
        places = [*self._ask("config/area_registry/list"), *self._ask("config/floor_registry/list")]
        entities = {
            # An alias may be None, which stands for the entity's own name.
            entity: [states[entity], *((entries[entity] or {}).get("aliases") or ())]
            for entity in wanted
        }
        return expected_names([name for place in places for name in (place["name"], *place["aliases"])], entities)

    def wait_for_change(self) -> None:
        """Return after a change, once no other follows for a while, or when it is time to read again anyway."""
        with suppress(TimeoutError):
            if not self._is_changed:
                self._receive(_REREAD_S)
            ends_s = time.monotonic() + _LONGEST_UNSETTLED_S
            while time.monotonic() < ends_s:
                self._receive(_SETTLED_S)

    def _ask(self, kind: str, **fields: Any) -> Any:
        """Send a command and return its result. Raises TimeoutError, and `HomeRefused` if it is not permitted."""
        self._number += 1
        self._socket.send(json.dumps({"id": self._number, "type": kind, **fields}))
        ends_s = time.monotonic() + _ANSWER_S
        while True:
            message = self._receive(ends_s - time.monotonic())
            if message["type"] == "event":
                self._is_changed = True
            elif message["id"] == self._number:
                break
        if message["success"]:
            return message["result"]
        if message["error"]["code"] == "unauthorized":
            raise HomeRefused("Home Assistant's token is not that of an administrator.")
        raise ValueError(kind)

    def _receive(self, timeout_s: float) -> Any:
        return json.loads(self._socket.recv(timeout=max(timeout_s, 0)))


def expected_names(places: Iterable[object], entities: dict[str, list[object]]) -> tuple[str, ...]:
    """Return the names to expect in commands, each once. `entities`: the names of each entity by its id.

    Names of places come first, since each is said for many entities, then names of entities that take commands, then
    names of sensors. Each kind is in alphabetical order: to the engine, another order would be another text. At most
    300 names, with 4,000 characters, are kept.
    """
    sensors = {entity for entity in entities if entity.startswith(_SENSORS)}
    actors = entities.keys() - sensors
    kinds = (places, *(chain.from_iterable(entities[entity] for entity in kind) for kind in (actors, sensors)))
    usable = ({name for name in map(_cleaned, kind) if name} for kind in kinds)
    ordered = chain.from_iterable(sorted(kind, key=lambda name: (name.casefold(), name)) for kind in usable)
    return fitting(ordered, _MAX_CHARACTERS)[:_MAX_NAMES]


def fitting(words: Iterable[str], characters: int) -> tuple[str, ...]:
    """Return the first words, each once, that fit into this many characters, with commas between them."""
    once: dict[str, str] = {}
    for word in words:
        once.setdefault(word.casefold(), word)
    ends = accumulate(len(word) + len(", ") for word in once.values())
    return tuple(word for word, end in zip(once.values(), ends, strict=True) if end <= characters)


def _cleaned(name: object) -> str:
    """Return a name on one line and without commas, which would divide it; "" for a name that nobody says."""
    text = " ".join(name.replace(",", " ").split()) if isinstance(name, str) else ""
    return text if len(text) <= _MAX_NAME_CHARACTERS and any(map(str.isalpha, text)) else ""
