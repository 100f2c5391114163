"""Calls of torch's operators, made from the dispatcher's list alone, with inputs that are large.

Large means: several threads work, every input can be evicted, and tensors of indices are above the
64 KiB up to which a scope keeps their content. Where a call comes from, the first that works:

- a call that torch's own tests make (samples.py), grown: each length that occurs is multiplied, in
  tensors and in the numbers that repeat it, until the largest tensor has 10^6 elements. Contents
  are drawn from the sample's own, so indices stay valid, and collide;
- a call of an operator of nearly the same name, its arguments matched by name: `add_`, `add.out`,
  `_foreach_add_` and `expand_copy` have no samples of their own;
- the schema: defaults, and tensors of a few shapes (arguments.py has what cannot be guessed).

A growth that the operator refuses, or that takes long, is replaced by a smaller one. An operator
that could not be called at all is listed in each result, with the reason.
"""

import hashlib
import math
import time
import zlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from arguments import from_schema, known
from samples import Sample, copied, overload
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

ELEMENTS = (1_000_000, 100_000, 10_000)
INDICES = (100_000, 8_300)
MOST_ELEMENTS = 12_000_000
LONGEST_CALL_S = 0.5
# The dispatcher's names that are not of one process with a CPU, or not operators of torch's users.
ELSEWHERE = ("_test::", "profiler::", "c10d::", "_c10d_functional", "symm_mem::", "_dtensor::",
             "static_runtime::", "fsdp::", "debug_mode_ops::", "debugprims::")  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A call that worked. `how` says where its arguments are from."""

    operator: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    how: str

    def fresh(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Copies of the arguments, of the same strides."""
        args, kwargs = copied((self.args, self.kwargs))
        return args, kwargs

    def run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return overload(self.operator)(*args, **kwargs)


def operators() -> tuple[list[str], dict[str, str]]:
    """The operators with a kernel for the CPU that take or make tensors; and why not the rest."""
    able, unable = [], {}
    for name in sorted(torch._C._dispatch_get_all_op_names()):
        try:
            schema = overload(name)._schema
        except (AttributeError, RuntimeError):
            unable[name] = "Python cannot call it"
            continue
        types = [str(x.type) for x in (*schema.arguments, *schema.returns)]
        if name.startswith(ELSEWHERE):
            unable[name] = "of several processes, or of tools"
        elif not any("Tensor" in kind for kind in types):
            unable[name] = "has nothing to do with tensors"
        elif not torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU"):
            unable[name] = "has no kernel for the CPU"
        else:
            able.append(name)
    return able, unable


def tensors(tree: object) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]


def _drawn(old: Tensor, shape: Sequence[int], generator: torch.Generator) -> Tensor:
    """A tensor of another shape whose elements are drawn from those of `old`."""
    if old.layout != torch.strided or old.is_quantized or old.is_nested or old.numel() == 0:
        return old.clone()
    flat = old.reshape(-1)
    count = math.prod(shape)
    drawn = flat[torch.randint(len(flat), (count,), generator=generator)]
    varied = bool((flat != flat[0]).any()) if flat.dtype != torch.bool else True
    if old.dtype.is_floating_point and old.dtype.itemsize > 1 and varied:
        drawn = drawn * (1 - 0.1 * torch.rand(count, generator=generator)).to(old.dtype)
    elif old.dtype in (torch.int64, torch.int32) and old.dim() == 1 and len(old) > 1:
        steps = old[1:] - old[:-1]
        if bool((steps >= 0).all()):  # Offsets, say: they stay in order, with both ends.
            drawn = drawn.sort()[0]
            drawn[0], drawn[-1] = old[0], old[-1]
        elif bool((steps <= 0).all()):  # Lengths of packed sequences.
            drawn = drawn.sort(descending=True)[0]
    drawn = drawn.reshape(tuple(shape))
    if old.dim() >= 2 and old.dtype.is_floating_point and old.shape[-1] == old.shape[-2] \
            and shape[-1] == shape[-2] and torch.equal(old, old.mT):  # fmt: skip
        drawn = drawn + drawn.mT + 2 * shape[-1] * torch.eye(shape[-1], dtype=old.dtype)
    order = sorted(range(old.dim()), key=old.stride, reverse=True)
    made = torch.empty_permuted(tuple(shape), order, dtype=old.dtype)
    return made.copy_(drawn)


