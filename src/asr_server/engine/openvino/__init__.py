"""Language models as compiled graphs of OpenVINO, for CPUs."""

import sys

# When OpenVINO is imported it reports to its makers by this package, which it requires. Without it, it reports nothing.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]
