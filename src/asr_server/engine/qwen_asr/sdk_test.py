"""Libraries that the SDK need not load are not loaded, in a process that has imported nothing yet."""

import json
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.nightly]  # 10 s to import what is spared otherwise

SPARED = ("librosa", "nagisa", "scipy", "soundfile")
PROGRAM = f"""
import json, sys
from asr_server.engine.qwen_asr import aligner_runtime, runtime, sdk, sdk_text
unloaded = [name for name in {SPARED} if name not in sys.modules]
words, _ = sdk_text.Qwen3ForceAlignProcessor().encode_timestamp("東京に行きます", "Japanese")
import scipy, soundfile
print(json.dumps([unloaded, "nagisa" in sys.modules, words, sys.float_info.min / 2]))
"""


def test_the_engine_comes_without_what_it_never_calls():
    """Japanese is split all the same, which leaves the thread's arithmetic as it was, and the other libraries can be
    imported."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=110)
    unloaded, loaded, words, subnormal = json.loads(done.stdout)
    assert (unloaded, loaded) == (list(SPARED), True)
    assert "".join(words) == "東京に行きます"
    assert len(words) > 2
    assert subnormal > 0


def test_the_sdk_loads_behind_transformers_too():
    """transformers knows by then whether scikit-learn is there."""
    program = "from transformers import AutoTokenizer; from asr_server.engine.qwen_asr import sdk"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=110)
