"""What the SDK need not load, it does not load, in a process that has imported nothing yet."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.nightly]  # 10 s to import what is spared otherwise

SPARED = ("librosa", "nagisa", "scipy", "soundfile")
PROGRAM = f"""
import json, sys
from asr_server.engine.qwen import aligner_runtime, runtime, sdk
unloaded = [name for name in {SPARED} if name not in sys.modules]
words, _ = sdk.Qwen3ForceAlignProcessor().encode_timestamp("東京に行きます", "Japanese")
import scipy, soundfile
print(json.dumps([unloaded, "nagisa" in sys.modules, words]))
"""


def test_the_engine_comes_without_what_it_never_calls():
    """And Japanese is split all the same, and whoever wants the others gets them."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=110)
    unloaded, loaded, words = json.loads(done.stdout)
    assert (unloaded, loaded) == (list(SPARED), True)
    assert "".join(words) == "東京に行きます"
    assert len(words) > 2


def test_the_sdk_loads_behind_transformers_too():
    """Which by then knows whether scikit-learn is there."""
    program = "from transformers import AutoTokenizer; from asr_server.engine.qwen import sdk"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=110)
