"""`make gpu`: run the parts on the GPU of this machine, and write one JSON file with card, driver, torch and date.

The file is written, and a part's figures are printed, when the part ends. After `--seconds` no part begins. Without a
GPU it says so and ends with 1. `--device cpu` runs the same code on the demonstration model, to test it; the file then
says that its figures are a CPU's.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from asr_server.engine import capabilities, memory
from tools.gpu import agreement, capacity, first, server, speed
from tools.gpu.rig import Rig

Part = Callable[[Rig], dict[str, object]]
# In the order of their worth: a lease may end at any of them.
PARTS: dict[str, Part] = {
    "trial": first.trial,
    "load": first.load,
    "eight_clips": agreement.eight_clips,
    "step_over_bandwidth": speed.step,
    "throughput": speed.throughput,
    "server": server.recordings_of_callers,
    "short_clips": server.short_clips,
    "live": server.live_sessions,
    "memory_plan": capacity.plan,
    "out_of_memory": capacity.drill,
    "formats_agree": agreement.between_formats,
    "small_model": speed.small_model,
}
# Only where they are named: they need packages that are not carried, or more time.
MORE: dict[str, Part] = {
    "float32_equals_package": agreement.with_package,
    "eight_bits": lambda rig: _module("eight_bits").measure(rig),
    "exported_encoders": lambda rig: _module("exported_encoders").measure(rig),
    "beside_package": speed.beside_package,
    "live_partial": speed.live_partial,
    "operations": speed.operations,
}


def _module(name: str) -> Any:
    return importlib.import_module(f"tools.gpu.{name}")


def main(arguments: list[str]) -> int:
    """The exit code: 0 if every part passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to test the code without a GPU")
    parser.add_argument(
        "--shape", default="1.7b", choices=("demo", "0.6b", "1.7b"), help="random weights of that shape"
    )
    parser.add_argument("--seconds", type=float, default=540.0, help="no part begins later than this")
    parser.add_argument("--out", type=Path, default=Path("build/gpu.json"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: {', '.join(PARTS)}; also {', '.join(MORE)}")
    parsed = parser.parse_args(arguments)
    until_s = time.monotonic() + parsed.seconds
    if unknown := set(parsed.parts) - {*PARTS, *MORE}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if reason := _no_gpu(parsed.device):
        print(f"Nothing was measured: {reason}.", file=sys.stderr)
        return 1
    rig = Rig(parsed.device, parsed.shape)
    found: dict[str, Any] = {**_machine(parsed.device), "shape": parsed.shape, "pass_tokens": memory.MOST_TOKENS}
    found |= {"took_s": {}, "failed": [], "not_begun": []}
    parsed.out.parent.mkdir(parents=True, exist_ok=True)
    for name in parsed.parts or PARTS:
        if (began_s := time.monotonic()) >= until_s:
            found["not_begun"].append(name)
        else:
            try:
                found[name] = {**PARTS, **MORE}[name](rig)
            except Exception as error:  # the other parts are measured, and the exit code says that one failed
                found[name] = {"failed": f"{type(error).__name__}: {error}"}
                found["failed"].append(name)
            found["took_s"][name] = round(time.monotonic() - began_s, 1)
            print(name, f"{found['took_s'][name]} s", json.dumps(found[name]), file=sys.stderr, flush=True)
        new = parsed.out.with_suffix(".new")
        new.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
        new.replace(parsed.out)
    server.stop(rig)
    for name in ("failed", "not_begun"):
        print(f"{name}: {', '.join(found[name]) or 'none'}", file=sys.stderr)
    return 1 if found["failed"] else 0


def _no_gpu(device: str) -> str:
    """Return why the device cannot be used; "" if it can."""
    if device == "cpu":
        return ""
    probed = capabilities.probe()
    if not probed.gpu:
        return "no NVIDIA or AMD driver was found on this machine"
    if not probed.torch_cuda:
        return f"the installed torch is a {probed.gpus.build} build"
    import torch

    return "" if torch.cuda.is_available() else "torch finds no GPU that it can use"


def _machine(device: str) -> dict[str, object]:
    import torch

    gpus = capabilities.probe().gpus
    about: dict[str, object] = {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
        "measured_on_a_gpu": device != "cpu",
        "driver": ".".join(map(str, gpus.driver_version)) or str(gpus.driver),
    }
    if device != "cpu":
        about["card"] = torch.cuda.get_device_name(device)
        about["compute_capability"] = ".".join(map(str, torch.cuda.get_device_capability(device)))
        about["memory_mb"] = torch.cuda.get_device_properties(device).total_memory // 2**20
    return about


def _commit() -> str:
    command = ["git", "describe", "--always", "--abbrev=40", "--dirty"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:  # no git on this machine
        return ""
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
