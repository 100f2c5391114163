"""Another library registers a fallback on our dispatch key, before us, between two scopes or after
us, or a kernel for one operator: neither takes the other's operators."""

import re
from pathlib import Path

import pytest
import torch

from tests.support.other_fallback import BUILD, other_library
from tests.support.own_process import printed

HEADER = Path(torch.__file__).parent / "include/c10/core/impl/FakeTensorModeTLS.h"
with_fake_mode = pytest.mark.skipif(
    not HEADER.exists(), reason="before 2.14 torch has no fake mode in C++"
)

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
BESIDE = f"{BEGIN}import dtr_alloc"

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


@pytest.mark.parametrize("when", ["never", "before", "between", "between, and goes", "after"])
def test_a_step_in_a_scope_is_exact_and_theirs_sees_none_of_it(when: str) -> None:
    program = f"""{BESIDE}
import warnings
{STEP}
expected = step()
warnings.simplefilter("error")
first, _ = in_scope()
now("between")
now("between, and goes")
second, evictions = in_scope()
if when.endswith("goes"):
    other_fallback.drop()
now("after")
third, _ = in_scope()
assert all(same(made, expected) for made in (first, second, third))
assert evictions > 0
print(other_fallback.seen())
"""
    assert run(program, when).strip() == "[]"


@pytest.mark.parametrize(
    "when",
    [pytest.param("before", marks=pytest.mark.slow), "between", "after"],  # Seconds to start each.
)
def test_their_mode_outside_of_scopes_sees_what_it_sees_without_us(when: str) -> None:
    alone = f"""{BEGIN}{THEIR_MODE}
now("between")
now("after")
made, seen = in_their_mode()
print(made.shape, other_fallback.is_fake(made), seen)
"""
    beside = f"""{BESIDE}
{STEP}{THEIR_MODE}
now("between")
in_scope()
now("after")
made, seen = in_their_mode()
print(made.shape, other_fallback.is_fake(made), seen)
"""
    expected = run(alone, when)
    assert {"aten::view", "aten::mm"} <= set(re.findall(r"aten::\w+", expected))
    assert run(beside, when) == expected


@pytest.mark.parametrize("when", ["before", "between"])
def test_a_fake_tensor_in_a_scope_is_theirs_and_real_ones_beside_it_are_ours(when: str) -> None:
    program = f"""{BESIDE}
now("between")
with dtr_alloc.rematerialize("1MiB") as session:
    real = torch.ones(64, 64)
    fake = other_fallback.fake(real)
    out = (fake.t() @ real).exp()
    kept = [real * i for i in range(100)]
    total = sum(float(one.sum()) for one in kept)
    print(other_fallback.is_fake(out), out.shape, other_fallback.seen(), total == 4096 * 4950,
          session.stats().evictions > 0)
"""
    told = run(program, when)
    assert "aten::mm" in told
    assert "aten::mul" not in told
    assert told.strip().endswith("True True")


@pytest.mark.parametrize("when", ["never", "before"])
def test_operators_defined_after_us_are_recorded(when: str) -> None:
    program = f"""{BESIDE}
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


TAKEN = """
def take(name):
    library = torch.library.Library("aten", "IMPL")
    library.impl(name, lambda x: torch.empty_like(x, device="meta"), "Fake")
    return library
def both():
    with dtr_alloc.rematerialize("1MiB") as session:
        y = torch.sin(torch.ones(8))
        z = torch.ones(8).t()
        assert session.stats().operators == 3
    return y.device.type, z.device.type
"""


@pytest.mark.parametrize("when", ["never", "before"])
@pytest.mark.parametrize("first", ["theirs", "ours"])
def test_an_operator_that_somebody_has_a_kernel_for_is_ours_in_a_scope_and_theirs_outside(
    first: str, when: str
) -> None:
    """`t` is a view, which nobody else intercepts."""
    program = f"""{BEGIN}{TAKEN}
if sys.argv[3] == "theirs":
    libraries = [take("sin"), take("t")]
    import dtr_alloc
else:
    import dtr_alloc
    libraries = [take("sin"), take("t")]
told = [both()]
other_fallback.mode(True)
outside = torch.sin(torch.ones(8))
unreal = outside.is_meta or other_fallback.is_fake(outside)
other_fallback.mode(False)
told.append(both())
for library in libraries:
    library._destroy()
print([*told, both()], unreal)
"""
    cpu = ("cpu", "cpu")
    assert run(program, when, first).strip() == f"{[cpu, cpu, cpu]} True"


DEFINED = {
    # As register_fake() of a later torch will give one to every custom operator.
    "with a kernel for fake tensors, which gets no real ones": """
    library = torch.library.Library("late", "FRAGMENT")
    library.define("double(Tensor x) -> Tensor")
    library.impl(op_name="double", fn=lambda x: x * 2, dispatch_key="CPU")
    library.impl("double", fn=torch.empty_like, dispatch_key="Fake")
