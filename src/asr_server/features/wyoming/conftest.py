"""A Home Assistant as far as the names of a home go: it answers on its WebSocket API, and tells of changes."""

from __future__ import annotations

import json
import threading
from contextlib import contextmanager, suppress

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

TOKEN = "long-lived-access-token"
_UNAUTHORIZED = {"code": "unauthorized", "message": "Unauthorized"}


class FakeHome:
    """The registries, which a test may change, and how the home behaves. `tokens`: those that it was given."""

    def __init__(self):
        self.areas = [{"area_id": "kitchen", "name": "Kitchen", "aliases": ["Scullery"]}]
        self.floors = [{"floor_id": "attic", "name": "Attic", "aliases": []}]
        self.states = {
            "light.kitchen": "Bright Lamp",
            "sensor.outside": "Outdoor Temperature",
            "light.hidden": "Secret",
        }
        self.aliases = {"light.kitchen": [None, "Chandelier"]}
        self.exposed = {"light.kitchen": {"conversation": True}, "sensor.outside": {"conversation": True}}
        self.exposed |= {"light.hidden": {"cloud.alexa": True}, "light.gone": {"conversation": True}}
        self.is_admin = True
        self.answers = threading.Event()  # it is silent after the token while this is not set
        self.answers.set()
        self.tokens = []
        self._sockets = {}

    def handle(self, socket):
        with suppress(ConnectionClosed):
            socket.send(json.dumps({"type": "auth_required", "ha_version": "2026.10.4"}))
            self.tokens.append(json.loads(socket.recv())["access_token"])
            if self.tokens[-1] != TOKEN:
                socket.send(json.dumps({"type": "auth_invalid", "message": "Invalid access token or password"}))
                return
            socket.send(json.dumps({"type": "auth_ok", "ha_version": "2026.10.4"}))
            self.answers.wait(60)
            for message in socket:
                self._answer(socket, json.loads(message))

    def tell(self, event):
        """Send an event to those who subscribed to it."""
        for socket, numbers in list(self._sockets.items()):
            if event in numbers:
                content = {"event_type": event, "data": {"action": "update"}}
                socket.send(json.dumps({"id": numbers[event], "type": "event", "event": content}))

    def _answer(self, socket, asked):
        kind = asked["type"]
        if kind == "subscribe_events":
            self._sockets.setdefault(socket, {})[asked["event_type"]] = asked["id"]
        answer = {"id": asked["id"], "type": "result", "success": True, "result": self._result(asked)}
        if kind == "homeassistant/expose_entity/list" and not self.is_admin:
            answer = {"id": asked["id"], "type": "result", "success": False, "error": _UNAUTHORIZED}
        socket.send(json.dumps(answer))

    def _result(self, asked):
        match asked["type"]:
            case "homeassistant/expose_entity/list":
                return {"exposed_entities": self.exposed}
            case "get_states":
                return [
                    {"entity_id": entity, "state": "on", "attributes": {"friendly_name": name}}
                    for entity, name in self.states.items()
                ]
            case "config/entity_registry/get_entries":
                return {
                    entity: {"entity_id": entity, "aliases": self.aliases[entity]} if entity in self.aliases else None
                    for entity in asked["entity_ids"]
                }
            case "config/area_registry/list":
                return self.areas
            case "config/floor_registry/list":
                return self.floors
            case _:
                return None


@contextmanager
def home_at(home, port=0):
    """Serve a home; yields its address."""
    with serve(home.handle, "127.0.0.1", port) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.socket.getsockname()[1]}"
        finally:
            server.shutdown()
            thread.join()
