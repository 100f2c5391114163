"""What a scope puts in the place of torch's functions goes with the scope, whatever happens."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch

import dtr_alloc
from dtr_alloc.runtime.adapters import raw_access
from dtr_alloc.runtime.adapters.on_import import when_imported
from dtr_alloc.runtime.adapters.undo import Undo
from tests.support.own_process import printed


class Base:
    def inherited(self) -> str:
        return "torch's"


class Owner(Base):
    def own(self) -> str:
        return "torch's"


@pytest.mark.parametrize("name", ["own", "inherited"])
def test_an_attribute_is_put_back_as_it_was(name: str) -> None:
    before = dict(vars(Owner))
    with closing(Undo()) as undo:
        undo.replace(Owner, name, lambda self: "ours")
        assert getattr(Owner(), name)() == "ours"
    assert dict(vars(Owner)) == before
    assert getattr(Owner(), name)() == "torch's"


def test_what_another_put_there_meanwhile_stays() -> None:
    owner = SimpleNamespace(name="torch's")
    with closing(Undo()) as undo:
        undo.replace(owner, "name", "ours")
        owner.name = "another's"
    assert owner.name == "another's"


def test_a_patch_that_begins_in_a_scope_and_ends_after_it_works_meanwhile() -> None:
    own = torch.save
    patch = mock.patch.object(torch, "save")
    with dtr_alloc.rematerialize("1MiB"):
        saved = patch.start()
    assert torch.save is saved
    patch.stop()
    try:
        torch.save(torch.ones(1), "/dev/null")  # By our function, which does nothing by now.
    finally:
        torch.save = own


def test_a_library_that_watches_registrations_in_a_scope_goes_on_with_it() -> None:
    watched: Any = torch.library.Library
    own = watched.impl
    try:
        with dtr_alloc.rematerialize("1MiB"):
            theirs = watched.impl = partial(watched.impl)
        assert watched.impl is theirs
    finally:
        watched.impl = own
    with dtr_alloc.rematerialize("1MiB"):
        assert watched.impl is not own
    assert watched.impl is own


def test_a_function_of_ours_that_a_library_keeps_does_nothing_in_the_next_scope(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Callable[[], Any]] = []
    monkeypatch.setattr(raw_access, "watch", lambda session, undo: given.append(session))
    with dtr_alloc.rematerialize("1MiB"):
        assert given[0]() is not None
    with dtr_alloc.rematerialize("1MiB"):
        assert given[0]() is None
        assert given[1]() is not None


IN_A_PROCESS = """
import sys
import torch, dtr_alloc
from torch.optim import optimizer
with dtr_alloc.rematerialize("1MiB"):
    sys.meta_path[:] = [each for each in sys.meta_path if isinstance(each, type)]
assert not optimizer._global_optimizer_pre_hooks
"""


def test_a_program_that_restores_the_finders_of_modules_leaves_its_scope() -> None:
    printed(IN_A_PROCESS)


def test_a_module_is_awaited_while_asked(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("waited_for", "too_late"):
        (tmp_path / f"{name}.py").write_text("value = 1\n")
    seen = []
    with closing(Undo()) as undo:
        for name in ("waited_for", "too_late"):
            when_imported(undo, name, lambda module: seen.append(module.value))
        import waited_for  # type: ignore[import-not-found]

        when_imported(undo, "waited_for", lambda module: seen.append(module.__name__))
    import too_late  # type: ignore[import-not-found]

    assert seen == [1, "waited_for"]
    assert (waited_for.value, too_late.value) == (1, 1)
