"""Language models as compiled graphs of OpenVINO, for CPUs."""
