"""Another library registers a fallback on our dispatch key, before us, between two scopes or after
us: neither takes the other's operators."""

import re

import pytest

from tests.support.other_fallback import BUILD, other_library
from tests.support.own_process import printed

WHENS = ("never", "before", "between", "after")

BEGIN = """
import sys
import torch
sys.path.insert(0, sys.argv[1])
import other_fallback
when = sys.argv[2]
def now(name):
    if when == name:
        other_fallback.register()
now("before")
"""

STEP = """
def step():
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(3, 8, 3)
    norm = torch.nn.BatchNorm2d(8)
    x = torch.randn(4, 3, 16, 16)
    h = torch.dropout(norm(layer(x)).relu(), 0.5, True)
    loss = h.transpose(1, 2).reshape(4, -1).logsumexp(1).mean()
    loss.backward()
    return [loss.detach(), layer.weight.grad, norm.running_mean]
def same(left, right):
    return all(map(torch.equal, left, right))
def in_scope():
    with dtr_alloc.rematerialize("160KiB") as session:
        made = step()
        evictions = session.stats().evictions
    return made, evictions
"""

THEIR_MODE = """
def in_their_mode():
    other_fallback.mode(True)
    x = torch.ones(4, 6)
    y = (x.view(2, 12).t() @ torch.empty(2, 5)).split(3)
    z = torch.cat([y[0], y[1]]).sum(0).unsqueeze_(0)
    with torch.inference_mode():
        z = torch.nn.functional.linear(z, torch.ones(7, 5)).squeeze()
    other_fallback.mode(False)
    return z, other_fallback.seen()
"""


@pytest.fixture(scope="module", autouse=True)
def library() -> None:
    other_library()


def run(program: str, *arguments: str) -> str:
    return printed(program, str(BUILD), *arguments)


@pytest.mark.parametrize("when", WHENS)
def test_a_step_in_a_scope_is_exact_and_theirs_sees_none_of_it(when: str) -> None:
    program = f"""{BEGIN}
import dtr_alloc
{STEP}
expected = step()
first, _ = in_scope()
now("between")
second, evictions = in_scope()
now("after")
third, _ = in_scope()
assert all(same(made, expected) for made in (first, second, third))
assert evictions > 0
print(other_fallback.seen())
"""
    assert run(program, when).strip() == "[]"


def test_a_library_that_goes_again_leaves_no_trace() -> None:
    program = f"""{BEGIN}
import warnings
import dtr_alloc
{STEP}
expected = step()
warnings.simplefilter("error")
first, _ = in_scope()
other_fallback.register()
second, _ = in_scope()
other_fallback.drop()
third, _ = in_scope()
print(all(same(made, expected) for made in (first, second, third)))
"""
    assert run(program, "never").strip() == "True"


@pytest.mark.parametrize("when", ["before", "between", "after"])
def test_their_mode_outside_of_scopes_sees_what_it_sees_without_us(when: str) -> None:
    alone = f"""{BEGIN}{THEIR_MODE}
now("between")
now("after")
made, seen = in_their_mode()
print(made.shape, made.device, seen)
"""
    beside = f"""{BEGIN}
import dtr_alloc
{STEP}{THEIR_MODE}
now("between")
in_scope()
now("after")
made, seen = in_their_mode()
print(made.shape, made.device, seen)
"""
    expected = run(alone, when)
    assert {"aten::view", "aten::mm"} <= set(re.findall(r"aten::\w+", expected))
    assert run(beside, when) == expected


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_fake_tensor_in_a_scope_is_theirs_and_real_ones_beside_it_are_ours(when: str) -> None:
    program = f"""{BEGIN}
import dtr_alloc
now("between")
with dtr_alloc.rematerialize("1MiB") as session:
    real = torch.ones(64, 64)
    fake = other_fallback.fake(real)
    out = (fake.t() @ real).exp()
    kept = [real * i for i in range(100)]
    total = sum(float(one.sum()) for one in kept)
    print(out.device, out.shape, other_fallback.seen(), total == 4096 * 4950,
          session.stats().evictions > 0)
"""
    told = run(program, when)
    assert "aten::mm" in told
    assert "aten::mul" not in told
    assert told.strip().endswith("True True")


@pytest.mark.parametrize("when", ["never", "before"])
def test_operators_defined_after_us_are_recorded(when: str) -> None:
    program = f"""{BEGIN}
import dtr_alloc
def define():
    library = torch.library.Library("late", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    library.impl("double", lambda x: x * 2, "CPU")
    return library
@torch.library.custom_op("late::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3
library = define()
for again in range(3):
    with dtr_alloc.rematerialize(None) as session:
        x = torch.ones(1000)
        two, three = torch.ops.late.double(x), triple(x)
        dtr_alloc.evict(two)
        dtr_alloc.evict(three)
        assert dtr_alloc.is_evicted(two) and dtr_alloc.is_evicted(three)
        assert float(two.sum()) == 2000 and float(three.sum()) == 3000
    library._destroy()
    library = define()
print(other_fallback.seen())
"""
    assert run(program, when).strip() == "[]"


def test_an_operator_that_somebody_took_is_named_once_a_scope() -> None:
    program = f"""{BEGIN}
import warnings
import dtr_alloc
library = torch.library.Library("aten", "IMPL")
library.impl("sin", lambda x: x, "Fake")
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    with dtr_alloc.rematerialize("1MiB"):
        pass
print([str(one.message) for one in caught])
"""
    told = run(program, "never")
    assert re.findall(r"aten::\w+", told) == ["aten::sin"]