@dataclass(frozen=True)
class Growth:
    """Which lengths become which, at one place of a shape only or in one shape only."""

    name: str
    lengths: dict[int, int]
    place: int | None = None
    shape: tuple[int, ...] | None = None
    numbers: str = "none"  # Which numbers follow: those in "lists", or "all".

    def of(self, sample: Sample, how: str) -> "Call | None":
        """The sample's call, grown; None where that is too much."""
        found = tensors((sample.args, sample.kwargs))
        if sum(math.prod(self._shape(x)) for x in found) > MOST_ELEMENTS:
            return None
        generator = torch.Generator().manual_seed(zlib.crc32(sample.operator.encode()))

        def of(x: Any, within: bool) -> Any:
            if isinstance(x, Tensor):
                return _drawn(x.detach(), self._shape(x), generator)
            if isinstance(x, (list, tuple)):
                return type(x)([of(item, True) for item in x])
            follows = self.numbers == "all" or (self.numbers == "lists" and within)
            is_number = isinstance(x, int) and not isinstance(x, bool)
            return self.lengths.get(x, x) if follows and is_number else x

        args = tuple(of(x, False) for x in sample.args)
        kwargs = {name: of(x, False) for name, x in sample.kwargs.items()}
        return Call(sample.operator, args, kwargs, f"{how}, {self.name}")

    def _shape(self, x: Tensor) -> list[int]:
        if self.shape is not None and tuple(x.shape) != self.shape:
            return list(x.shape)
        if self.place is None or not x.dim():
            return [self.lengths.get(n, n) for n in x.shape]
        shape = list(x.shape)
        shape[self.place] = self.lengths.get(shape[self.place], shape[self.place])
        return shape


def _growths(sample: Sample, elements: int) -> Iterator[Growth]:
    """From the one that enlarges most."""
    found = [x for x in tensors((sample.args, sample.kwargs)) if x.layout == torch.strided]
    if not found or not (largest := max(found, key=lambda x: x.numel())).numel():
        return
    lengths = {n for x in found for n in x.shape if n > 1}
    dims = sum(n > 1 for n in largest.shape)
    if dims:
        factor = max(2, round((elements / largest.numel()) ** (1 / dims)))
        every = {n: n * factor for n in lengths}
        yield Growth("every length", every, numbers="lists")
        yield Growth("every length of tensors", every)
        yield Growth("every length and number", every, numbers="all")
        factor = max(2, round(elements / largest.numel()))
        yield Growth("the first length", {largest.shape[0]: largest.shape[0] * factor}, place=0)
        yield Growth("the last length", {largest.shape[-1]: largest.shape[-1] * factor}, place=-1)


def _index_growths(sample: Sample, count: int) -> Iterator[Growth]:
    """Those that make tensors of indices so long, and nothing else that need not be."""
    for index in tensors((sample.args, sample.kwargs)):
        if index.dtype != torch.int64 or index.layout != torch.strided or not index.numel():
            continue
        dims = sum(n > 1 for n in index.shape)
        if not dims:
            continue
        factor = math.ceil((count / index.numel()) ** (1 / dims))
        lengths = {n: n * factor for n in index.shape if n > 1}
        for numbers in ("lists", "none", "all"):
            yield Growth("the lengths of an index", lengths, numbers=numbers)
        yield Growth("an index", lengths, shape=tuple(index.shape))


def runs_in(call: Call) -> float | None:
    """Seconds of the processor's that the call takes, or None where the operator refuses it."""
    args, kwargs = call.fresh()
    began = time.process_time()
    try:
        call.run(args, kwargs)
    except Exception:
        return None
    return time.process_time() - began


def _grown(sample: Sample, how: str, sizes: Sequence[int]) -> Iterator[Call]:
    """The sample at the largest size that works and is quick; as it is where none does; and once
    more with long indices."""
    small = Call(sample.operator, sample.args, sample.kwargs, how)
    if runs_in(small) is None:
        return
    if how in ("by hand", "schema"):  # Large already.
        yield small
        return
    best: Call | None = None
    for way, twice in enumerate(_growths(sample, 1)):
        if _works(twice, sample, how) is None:
            continue
        larger = (list(_growths(sample, elements))[way] for elements in sizes)
        best = next(filter(None, (_works(growth, sample, how) for growth in larger)), None)
        if best is not None:
            break
    yield best or small
    have = [x for x in tensors(((best or small).args, (best or small).kwargs))]
    counts = [count for count in INDICES if count <= sizes[0]]
    if any(x.dtype == torch.int64 and 1 < x.numel() < counts[0] for x in have):
        for growth in chain.from_iterable(_index_growths(sample, n) for n in counts):
            if (longer := _works(growth, sample, how)) is not None:
                yield longer
                return


def _works(growth: Growth, sample: Sample, how: str) -> Call | None:
    """The grown call, where the operator takes it and is quick."""
    try:
        call = growth.of(sample, how)
        took = runs_in(call) if call else None
    except Exception:
        return None
    return call if took is not None and took < LONGEST_CALL_S else None


def digest(tree: object) -> str:
    """Few digits that stand for all bits of all tensors in there."""
    found = hashlib.blake2b(digest_size=8)
    for x in tree_leaves(tree):
        if isinstance(x, Tensor):
            found.update(_bits(x.detach()))
        else:  # Of an object all that counts is its class: packed weights, say.
            plain = isinstance(x, (bool, int, float, complex, str))
            found.update((repr(x) if plain else type(x).__name__).encode())
    return found.hexdigest()


