from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch

class PoolStats:
    budget: int
    live: int
    peak: int
    committed: int
    largest_hole: int
    external_fragmentation: float
    live_blocks: int
    allocations: int
    frees: int
    failures: int
    remaps: int
    quarantined: int
    stream_waits: int

class Pool:
    def __init__(self, budget: int, arena: str, address_space: int, device: int = 0) -> None: ...
    def allocate(self, size: int, remap: bool = True, stream: int = 0) -> int | None: ...
    def free(self, address: int) -> None: ...
    def record_stream(self, address: int, stream: int) -> None: ...
    def retire_stream(self, stream: int) -> None: ...
    def begin_quarantine(self) -> None: ...
    def end_quarantine(self) -> None: ...
    def free_neighbours(self, address: int) -> tuple[int, int]: ...
    def snapshot(self) -> list[tuple[int, int, bool]]: ...
    def stats(self) -> PoolStats: ...
    def trim(self) -> int: ...
    def reset_peak(self) -> None: ...
    def check(self) -> None: ...
    def holds(self, address: int) -> bool: ...
    @staticmethod
    def is_owned(address: int) -> bool: ...
    @property
    def budget(self) -> int: ...
    @property
    def arena(self) -> str: ...
    @property
    def page(self) -> int: ...
    @property
    def address_space(self) -> int: ...

class Neighbourhood:
    none: ClassVar[Neighbourhood]
    eqclass: ClassVar[Neighbourhood]
    full: ClassVar[Neighbourhood]
    ancestors: ClassVar[Neighbourhood]

class Selection:
    single: ClassVar[Selection]
    sample: ClassVar[Selection]
    random: ClassVar[Selection]
    window: ClassVar[Selection]

class Policy:
    eager: ClassVar[Policy]
    banish: ClassVar[Policy]
    ignore: ClassVar[Policy]

class Heuristic:
    def __init__(
        self,
        neighbourhood: Neighbourhood,
        cost_exp: float,
        size_exp: float,
        staleness_exp: float,
        fragmentation: float,
        recompute_penalty: float,
        selection: Selection,
        epsilon: int,
        seed: int,
    ) -> None: ...

class SessionStats:
    operators: int
    recorded: int
    evictions: int
    rematerializations: int
    records: int
    kernel_ns: int
    remat_ns: int
    search_ns: int
    bookkeeping_ns: int
    verified: int
    live_bytes: int
    peak_bytes: int
    evictable_bytes: int
    largest_operator_bytes: int

class Session:
    def __init__(
        self,
        budget: int,
        limited: bool,
        heuristic: Heuristic,
        policy: Policy,
        record: bool,
        logical_clock: bool,
        timeline: bool,
        evict_always: bool,
        verify: bool,
        thrash_limit: float,
    ) -> None: ...
    def enter(self) -> None: ...
    def leave(self) -> int: ...
    def evict(self, tensor: torch.Tensor) -> bool: ...
    def materialize(self, tensor: torch.Tensor) -> None: ...
    def pin(self, tensor: torch.Tensor) -> None: ...
    def is_evicted(self, tensor: torch.Tensor) -> bool: ...
    def commit(self) -> None: ...
    def start_trace(self) -> None: ...
    def take_trace(
        self,
    ) -> tuple[npt.NDArray[np.int64], list[str], npt.NDArray[np.int64]]: ...
    def step(self) -> None: ...
    def fail_allocation(self, k: int) -> None: ...
    def abandon_in_child(self) -> None: ...
    def stats(self) -> SessionStats: ...
    def pool_stats(self) -> PoolStats: ...
    def reset_peak(self) -> None: ...
    def timeline(self) -> list[int]: ...
    def check(self) -> None: ...

class EngineStats:
    evictions: int
    rematerializations: int
    values: int
    ops: int
    classes: int
    evictable: int
    clock: int
    base_cost: int
    remat_cost: int

class DryRun:
    def __init__(self, budget: int, heuristic: Heuristic) -> None: ...
    def constant(self, size: int, content: int) -> int: ...
    def call(
        self, name: int, cost: int, inputs: list[int], written: list[int], results: list[int]
    ) -> list[int]: ...
    def drop(self, id: int) -> None: ...
    def read(self, id: int) -> int: ...
    def evict(self, id: int) -> bool: ...
    def freeze(self, id: int) -> None: ...
    def age(self) -> None: ...
    def commit(self) -> None: ...
    def resident(self, id: int) -> bool: ...
    def window(self, bytes: int) -> list[int]: ...
    def stats(self) -> EngineStats: ...
    @property
    def live_bytes(self) -> int: ...
    @property
    def peak_bytes(self) -> int: ...
    def take_evicted(self) -> list[int]: ...
    def check(self) -> None: ...
    @staticmethod
    def content_of(name: int, inputs: list[int], result: int) -> int: ...

def set_in_optimizer(inside: bool) -> None: ...

sees_raw_access: bool
torch_version: str

class Columns:
    def __init__(
        self,
        tensor_size: npt.NDArray[np.int64],
        tensor_alias: npt.NDArray[np.int64],
        op_cost: npt.NDArray[np.int64],
        op_constant: npt.NDArray[np.int64],
        op_args_begin: npt.NDArray[np.int64],
        op_args: npt.NDArray[np.int64],
        op_results_begin: npt.NDArray[np.int64],
        kind: npt.NDArray[np.int64],
        operand: npt.NDArray[np.int64],
        tensor_tracked: npt.NDArray[np.int64],
        tensor_in_place: npt.NDArray[np.int64],
        tensor_block: npt.NDArray[np.int64],
        op_events_begin: npt.NDArray[np.int64],
        event_kind: npt.NDArray[np.int64],
        event_value: npt.NDArray[np.int64],
    ) -> None: ...
    def baseline(self) -> tuple[int, int, int, int]: ...

def simulate(
    columns: Columns,
    budget: int,
    pool: bool,
    heuristic: Heuristic,
    policy: Policy,
    remat_limit: int,
    remap: bool,
    pin_outputs: bool,
    log_events: bool,
) -> dict[str, Any]: ...