""",
    "in C++, which no Python tells of": """
    library = torch._C._dispatch_library("FRAGMENT", "late", "")
    library.define("double(Tensor x) -> Tensor")
    library.impl("double", "CPU", lambda x: x * 2, False)
""",
}


@pytest.mark.parametrize("when", ["never", "before"])
@pytest.mark.parametrize("how", DEFINED)
def test_an_operator_that_a_library_defines_inside_a_scope_is_recorded(how: str, when: str) -> None:
    program = f"""{BESIDE}
with dtr_alloc.rematerialize("1MiB") as session:
    x = torch.ones(8)
{DEFINED[how]}
    y = torch.ops.late.double(x)
    print(y.tolist() == [2] * 8, session.stats().operators)
"""
    assert run(program, when).strip() == "True 2"


@pytest.mark.parametrize("when", ["never", "before"])
def test_what_a_thread_of_torchs_own_computes_for_a_scope_is_real(when: str) -> None:
    """It has the key of who started the work. The process ends by itself, because torch's pool of
    threads may abort at an ordinary exit (seen with 2.13, without us)."""
    program = f'''{BESIDE}
import os
unit = torch.jit.CompilationUnit("""
def sine(x):
    return torch.sin(x)
def forked(x):
    return torch.jit._wait(torch.jit._fork(sine, x))
""")
with dtr_alloc.rematerialize("1MiB"):
    print(float(unit.forked(torch.zeros(()))), flush=True)
os._exit(0)
'''
    assert run(program, when).strip() == "0.0"


@pytest.mark.parametrize("when", ["never", "before"])
def test_a_higher_order_operator_has_its_fake_kernel_for_fake_tensors_alone(when: str) -> None:
    program = f"""{BESIDE}
from torch._higher_order_ops.cond import cond_op
kernel = lambda pred, true, false, operands: (torch.empty(3, device="meta"),)
key = torch._C._parse_dispatch_key("Fake")
cond_op.py_impl(key)(kernel)
def choose(x):
    return cond_op(torch.tensor(True), lambda x: (x + 1,), lambda x: (x - 1,), (x,))[0]
told = []
with dtr_alloc.rematerialize("1MiB") as session:
    told.append(choose(torch.ones(3)).tolist())
    told.append(session.stats().operators > 2)
    told.append(choose(other_fallback.fake(torch.ones(3))).device.type)
print(told, cond_op.py_kernels[key] is kernel)
"""
    assert run(program, when).strip() == "[[2.0, 2.0, 2.0], True, 'meta'] True"


@with_fake_mode
def test_their_mode_goes_on_in_its_thread_whatever_scopes_do() -> None:
    program = f"""{BESIDE}
import threading
def fakes():
    return other_fallback.is_fake(torch.ones(3))
def in_their_mode():
    other_fallback.mode(True)
    told.append(fakes())
    torch.ones(3, device="cpu", requires_grad=True).exp().sum().backward()
    told.append(fakes())
    other_fallback.mode(False)
told = []
with dtr_alloc.rematerialize("1MiB"):
    thread = threading.Thread(target=in_their_mode)
    thread.start()
    thread.join()
    told.append(fakes())
other_fallback.mode(True)
with dtr_alloc.rematerialize("1MiB"):
    pass
told.append(fakes())
other_fallback.mode(False)
with dtr_alloc.rematerialize("1MiB"):
    other_fallback.mode(True)
    other_fallback.mode(False)
    dtr_alloc.materialize(torch.ones(3))
    told.append(fakes())
told.append(fakes())
print(told)
"""
    told = "[True, True, False, True, False, False]"
    assert run(program, "before").strip() == told


GRAPHS = """
import io
import torch
from torch.fx.experimental.proxy_tensor import make_fx
@torch.library.custom_op("graphs::triple", mutates_args=())
def triple(x: torch.Tensor) -> torch.Tensor:
    return x * 3
triple.register_fake(torch.empty_like)
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
    def forward(self, x):
        h = triple(self.norm(self.layer(x)).relu())
        return torch.nn.functional.dropout(h, 0.5).reshape(-1)[::2] + x.sum()
def told():
    x = torch.ones(2, 4)
    program = torch.export.export(Model(), (x,))
    graphs = [program.graph, program.run_decompositions().graph]
    for mode in ("real", "fake", "symbolic"):
        graphs.append(make_fx(lambda x: triple(x @ x.t()).relu(), tracing_mode=mode)(x).graph)
    graphs.append(make_fx(torch.func.vmap(torch.func.grad(lambda x: x.sin().sum())))(x).graph)
    graphs.append(make_fx(torch.func.functionalize(lambda x: x.clone().add_(1)))(x).graph)
    torch.library.opcheck(triple, (x,))
    return "".join(map(str, graphs))
"""


def test_graphs_are_those_of_a_process_without_us() -> None:
    alone = run(f"{GRAPHS}print(told())")
    beside = f"""{GRAPHS}
import dtr_alloc
print(told())
with dtr_alloc.rematerialize("64MiB"):
    inside = told()
print(inside)
"""
    assert "graphs.triple" in alone
    assert run(beside) == alone * 2