def _bits(x: Tensor) -> bytes:
    about = f"{x.dtype} {x.layout} {tuple(x.shape)}".encode() if not x.is_nested else b"nested"
    if x.is_nested:
        return about + b"".join(_bits(one) for one in x.unbind())
    if x.layout == torch.sparse_coo:
        return about + _bits(x._indices()) + _bits(x._values())
    if x.layout in (torch.sparse_csr, torch.sparse_bsr):
        return about + _bits(x.crow_indices()) + _bits(x.col_indices()) + _bits(x.values())
    if x.layout in (torch.sparse_csc, torch.sparse_bsc):
        return about + _bits(x.ccol_indices()) + _bits(x.row_indices()) + _bits(x.values())
    if x.layout != torch.strided:
        x = x.to_dense()
    if x.is_quantized:
        x = x.int_repr()
    flat = x.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return about + (flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")


class Source:
    """Calls of any operator by its name, from all the samples."""

    def __init__(self, found: Sequence[Sample], elements: Sequence[int] = ELEMENTS) -> None:
        self._elements = elements
        self._of: dict[str, list[Sample]] = defaultdict(list)
        self._alike: dict[str, list[Sample]] = defaultdict(list)
        for sample in found:
            self._of[sample.operator].append(sample)
            self._alike[_stem(sample.operator)].append(sample)

    def calls(self, operator: str, most: int) -> Iterator[Call]:
        """At most `most` different calls that work, the kinds of their arguments far apart. To be
        used in a child: an operator may crash."""
        count = 0
        for sample, how in self._candidates(operator):
            for call in _grown(sample, how, self._elements):
                yield call
                count += 1
            if count >= most or (count and how == "schema"):  # The next guess is much alike.
                return

    def small(self, operator: str) -> Iterator[Call]:
        """The calls of torch's tests as they are."""
        return (Call(s.operator, s.args, s.kwargs, s.source) for s in self._of.get(operator, ()))

    def all(self) -> Iterator[Call]:
        return chain.from_iterable(map(self.small, sorted(self._of)))

    def _candidates(self, operator: str) -> Iterator[tuple[Sample, str]]:
        if operator in known():  # A guess would be worse, or crash.
            for args, kwargs in known()[operator]:
                yield Sample(operator, args, kwargs, "by hand"), "by hand"
            return
        own = self._of.get(operator, [])
        middle = [one for one in own if _main_type(one) == torch.float32]
        rest = [one for one in own if _main_type(one) != torch.float32]
        yield from (
            (one, "torch's test") for one in (*_largest_first(middle), *_largest_first(rest))
        )
        if own:
            return
        for sample in _largest_first(self._alike.get(_stem(operator), [])):
            if (matched := _matched(operator, sample)) is not None:
                yield matched, "torch's test of one alike"
        for args, kwargs in from_schema(overload(operator)._schema):
            yield Sample(operator, args, kwargs, "schema"), "schema"


def _largest_first(found: Sequence[Sample]) -> list[Sample]:
    """Those with empty tensors or single numbers come last."""

    def size(sample: Sample) -> int:
        return min(64, max((x.numel() for x in tensors((sample.args, sample.kwargs))), default=0))

    return sorted(found, key=size, reverse=True)


def _main_type(sample: Sample) -> torch.dtype | None:
    found = tensors((sample.args, sample.kwargs))
    return max(found, key=lambda x: (x.dtype.is_floating_point, x.numel())).dtype if found else None


def _stem(operator: str) -> str:
    """The name without what makes a variant of it."""
    name = operator.partition("::")[2].partition(".")[0]
    for word in ("foreach_", "unsafe_"):
        name = name.strip("_").removeprefix(word)
    for word in ("_copy", "_functional", "_impl"):
        name = name.strip("_").removesuffix(word)
    return name


def _matched(operator: str, sample: Sample) -> Sample | None:
    """The sample's arguments, by their names, for another operator; None where some are missing.
    What the operator writes its results to is what the sample's operator returns."""
    theirs, ours = overload(sample.operator)._schema, overload(operator)._schema
    given = {a.name: x for a, x in zip(theirs.arguments, sample.args, strict=False)}
    given |= sample.kwargs
    outs = [a for a in ours.arguments if a.kwarg_only and a.alias_info and a.alias_info.is_write]
    args, kwargs = [], {}
    for a in ours.arguments:
        if a in outs:
            continue
        if a.name in given:
            x = given[a.name]
        elif a.has_default_value():
            x = a.default_value
        else:
            return None
        if a.kwarg_only:
            kwargs[a.name] = x
        else:
            args.append(x)
    if outs:
        try:
            made = overload(sample.operator)(*copied(sample.args), **copied(sample.kwargs))
        except Exception:
            return None
        made = made if isinstance(made, tuple) else (made,)
        if len(made) != len(outs):
            return None
        blank = tree_map(lambda x: torch.zeros_like(x) if isinstance(x, Tensor) else x, made)
        kwargs |= {a.name: x for a, x in zip(outs, blank, strict=True)}
    return Sample(operator, tuple(args), kwargs, sample.source)
