"""Language models as compiled graphs of OpenVINO, for CPUs."""

import sys

# On import, OpenVINO reports to its makers through this package, which it requires. Without it, nothing is reported.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
