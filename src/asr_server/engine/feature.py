"""The plan of an engine, and the hooks by which features add to it and to the server.

A feature lives in its own folder below `features/`, and the rest of the server does not know its name. The plan is
resolved with the features of the process and carries them to whoever builds something from it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from asr_server.engine.protocol import AS_SET, DEFAULT_TRAITS, Aligner, Engine, EngineTraits, Option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asr_server.core.settings import Settings
    from asr_server.engine.capabilities import Capabilities
    from asr_server.engine.client import Drafting, EngineClient
    from asr_server.engine.cpu import CpuShare
    from asr_server.engine.qwen_asr.loading import Parts
    from asr_server.engine.qwen_asr.model_cache import CachedModel
    from asr_server.engine.qwen_asr.windows import LoadedEncoder
    from asr_server.engine.torch.linear import MakeLinear
    from asr_server.schedule.ports import Batch


OnProgress = Callable[[], None]


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server that runs the model in place of this one."""

    url: str = ""  # with its `/v1`; "" for a server that `command` starts
    key: str = field(default="", repr=False)
    model: str = ""  # its name there, "" for the first that it lists
    command: tuple[str, ...] = ()  # starts the server, without its address; () if it runs already


@dataclass(frozen=True, slots=True)
class SharedModel:
    """A model of a feature that runs on the thread of the engine."""

    shares: int = field(default=1, kw_only=True)  # how many models share the memory


# Libraries that a language model computes in.
TORCH, OPENVINO = "torch", "openvino"


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts and numbers that the engine is built from, chosen once at start."""

    engine: str
    model_id: str
    device: str
    dtype: str  # "auto" where only loading can tell
    max_batch: int
    kv_budget_mb: int  # MiB for keys and values; 0: a share of what is free
    options: tuple[Option, ...]
    aligner_id: str = ""  # "" where there is none
    model_revision: str = ""  # commit of a hub id, "" for any
    aligner_revision: str = ""  # commit of a hub id, "" for any
    traits: EngineTraits = DEFAULT_TRAITS
    fake_script: Path | None = None
    quantize: str = ""  # 8-bit format of linear layers, "" for none
    cpu_threads: int = 0  # computing threads; 0 leaves the number to the library
    runtime: str = TORCH  # the library that the language model computes in
    state_dir: Path | None = None  # the directory in which converted weights are kept; None for none
    bind: Callable[[], None] | None = (
        None  # binds the calling thread, and those that it starts, to a part of the machine
    )
    remote: ModelServer | None = None  # the server that runs the model in place of this one
    shares: int = 1  # how many models share the memory
    others: tuple[Plan, ...] = ()  # the models in addition to this one, the default
    fast_model_id: str = ""  # the one of `others` that `dual_model` or `use_speculative` uses
    # models of features on the engine's thread, by the options that name them
    speech_models: Mapping[str, SharedModel] = field(default_factory=dict)
    features: tuple[Feature, ...] = ()  # those that the plan was resolved with

    def value(self, name: str) -> str:
        """Return the value of an option, "" where it is inactive or unknown."""
        return next((option.value for option in self.options if option.name == name), "")

    def reason(self, name: str) -> str:
        """Return why an option is as it is, "" where it is unknown."""
        return next((option.reason for option in self.options if option.name == name), "")

    def is_active(self, option: str) -> bool:
        """True if the option of that name is active."""
        return any(one.name == option and one.active for one in self.options)

    def is_set(self, option: str) -> bool:
        """True if the operator has chosen the value of the option of that name."""
        return any(one.name == option and one.reason == AS_SET for one in self.options)


@dataclass(frozen=True, slots=True)
class Asked:
    """The input of a plan, for features that have a say in it."""

    settings: Settings
    capabilities: Capabilities
    features: tuple[Feature, ...] = ()  # all that the plan is resolved with


class EndOfTurnModel(Protocol):
    """Estimates from the sound whether a speaker has finished."""

    def probability(self, speech: NDArray[np.float32]) -> float:
        """Return how likely the speaker has finished, for mono speech (n,) at 16 kHz up to now.

        Called on one thread, which it may block. May raise anything where it cannot tell.
        """


@dataclass(frozen=True, slots=True)
class Placement:
    """The part of the machine that the engine's threads are bound to."""

    option: Option | None = None
    share: CpuShare | None = None  # how many threads fit there; None: as many as the process may use
    bind: Callable[[], None] | None = None  # as in the plan
    conflict: str = ""  # why what was asked for cannot be done


@dataclass(frozen=True, slots=True)
class EncoderFeature:
    """Encoders that Qwen3-ASR can have in place of its own."""

    # The options of one model, whose device by torch's name is given, "" where it does not run in torch; and sentences
    # that say what was asked for and cannot run.
    resolve: Callable[[Asked, str], tuple[tuple[Option, ...], list[str]]]
    # The encoder that the plan names, for the checkpoint in a directory; None for the engine's own. The function loads
    # the checkpoint's modules in torch, and says what their layers are made of. Raises `ModelUnavailable`.
    load: Callable[[Plan, Path, Callable[[], tuple[Parts, MakeLinear]]], LoadedEncoder | None]
    # Raises `ModelUnavailable` where the plan and the checkpoint in a directory do not fit. Called before `load`.
    check: Callable[[Plan, Path], None]


@dataclass(frozen=True, slots=True)
class ModelFeature:
    """A model of another architecture, which runs on the CPU without torch and aligns words with its own weights."""

    engine: str  # the name of its engine
    model_id: str  # the value of MODEL_ID, and the value of FORCED_ALIGNER_ID that means its aligner
    reason: str  # what `/health` says about the engine
    aligner_reason: str  # what `/health` says about the aligner where none is named
    traits: EngineTraits
    build: Callable[[Plan, OnProgress], Engine]
    build_aligner: Callable[[Engine], Aligner]
    package: str  # its files come with this
    stored: Callable[[], CachedModel]  # its files


@dataclass(frozen=True, slots=True)
class ElsewhereFeature:
    """An engine that has the model run by another server."""

    engine: str  # its name
    takes: Callable[[Settings], bool]  # whether the settings ask for it, whatever MODEL_ID is
    # Takes the values of MODEL_ID that only this server can run. Raises `PlanError`.
    resolve: Callable[[Asked, Collection[str]], Plan]
    build: Callable[[Plan, OnProgress, OnProgress], Engine]


@dataclass(frozen=True, slots=True)
class SharedFeature:
    """Models that run on the thread of the engine, whose accelerator they share."""

    resolve: Callable[[Asked, Placement], Mapping[str, SharedModel]]  # by the options that name them
    build: Callable[[SharedModel, OnProgress, OnProgress], Batch]  # the callbacks are those of `registry.build`


# The option of the feature that has a model of the end of turns.
END_OF_TURN = "end_of_turn"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature as a value; a hook that a feature does not use keeps its default."""

    name: str  # the name of its folder
    options: Callable[[Asked], Iterable[Option]] = lambda asked: ()  # shown by `/health`, each with a reason
    conflicts: Callable[[Asked], Iterable[str]] = (
        lambda asked: ()
    )  # sentences that say what was asked for and cannot run
    end_of_turn: Callable[[], EndOfTurnModel] | None = None  # called where its option is active
    extends: tuple[object, ...] = ()  # values for other features, which know their types
    placement: Callable[[Asked], Placement] | None = None
    encoders: EncoderFeature | None = None
    model: ModelFeature | None = None
    elsewhere: ElsewhereFeature | None = None
    shared: SharedFeature | None = None
    drafting: Callable[[EngineClient], Drafting] | None = None  # takes the client of FAST_MODEL_ID
