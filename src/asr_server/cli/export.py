"""`asr-server export`: writes the audio encoder of a model as a file for another runtime."""

from __future__ import annotations

import argparse
from pathlib import Path

from asr_server.cli.failure import CommandError, UsageError

EXAMPLES = """\
examples:
  asr-server export onnx --model Qwen/Qwen3-ASR-0.6B --output encoder.onnx
  asr-server export onnx --model Qwen/Qwen3-ASR-0.6B --int8 --output encoder-int8.onnx
  asr-server export tensorrt --onnx encoder.onnx --output encoder.engine     on the machine with the GPU

exit codes: 0 done; 1 not exported; 2 wrong arguments
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.epilog = EXAMPLES
    actions = parser.add_subparsers(required=True, metavar="FORMAT")
    onnx = actions.add_parser("onnx", help="for ONNX Runtime; ENCODER_PATH loads it")
    onnx.add_argument("--model", required=True, metavar="ID|DIR", help="as MODEL_ID")
    onnx.add_argument("--revision", default="", metavar="REV", help="commit, tag or branch of a hub id")
    onnx.add_argument("--int8", action="store_true", help="matrices in 8 bits")
    onnx.set_defaults(act=_onnx, packages=": pip install '.[gpu,export]'")
    tensorrt = actions.add_parser("tensorrt", help="for TensorRT, on this machine's GPU; ENCODER_PATH loads it")
    tensorrt.add_argument("--onnx", type=Path, required=True, metavar="FILE", help="made by `asr-server export onnx`")
    tensorrt.add_argument(
        "--max-windows", type=int, default=32, metavar="N", help="most windows of a call (default 32)"
    )
    tensorrt.set_defaults(act=_tensorrt, packages="; it needs an NVIDIA GPU: pip install tensorrt")
    for action in (onnx, tensorrt):
        action.add_argument("--output", type=Path, required=True, metavar="FILE", help="is overwritten")
        action.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> None:
    output = parsed.output
    if output.is_dir() or not output.parent.is_dir():
        raise UsageError(f"--output {output}: name a file in a directory that exists.")
    try:
        print(f"{output}: {parsed.act(parsed)}")
    except ImportError as error:
        raise CommandError(f"the package {error.name} is not installed{parsed.packages}") from None


def _onnx(parsed: argparse.Namespace) -> str:
    from asr_server.engine.qwen_asr import checkpoint

    directory = checkpoint.locate(parsed.model, revision=parsed.revision)
    from asr_server.features.encoders import onnx_export

    return str(onnx_export.export(directory, parsed.output, int8=parsed.int8))


def _tensorrt(parsed: argparse.Namespace) -> str:
    from asr_server.features.encoders import trt_encoder

    if not parsed.onnx.is_file():
        raise UsageError(f"{parsed.onnx}: there is no such file.")
    if not 1 <= parsed.max_windows <= trt_encoder.MOST_WINDOWS:
        raise UsageError(f"--max-windows is from 1 to {trt_encoder.MOST_WINDOWS}.")
    trt_encoder.export(parsed.onnx, parsed.output, max_windows=parsed.max_windows)
    return "built; the server compares it with torch's encoder when it loads it"
