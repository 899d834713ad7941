"""A long recording as a job, which outlives this program and the server: python jobs.py recording.wav [SERVER] [KEY]

Needs `pip install httpx`.
"""

import json
import sys

import httpx

recording = sys.argv[1]
server = sys.argv[2] if len(sys.argv) > 2 else "http://127.0.0.1:8100"
key = sys.argv[3] if len(sys.argv) > 3 else "none"

with httpx.Client(base_url=server, headers={"Authorization": f"Bearer {key}"}, timeout=None) as client:
    with open(recording, "rb") as file:
        fields = {"model": "whisper-1", "response_format": "srt"}
        taken = client.post("/v1/jobs", files={"file": file}, data=fields).raise_for_status().json()
    print("job", taken["id"])
    with client.stream("GET", f"/v1/jobs/{taken['id']}/events") as events:
        for line in events.iter_lines():
            if line.startswith("data: {"):
                now = json.loads(line.removeprefix("data: "))
                print(now.get("status", "over"), f"{now.get('progress', {}).get('fraction') or 0:.0%}")
    print(client.get(f"/v1/jobs/{taken['id']}/result").raise_for_status().text)
    client.delete(f"/v1/jobs/{taken['id']}").raise_for_status()
