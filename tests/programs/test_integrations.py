"""Trainers of other libraries within a budget: what they log, and what becomes of their scopes."""

import copy
import pickle
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dtr_alloc
from dtr_alloc.pool.size import Share, Size
from tests.programs.test_examples import load, needs

NAMES = {f"dtr_alloc/{name}" for name in ("peak_bytes", "evictions", "recompute_share")}


@pytest.fixture(autouse=True)
def closed_at_the_end() -> Iterator[None]:
    yield
    if session := dtr_alloc.current_session():
        session.close()


def logged(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [entry for entry in entries if entry.keys() >= NAMES]


class Texts(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"x": torch.full((64,), index / 64)}


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self.layers(x.expand(256, *x.shape)).tanh().square().mean()}


def trainer(folder: Path, *callbacks: Any, **options: Any) -> Any:
    from transformers import Trainer, TrainingArguments

    arguments = TrainingArguments(
        str(folder), max_steps=3, use_cpu=True, report_to=[], save_strategy="no", logging_steps=1,
        disable_tqdm=True, dataloader_pin_memory=False, **options,
    )  # fmt: skip
    return Trainer(Model(), arguments, train_dataset=Texts(), callbacks=list(callbacks))


pytestmark = pytest.mark.filterwarnings("ignore")  # Of libraries, about each other.


def test_the_trainer_logs_what_the_budget_costs(tmp_path: Path) -> None:
    needs("transformers", "accelerate")
    from transformers import TrainerCallback

    from dtr_alloc.integrations.transformers import BudgetCallback

    seen: list[dict[str, Any]] = []

    class Tracker(TrainerCallback):  # type: ignore[misc]
        def on_log(self, *_: Any, logs: dict[str, Any], **__: Any) -> None:
            seen.append(dict(logs))

    callback = BudgetCallback("64MiB")
    trains = trainer(tmp_path, Tracker())
    trains.callback_handler.callbacks.insert(0, callback)
    trains.train()
    history = trains.state.log_history
    assert len(logged(history)) == len(history) == len(logged(seen)) == 4  # Three, and the end's.
    assert callback.session is not None
    assert history[-1]["dtr_alloc/peak_bytes"] == callback.session.stats().peak_bytes > 0
    assert dtr_alloc.current_session() is None


def test_what_an_evaluation_gives_back_is_the_models_alone(tmp_path: Path) -> None:
    needs("transformers", "accelerate")
    from dtr_alloc.integrations.transformers import BudgetCallback

    trains = trainer(tmp_path, BudgetCallback("64MiB"))
    trains.eval_dataset = Texts()
    untrained = trains.evaluate()
    trains.train()
    assert trains.evaluate().keys() == untrained.keys()  # Searches look for the best of them.
    assert trains.state.log_history[-1].keys() >= {"eval_runtime", *NAMES}


def test_a_training_that_raised_makes_way_for_the_next(tmp_path: Path) -> None:
    needs("transformers", "accelerate")
    from dtr_alloc.integrations.transformers import BudgetCallback

    callback = BudgetCallback("1MiB")
    with pytest.raises(torch.OutOfMemoryError):
        trainer(tmp_path, callback, per_device_train_batch_size=64).train()
    callback.budget = "64MiB"
    trainer(tmp_path, callback, per_device_train_batch_size=64).train()
    assert dtr_alloc.current_session() is None


def test_the_trainers_search_for_a_batch_size_goes_on(tmp_path: Path) -> None:
    needs("transformers", "accelerate")
    from dtr_alloc.integrations.transformers import BudgetCallback

    trains = trainer(
        tmp_path, BudgetCallback("4MiB"), per_device_train_batch_size=64, auto_find_batch_size=True
    )
    trains.train()
    assert 1 <= trains._train_batch_size < 64


def test_accelerates_search_for_a_batch_size_goes_on() -> None:
    needs("accelerate")
    from accelerate.utils.memory import find_executable_batch_size

    tried, model = [], Model()

    @find_executable_batch_size(starting_batch_size=64)  # type: ignore[untyped-decorator]
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        with dtr_alloc.rematerialize("4MiB"):
            model(torch.ones(batch_size, 64))["loss"].backward()

    train()
    assert len(tried) > 1
    assert tried == sorted(tried, reverse=True)


