"""Plays a session with whichever Python client is on the path: a script on stdin, what was seen on stdout."""

import json
import sys

import openai


def main() -> None:
    """Connect, send everything after the first event, read up to the event that ends the script."""
    script = json.load(sys.stdin)
    client = openai.OpenAI(
        base_url=script["base"], api_key=script["key"], websocket_base_url=script["base"].replace("http", "ws", 1)
    )
    realtime = client.realtime
    seen = []
    with realtime.connect(**script["props"]) as connection:
        for event in connection:
            seen.append(event.to_dict())
            if len(seen) == 1:
                for each in script["send"]:
                    connection.send(each)
            if event.type == script["until"]:
                break
    print(json.dumps({"events": seen, "version": openai.__version__}))


if __name__ == "__main__":
    main()
