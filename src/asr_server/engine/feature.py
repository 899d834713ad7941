"""The plan of an engine, and the hooks by which features add to it and to the server.

A feature lives in its own folder below `features/`, and the rest of the server does not know its name. The plan is
resolved with the features of the process and carries them to the code that builds from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from asr_server.engine.protocol import DEFAULT_TRAITS, Aligner, Engine, EngineTraits, Option

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from asr_server.core.settings import Settings
    from asr_server.engine.capabilities import Capabilities
    from asr_server.engine.cpu import CpuShare
    from asr_server.engine.qwen_asr.loading import Parts
    from asr_server.engine.qwen_asr.model_cache import CachedModel
    from asr_server.engine.qwen_asr.windows import LoadedEncoder
    from asr_server.engine.torch.linear import MakeLinear
    from asr_server.schedule.model import Batch


OnProgress = Callable[[], None]
# Builds an engine. The engine calls the first function on its own thread, inside of passes that may take long, and the
# second on any thread, while a load makes progress.
Build = Callable[["Plan", OnProgress, OnProgress], Engine]
# Loads the torch modules of a checkpoint. Also returns the function that makes their linear layers.
LoadParts = Callable[[], "tuple[Parts, MakeLinear]"]


@dataclass(frozen=True, slots=True)
class ModelServer:
    """A server that runs the model in place of this one."""

    url: str = ""  # with its `/v1`; "" for a server that `command` starts
    key: str = field(default="", repr=False)
    model: str = ""  # the model's name there, "" for the first that the server lists
    command: tuple[str, ...] = ()  # starts the server, without its address; () if it runs already


# JSON, and samples that belong to it.
Packed = tuple[dict[str, Any], "NDArray[np.float32] | None"]


@dataclass(frozen=True, slots=True)
class SharedModel(ABC):
    """A model of a feature that runs on the thread of the engine."""

    shares: int = field(default=1, kw_only=True)  # how many models share the memory

    @abstractmethod
    def pack(self, value: Any) -> Packed:
        """Return an item or an answer as JSON and samples, float32 (n,)."""

    @abstractmethod
    def unpack(self, packed: Packed) -> Any:
        """Return the item or the answer that `pack` was given."""


# Libraries that a language model computes in.
TORCH, OPENVINO = "torch", "openvino"


@dataclass(frozen=True, slots=True)
class Plan:
    """The parts and numbers that the engine is built from, chosen once at start."""

    engine: str
    model_id: str
    device: str
    dtype: str  # "auto" if it is only known after loading
    max_batch: int
    kv_budget_mb: int  # MiB for keys and values; 0: a share of the free memory
    options: tuple[Option, ...]
    aligner_id: str = ""  # "" for none
    model_revision: str = ""  # commit of a hub id, "" for any
    aligner_revision: str = ""  # commit of a hub id, "" for any
    traits: EngineTraits = DEFAULT_TRAITS
    fake_script: Path | None = None
    quantize: str = ""  # 8- or 4-bit format of linear layers, "" for none
    cpu_threads: int = 0  # computing threads; 0 leaves the number to the library
    runtime: str = TORCH  # the library that the language model computes in
    state_dir: Path | None = None  # the directory in which converted weights are kept; None to keep none
    # binds the calling thread, and those that it starts, to a part of the machine
    bind: Callable[[], None] | None = None
    remote: ModelServer | None = None  # the server that runs the model in place of this one
    build: Build | None = None  # builds the engine of a feature
    shares: int = 1  # how many models share the memory
    others: tuple[Plan, ...] = ()  # further models; this one is the default
    fast_model_id: str = ""  # the one of `others` that `dual_model` or `use_speculative` uses
    # models of features on the engine's thread, by the options that name them
    speech_models: Mapping[str, SharedModel] = field(default_factory=dict)
    features: tuple[Feature, ...] = ()  # the features that the plan was resolved with

    def value(self, name: str) -> str:
        return next((option.value for option in self.options if option.name == name), "")

    def reason(self, name: str) -> str:
        return next((option.reason for option in self.options if option.name == name), "")

    def is_active(self, option: str) -> bool:
        return any(one.name == option and one.active for one in self.options)

    def encoder(self, directory: Path, load: LoadParts) -> LoadedEncoder | None:
        return next(filter(None, (one.load_encoder(self, directory, load) for one in self.features)), None)


@dataclass(frozen=True, slots=True)
class Asked:
    """The input of a plan, for the hooks of features."""

    settings: Settings
    capabilities: Capabilities
    features: tuple[Feature, ...] = ()  # all features that the plan is resolved with


class EndOfTurnModel(Protocol):
    """Estimates from the sound whether a speaker has finished."""

    def probability(self, speech: NDArray[np.float32]) -> float:
        """Return how likely the speaker has finished, for mono speech (n,) at 16 kHz up to now.

        Called on one thread, which it may block. May raise anything if it cannot find out.
        """


@dataclass(frozen=True, slots=True)
class Placement:
    """The part of the machine that the engine's threads are bound to."""

    share: CpuShare  # how many threads fit there
    bind: Callable[[], None]  # as in the plan


