"""A fake Home Assistant with the names of a home: it answers on the WebSocket API and reports changes."""

import json
import threading
from contextlib import contextmanager, suppress

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import serve

TOKEN = "long-lived-access-token"


class FakeHome:
    """The registries, which a test may change, and how the home behaves. `tokens`: the tokens that it received."""

    def __init__(self):
        self.areas = [{"area_id": "kitchen", "name": "Kitchen", "aliases": ["Scullery"]}]
        self.floors = [{"floor_id": "attic", "name": "Attic", "aliases": []}]
        self.states = {"sensor.outside": "Outdoor Temperature", "light.kitchen": "Bright Lamp"}
        self.states["light.hidden"] = "Secret"
        self.aliases = {"light.kitchen": [None, "Chandelier"]}
        self.exposed = {key: {"conversation": True} for key in ("light.kitchen", "sensor.outside", "light.gone")}
        self.exposed["light.hidden"] = {"cloud.alexa": True}
        self.is_admin = True
        self.answers = threading.Event()  # while this is not set, the home is silent after the token
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
        """Send an event to its subscribers."""
        for socket, numbers in list(self._sockets.items()):
            if event in numbers:
                content = {"event_type": event, "data": {"action": "update"}}
                socket.send(json.dumps({"id": numbers[event], "type": "event", "event": content}))

    def _answer(self, socket, asked):
        if asked["type"] == "subscribe_events":
            self._sockets.setdefault(socket, {})[asked["event_type"]] = asked["id"]
        answer = {"id": asked["id"], "type": "result", "success": True, "result": self._result(asked)}
        if asked["type"] == "homeassistant/expose_entity/list" and not self.is_admin:
            answer |= {"success": False, "error": {"code": "unauthorized", "message": "Unauthorized"}}
        socket.send(json.dumps(answer))

    def _result(self, asked):
        states = [{"entity_id": one, "attributes": {"friendly_name": name}} for one, name in self.states.items()]
        entries = {one: {"aliases": aliases} for one, aliases in self.aliases.items()}
        results = {
            "homeassistant/expose_entity/list": {"exposed_entities": self.exposed},
            "get_states": states,
            "config/entity_registry/get_entries": {one: entries.get(one) for one in asked.get("entity_ids", ())},
            "config/area_registry/list": self.areas,
            "config/floor_registry/list": self.floors,
        }
        return results.get(asked["type"])


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