def test_accelerate_logs_what_the_budget_cost() -> None:
    needs("accelerate")
    from accelerate import Accelerator
    from accelerate.tracking import GeneralTracker

    from dtr_alloc.integrations.accelerate import budget

    seen: list[tuple[dict[str, Any], int | None]] = []

    class Tracker(GeneralTracker):  # type: ignore[misc]
        name, requires_logging_directory = "seen", False

        @property
        def tracker(self) -> None:
            return None

        def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
            seen.append((values, step))

    accelerator = Accelerator(cpu=True, log_with=Tracker())
    accelerator.init_trackers("test")
    model = Model()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters()))
    with budget(accelerator, "64MiB") as session:
        for _ in range(2):
            accelerator.backward(model(torch.ones(8, 64))["loss"])
            optimizer.step()
            optimizer.zero_grad()
    ((values, step),) = seen
    assert values.keys() == NAMES
    assert values["dtr_alloc/peak_bytes"] == session.stats().peak_bytes > 0
    assert step == 2
    with pytest.raises(ValueError, match="no"), budget(accelerator, "64MiB"):
        raise ValueError("no")
    assert dtr_alloc.current_session() is None


@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ({"max_steps": 3, "log_every_n_steps": 2}, [2, 3]),
        ({"max_steps": 3, "log_every_n_steps": 0}, [3]),
        ({"max_epochs": 2, "log_every_n_steps": 2, "accumulate_grad_batches": 4}, [2]),
    ],
)
def test_lightning_logs_costs(tmp_path: Path, options: dict[str, Any], steps: list[int]) -> None:
    needs("lightning")
    import lightning
    from lightning.pytorch.loggers.logger import Logger

    from dtr_alloc.integrations.lightning import BudgetCallback

    seen: list[tuple[dict[str, Any], int | None]] = []

    class Log(Logger):
        name, version = "seen", 0

        def log_hyperparams(self, *_: Any, **__: Any) -> None:
            pass

        def log_metrics(self, metrics: Any, step: int | None = None) -> None:
            seen.append((metrics, step))

    example = load("lightning_callback")
    callback = BudgetCallback("64MiB")
    rows = torch.utils.data.TensorDataset(torch.randn(2048, 128))
    for _ in range(2):  # Of which each is logged, also where both are as long.
        fits = lightning.Trainer(
            **options, accelerator="cpu", logger=Log(), callbacks=[callback],
            enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            default_root_dir=tmp_path,
        )  # fmt: skip
        fits.fit(example.Perceptron(), torch.utils.data.DataLoader(rows, batch_size=512))
    ours = [(values, step) for values, step in seen if values.keys() >= NAMES]
    assert [step for _, step in ours] == 2 * steps
    assert callback.session is not None
    assert ours[-1][0]["dtr_alloc/peak_bytes"] == callback.session.stats().peak_bytes > 0
    assert dtr_alloc.current_session() is None


def test_a_fit_that_raises_leaves_the_scope() -> None:
    needs("lightning")
    example = load("lightning_callback")
    callback = example.BudgetCallback("1MiB")
    with pytest.raises(torch.OutOfMemoryError):
        example.train(callback)
    assert dtr_alloc.current_session() is None


def test_a_budget_is_what_a_scope_takes() -> None:
    needs("accelerate")
    from dtr_alloc.integrations import Budgeted
    from dtr_alloc.integrations.accelerate import budget

    for opens in (Budgeted.__init__, budget):
        assert signature(opens).parameters["budget"].annotation == Size | Share | None


def test_a_copy_of_a_callback_has_the_budget_and_no_session() -> None:
    from dtr_alloc.integrations import Budgeted

    callback = Budgeted("64MiB")
    callback._open(torch.device("cpu"))
    for copied in (copy.deepcopy(callback), pickle.loads(pickle.dumps(callback))):
        assert (copied.budget, copied.session) == ("64MiB", None)
        copied._close()
    assert dtr_alloc.current_session() is callback.session


def test_a_trainer_on_cuda_is_told_of_the_allocator() -> None:
    needs("accelerate")
    from dtr_alloc.integrations.accelerate import budget

    class Elsewhere:
        device = torch.device("cuda")

    elsewhere: Any = Elsewhere()
    with pytest.raises(ValueError, match="change_current_allocator"), budget(elsewhere, "64MiB"):
        pass