@dataclass(frozen=True, slots=True)
class ModelFeature:
    """A model of another architecture, which runs on the CPU without torch and aligns words with its own weights."""

    engine: str  # the name of its engine
    model_id: str  # the value of MODEL_ID, and the value of FORCED_ALIGNER_ID that means its aligner
    reason: str  # what `/health` says about the engine
    aligner_reason: str  # what `/health` says about the aligner if none is named
    traits: EngineTraits
    build: Build
    build_aligner: Callable[[Engine], Aligner]
    package: str  # the package that contains its files
    stored: Callable[[], CachedModel]  # its files


# The option of the feature that has a model of the end of turns.
END_OF_TURN = "end_of_turn"


@dataclass(frozen=True, slots=True)
class Feature:
    """A feature as a value; a hook that a feature does not use keeps its default."""

    name: str  # the name of its folder
    options: Callable[[Asked], Iterable[Option]] = lambda asked: ()  # shown by `/health`, each with a reason
    # sentences about requested options that cannot run
    conflicts: Callable[[Asked], Iterable[str]] = lambda asked: ()
    end_of_turn: Callable[[], EndOfTurnModel] | None = None  # called if its option is active
    server: str = ""  # the module whose `SERVER` holds its additions to the server, "" for none
    open_paths: tuple[str, ...] = ()  # prefixes of paths that can be read without a key: their routes check a token
    placement: Callable[[Asked], Placement | None] = lambda asked: None
    # Returns one model's options for an encoder other than its own, and sentences about requested options that cannot
    # run. Takes torch's name of the model's device, "" if the model runs in neither torch nor OpenVINO.
    encoder_options: Callable[[Asked, str], tuple[tuple[Option, ...], list[str]]] = lambda asked, device: ((), [])
    # Returns the encoder that the plan names, for the checkpoint in a directory; None for the engine's own. Raises
    # `ModelUnavailable`, also if the plan does not fit the checkpoint.
    load_encoder: Callable[[Plan, Path, LoadParts], LoadedEncoder | None] = lambda plan, directory, load: None
    model: ModelFeature | None = None
    # The plan of a model that another server runs, if the settings ask for it. Takes the values of MODEL_ID that only
    # this server can run. Raises `PlanError`.
    elsewhere: Callable[[Asked, Collection[str]], Plan | None] = lambda asked, only_here: None
    # Models that run on the thread of the engine, whose accelerator they share, by the options that name them.
    shared_models: Callable[[Asked], Mapping[str, SharedModel]] = lambda asked: {}
    build_shared: Callable[[SharedModel, OnProgress, OnProgress], Batch] | None = None  # as `Build`
