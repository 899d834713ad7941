import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from asr_server_sizing import files
from asr_server_sizing.files import ProfileError
from asr_server_sizing.profile import Profile, StepCosts

MEASURED = Path(__file__).parents[3] / "docs" / "change" / "benchmarks"
PROFILE = Profile("m", "h", "s", "2026-11-23", 8, 8, StepCosts(0.01, 0.001, 0.02, 1e-5), assumptions=("one",))


def test_known_profiles_are_those_of_the_published_measurements():
    """Nothing is planned with costs that no benchmark of docs/change/benchmarks has."""
    assert files.known()
    for profile in files.known():
        assert replace(files.read(MEASURED / Path(profile.source).name), source=profile.source) == profile


def test_what_is_written_is_read_again(tmp_path):
    """`--save` and `--costs` fit together."""
    files.write(PROFILE, tmp_path / "costs.json")
    assert files.read(tmp_path / "costs.json") == PROFILE


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "model"),
        (b"[]", "the file"),
        (b" " * 1_000_001, "too large"),
        (json.dumps(asdict(PROFILE) | {"slots": 0}).encode(), "slots"),
        (json.dumps(asdict(PROFILE) | {"partial_passes": []}).encode(), "partial_passes"),
        (json.dumps(asdict(PROFILE) | {"steps": {"decode_s": -1}}).encode(), "steps.decode_s"),
        (json.dumps({"step_over_bandwidth": {"failed": "RuntimeError"}}).encode(), "date"),
    ],
)
def test_a_file_that_is_none_is_refused_with_the_place(tmp_path, content, reason):
    """The message says what is wrong with it."""
    (tmp_path / "costs.json").write_bytes(content)
    with pytest.raises(ProfileError, match=reason):
        files.read(tmp_path / "costs.json")


def test_a_file_of_make_gpu_needs_batches_of_several_sizes(tmp_path):
    """One size of a batch gives no cost of a row."""
    found = json.loads((MEASURED / "2026-11-23-h100-0.6b.json").read_text())
    found["step_over_bandwidth"] = {"not_recorded": {"1_rows": {"step_ms": 10.0}}}
    (tmp_path / "gpu.json").write_text(json.dumps(found))
    with pytest.raises(ProfileError, match="differ"):
        files.read(tmp_path / "gpu.json")
