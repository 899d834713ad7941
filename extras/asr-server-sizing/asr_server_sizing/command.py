"""`asr-server size`: how much one replica serves, and how many replicas a load needs, from measured costs."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asr_server.cli import arguments
from asr_server.cli.failure import Exit, Failure, UsageError, complain, shown

if TYPE_CHECKING:
    from asr_server.core.settings import Settings
    from asr_server_sizing.planning import Plan
    from asr_server_sizing.profile import Profile
    from asr_server_sizing.simulation import Load, Servers

EXAMPLES = (
    "asr-server size --live 10000 --recordings 50 --model 1.7B --gpu h100",
    "asr-server size --live 200 --voiced 0.8 --p95 0.5 --model 0.6B --gpu h100 --json",
    "asr-server size --measure --save costs.json --live 4",
    "asr-server size --costs build/gpu.json --recordings 3000",
    "asr-server size --server http://gpu-1:8100 --live 500",
)
_CODES = (
    "exit codes: 0 planned; 1 no number of replicas is enough, or measuring failed; 2 wrong arguments or settings; "
    "3 no server"
)
_MOST_LOAD = 10_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    arguments.explain(parser, EXAMPLES, _CODES)
    load = parser.add_argument_group("the load")
    load.add_argument("--live", type=_number, default=0, metavar="N", help="live sessions at the same time")
    load.add_argument("--voiced", type=_share, default=0.5, help="share of the time that people speak (default 0.5)")
    load.add_argument(
        "--recordings", type=_amount, default=0.0, metavar="S", help="seconds of recordings that come in a second"
    )
    load.add_argument(
        "--recording-length", type=_seconds, default=300.0, metavar="S", help="seconds of a recording (default 300)"
    )
    costs = parser.add_argument_group("what steps cost: one of these")
    source = costs.add_mutually_exclusive_group(required=True)
    source.add_argument("--gpu", metavar="NAME", help="a GPU that was measured, with --model; see docs/run/cluster.md")
    source.add_argument("--costs", type=Path, metavar="FILE", help="made by --save, or by make gpu")
    source.add_argument("--measure", action="store_true", help="measure this machine with the environment's settings")
    arguments.add_server(source)
    arguments.add_key(costs)
    costs.add_argument("--model", metavar="NAME", help="with --gpu: 0.6B or 1.7B")
    costs.add_argument("--save", type=Path, metavar="FILE", help="with --measure: write the costs to a file")
    wanted = parser.add_argument_group("what is wanted")
    wanted.add_argument(
        "--p95", type=_seconds, default=1.0, metavar="S", help="most seconds of 95 %% of live answers (default 1)"
    )
    wanted.add_argument("--spare", type=_number, default=1, metavar="N", help="replicas that may fail (default 1)")
    parser.add_argument("--json", action="store_true", help="print the figures as one JSON object")
    parser.set_defaults(run=_run)


def _run(parsed: argparse.Namespace) -> int:
    if not (parsed.live or parsed.recordings or parsed.measure):
        raise UsageError("say what the load is: --live N, --recordings S, or both.")
    if parsed.save and not parsed.measure:
        raise UsageError("--save needs --measure.")
    if bool(parsed.gpu) != bool(parsed.model):
        raise UsageError("--gpu and --model belong together.")
    if parsed.server:
        return _plan_by_server(parsed)
    from asr_server.core import settings
    from asr_server.core.errors import AsrError
    from asr_server_sizing.planning import TooMuch

    chosen = settings.load()
    try:
        profile = _measured(chosen) if parsed.measure else _read(parsed)
    except (AsrError, ValueError) as error:
        complain("size", f"nothing was measured: {error}")
        return Exit.FAILED
    if parsed.save:
        _save(profile, parsed.save)
    if not (parsed.live or parsed.recordings):
        print(
            json.dumps(_costs(profile), indent=2) if parsed.json else "\n".join(_table(_cost_rows_of(_costs(profile))))
        )
        return Exit.DONE
    try:
        return _plan(parsed, chosen, profile)
    except TooMuch as error:
        complain("size", str(error))
        return Exit.FAILED


def _plan_by_server(parsed: argparse.Namespace) -> int:
    from asr_server_sizing import size_running

    try:
        figures = size_running.plan(parsed.server, arguments.key(parsed), parsed.live, parsed.recordings)
    except Failure as error:
        complain("size", error.message)
        return Exit.FAILED
    figures["replicas"] = figures["needed_replicas"] + parsed.spare
    figures["spare_replicas"] = parsed.spare
    print(json.dumps(figures, indent=2) if parsed.json else "\n".join(_table(_rows_by_server(figures))))
    return Exit.DONE


def _rows_by_server(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    capacity = figures["capacity"]
    yield "server", figures["server"]
    yield (
        "takes",
        f"{capacity['streams']:,} live sessions; {capacity['audio_s_per_s']:,.1f} s of recordings in a second",
    )
    yield "replicas", _replicas(figures)
    yield from _labelled("estimated", figures["estimates"])


def _replicas(figures: dict[str, Any]) -> str:
    return f"{figures['replicas']:,}" + (
        f", {figures['spare_replicas']} of them spare" if figures["spare_replicas"] else ""
    )


def _labelled(label: str, sentences: list[str]) -> Iterator[tuple[str, str]]:
    for number, sentence in enumerate(sentences):
        yield "" if number else label, sentence


def _read(parsed: argparse.Namespace) -> Profile:
    from asr_server_sizing import files

    if parsed.costs:
        try:
            return files.read(parsed.costs)
        except OSError as error:
            raise UsageError(f"--costs {shown(str(parsed.costs))} cannot be read: {error.strerror}.") from None
        except files.ProfileError as error:
            raise UsageError(f"--costs {shown(str(parsed.costs))} cannot be used: {error}.") from None
    known = files.known()
    for profile in known:
        if parsed.gpu.lower() in profile.hardware.lower().split() and profile.model.lower().endswith(
            f"-{parsed.model.lower()}"
        ):
            return profile
    there = "; ".join(f"--gpu {_short(profile)} --model {profile.model.rpartition('-')[2]}" for profile in known)
    raise UsageError(
        f"nothing was measured for {shown(parsed.model)} on {shown(parsed.gpu)}, and it cannot be guessed. On such a "
        f"machine, run asr-server size --measure --save costs.json, and use --costs costs.json. Known: {there}."
    )


def _short(profile: Profile) -> str:
    return profile.hardware.split()[1].lower()


def _measured(chosen: Settings) -> Profile:
    """Measure the engine of these settings. Raises `AsrError`, `ValueError`, `PlanError`."""
    import numpy as np

    from asr_server import demo, feature_list
    from asr_server.cli import pcm
    from asr_server.engine import registry
    from asr_server_sizing.measure import Measurement

    resolved = feature_list.resolve(chosen)
    if resolved.remote is not None:
        raise UsageError("the model runs elsewhere (REMOTE_ENGINE), where its steps cannot be measured.")
    sample = demo.sample() if resolved.model_id == "demo" else demo.speech()
    clip = np.frombuffer(asyncio.run(pcm.decoded(sample.recording)), "<i2").astype(np.float32) / np.float32(32_768)
    engine = registry.build(resolved)
    _say("loading the model")
    engine.load()
    try:
        _say("measuring")
        return Measurement(engine, clip).profile()
    finally:
        engine.unload()


def _say(what: str) -> None:
    print(f"asr-server size: {what}", file=sys.stderr, flush=True)


def _save(profile: Profile, path: Path) -> None:
    from asr_server_sizing import files

    try:
        files.write(profile, path)
    except OSError as error:
        raise UsageError(f"--save {shown(str(path))} cannot be written: {error.strerror}.") from None


def _plan(parsed: argparse.Namespace, chosen: Settings, profile: Profile) -> int:
    from asr_server_sizing import planning
    from asr_server_sizing.replica import Limits
    from asr_server_sizing.simulation import Load, Servers
    from asr_server_sizing.speech import LiveRules

    profile = replace(profile, slots=chosen.max_batch or profile.slots)
    load = Load(parsed.live, parsed.voiced, parsed.recordings, parsed.recording_length)
    servers = Servers(
        1,
        profile,
        LiveRules.of(chosen),
        replace(planning.HOST, shared_cores=profile.cores),
        Limits(chosen.max_live_sessions, chosen.max_queue_audio_s, chosen.request_timeout),
    )
    targets = planning.Targets(parsed.p95, parsed.p95)
    found = planning.plan(servers, load, targets, lambda replicas: _say(f"simulating one of {replicas:,} replicas"))
    figures = _figures(parsed, servers, load, found)
    print(json.dumps(figures, indent=2) if parsed.json else "\n".join(_table(_rows(figures))))
    return Exit.DONE


def _figures(parsed: argparse.Namespace, servers: Servers, load: Load, found: Plan) -> dict[str, Any]:
    """Return all figures, with units in their names. None for answers that did not come in the simulated time."""
    from asr_server_sizing import planning

    def ranks(values: list[float]) -> dict[str, float] | None:
        shares = {"p50": planning.rank(values, 0.5), "p95": planning.rank(values, 0.95)}
        return {name: round(value, 3) for name, value in shares.items() if value is not None} or None

    outcome = found.outcome
    return {
        **_costs(servers.profile),
        "load": asdict(load),
        "target_p95_s": parsed.p95,
        "replicas": found.replicas + parsed.spare,
        "needed_replicas": found.replicas,
        "spare_replicas": parsed.spare,
        "bound_by": found.bound.value if found.bound else None,
        "one_replica": {
            "live": found.share.live,
            "recordings_s_per_s": round(found.share.recordings_s_per_s, 3),
            "partial_s": ranks(outcome.lags.partials_s),
            "final_s": ranks(outcome.lags.finals_s),
            "recording_done_s": ranks(outcome.uploads_s),
            "engine_busy": round(min(1.0, outcome.busy), 3),
            "event_loop_busy": round(found.host_load, 3),
            "voice_detection_busy": round(found.detection_load, 3),
        },
        "recordings_alone_s_per_s": {
            "engine": round(planning.recordings_limit(servers.profile), 1),
            "event_loop": round(planning.MOST_HOST_LOAD / servers.host.recording_loop_s, 1),
        },
        "estimates": [*_estimates(servers.profile), planning.HOST_SOURCE],
    }


def _estimates(profile: Profile) -> list[str]:
    """Return a sentence for each figure that was not measured."""
    found = [*profile.assumptions]
    if profile.slots > profile.measured_rows:
        found.append(f"Steps of more than {profile.measured_rows} rows were not measured: their costs are extended.")
    return found


def _costs(profile: Profile) -> dict[str, Any]:
    return {
        "model": profile.model,
        "hardware": profile.hardware,
        "measured_on": profile.measured_on,
        "source": profile.source,
        "rows": profile.slots,
        "steps": asdict(profile.steps),
    }


def _rows(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield from _cost_rows_of(figures)
    load, one = figures["load"], figures["one_replica"]
    yield "load", _load(load["live"], load["recordings_s_per_s"], load["voiced"])
    bound = f"; bound by {figures['bound_by']}" if figures["bound_by"] else ""
    yield "replicas", _replicas(figures) + bound
    yield "one replica", _load(one["live"], one["recordings_s_per_s"], load["voiced"])
    for name, key in (("partials", "partial_s"), ("finals", "final_s"), ("recordings", "recording_done_s")):
        if (ranks := one[key]) is not None:
            yield f"  {name}", f"p50 {ranks['p50']:.3f} s, p95 {ranks['p95']:.3f} s (simulated)"
    host = f"event loop {one['event_loop_busy']:.0%} and voice detection {one['voice_detection_busy']:.0%} of a core"
    yield "  busy", f"engine {one['engine_busy']:.0%}, {host}"
    alone = figures["recordings_alone_s_per_s"]
    limits = f"engine {alone['engine']:,.0f}, event loop {alone['event_loop']:,.0f}"
    yield "without live", f"at most so many seconds of recordings in a second: {limits}"
    yield from _labelled("estimated", figures["estimates"])


def _load(live: int, recordings_s_per_s: float, voiced: float) -> str:
    parts = [f"{live:,} live sessions with speech {voiced:.0%} of the time"] if live else []
    parts += [f"{recordings_s_per_s:,.2f} s of recordings in a second"] if recordings_s_per_s else []
    return ", ".join(parts)


def _cost_rows_of(figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    steps = figures["steps"]
    yield "model", f"{figures['model']} on {figures['hardware']}, {figures['rows']} rows in a batch"
    yield "measured", f"{figures['measured_on']}, {figures['source']}"
    yield "decode step", f"{1000 * steps['decode_s']:.3f} ms and {1000 * steps['decode_row_s']:.3f} for each row"
    yield "prompts", f"{1000 * steps['prefill_s']:.3f} ms and {1000 * steps['prefill_token_s']:.4f} for each token"


def _table(rows: Iterable[tuple[str, str]]) -> list[str]:
    return [f"{name:<14}{value}" for name, value in rows]


def _number(text: str) -> int:
    return int(_within(text, _MOST_LOAD, whole=True))


def _amount(text: str) -> float:
    return _within(text, _MOST_LOAD)


def _seconds(text: str) -> float:
    if (found := _within(text, 86_400)) > 0:
        return found
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds above 0")


def _share(text: str) -> float:
    found = _within(text, 1)
    if found < 0.01:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share from 0.01 to 1")
    return found


def _within(text: str, most: float, *, whole: bool = False) -> float:
    try:
        found = int(text) if whole else float(text)
    except ValueError:
        found = -1
    if not 0 <= found <= most:  # nor NaN
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {most:,}")
    return found
