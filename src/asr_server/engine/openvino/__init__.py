"""Language models as compiled graphs of OpenVINO, for CPUs."""

from asr_server.engine.stand_ins import replaced

# When it is imported it tells its makers, by this package, which is installed with it. Without, it tells nobody.
with replaced({"openvino_telemetry": None}):
    import openvino  # noqa: F401
