"""`make gpu`: run every part on the GPU of this machine and write one JSON file with card, driver, torch and date.

Without a GPU it says so and ends with 1. `--device cpu` runs the same code on the demonstration model, to test it; the
file then says that its figures are a CPU's.
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from asr_server.engine import capabilities
from tools.gpu import agreement, capacity, eight_bits, exported_encoders, front_end, server, speed
from tools.gpu.rig import Rig

PARTS: dict[str, Callable[[Rig], dict[str, object]]] = {
    "load": speed.load,
    "float32_equals_package": agreement.with_package,
    "formats_agree": agreement.between_formats,
    "eight_bits": eight_bits.measure,
    "exported_encoders": exported_encoders.measure,
    "front_end": front_end.measure,
    "throughput": speed.throughput,
    "beside_package": speed.beside_package,
    "live_partial": speed.live_partial,
    "step_over_bandwidth": speed.step,
    "operations": speed.operations,
    "more_rows": speed.more_rows,
    "server": server.measure,
    "memory_plan": capacity.plan,
    "out_of_memory": capacity.drill,
}


def main(arguments: list[str]) -> int:
    """The exit code: 0 if every part passed."""
    parser = argparse.ArgumentParser(prog="python -m tools.gpu", description=__doc__)
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N, or cpu to test the code without a GPU")
    parser.add_argument(
        "--shape", default="0.6b", choices=("demo", "0.6b", "1.7b"), help="random weights of that shape"
    )
    parser.add_argument("--out", type=Path, default=Path("build/gpu.json"))
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}; default: all")
    parsed = parser.parse_args(arguments)
    if unknown := set(parsed.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    if reason := _no_gpu(parsed.device):
        print(f"Nothing was measured: {reason}.", file=sys.stderr)
        return 1
    rig = Rig(parsed.device, parsed.shape)
    found: dict[str, object] = {**_machine(parsed.device), "shape": parsed.shape}
    failed = []
    for name in parsed.parts or PARTS:
        print(name, file=sys.stderr, flush=True)
        try:
            found[name] = PARTS[name](rig)
        except Exception as error:  # the other parts are measured, and the exit code says that one failed
            found[name] = {"failed": f"{type(error).__name__}: {error}"}
            failed.append(name)
    found["failed"] = failed
    parsed.out.parent.mkdir(parents=True, exist_ok=True)
    parsed.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")
    print(f"{parsed.out}: {'failed: ' + ', '.join(failed) if failed else 'all parts passed'}", file=sys.stderr)
    return 1 if failed else 0


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
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
