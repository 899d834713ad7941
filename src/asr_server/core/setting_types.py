"""Types of the settings that take one of a few values."""

from __future__ import annotations

from enum import StrEnum


class Endpointing(StrEnum):
    """The way in which a pause in live speech is judged."""

    AUTO = "auto"
    MANUAL = "manual"
    PAUSE = "pause"
    SEMANTIC = "semantic"


class Dtype(StrEnum):
    """Number format of the weights and activations."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Fusion(StrEnum):
    """Code that computes several small operations of a layer at once."""

    AUTO = "auto"
    NONE = "none"
    KERNELS = "kernels"
    COMPILE = "compile"


class LogLevel(StrEnum):
    """The least severe log line that is written."""

    TRACE = "TRACE"
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"
    ERROR = "ERROR"


class ModelLibrary(StrEnum):
    """Library that runs a language model."""

    AUTO = "auto"
    OPENVINO = "openvino"
    TORCH = "torch"


class Quantization(StrEnum):
    """Number format of the matrices of linear layers."""

    AUTO = "auto"
    NONE = "none"
    INT8 = "int8"
    INT4 = "int4"
    FP8 = "fp8"
