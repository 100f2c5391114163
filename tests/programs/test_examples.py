"""Each example runs, stays within its budget, and comes to the bits of plain torch."""

import importlib.util
import json
import runpy
import subprocess
import sys
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import dtr_alloc
from tests.support.two_processes import two_processes

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of libraries, about each other.
        spec.loader.exec_module(module)
    return module


def run(name: str) -> dict[str, Any]:
    module = load(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made: dict[str, Any] = module.main()
    return made


def check(row: dict[str, Any]) -> None:
    assert row["identical"]
    assert row["rematerializations"] > 0
    assert row["peak_bytes"] <= row["budget_bytes"]


def test_there_are_twelve_and_each_is_run_here() -> None:
    names = (
        "compiled_blocks cupy_beside_torch ddp fsdp2 hugging_face_trainer lightning_callback "
        "optuna_trials pipeline plain_loop random_lengths tensor_parallel two_programs_one_budget"
    )
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == names.split()


def needs(*libraries: str) -> None:
    for library in libraries:
        if importlib.util.find_spec(library) is None:
            pytest.skip(f"{library} is not installed")


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch")  # As its compiler is imported.
@pytest.mark.parametrize(
    ("name", "share", "libraries"),
    [
        ("plain_loop", 0.6, ()),
        # tests/compiled has such blocks.
        pytest.param("compiled_blocks", 0.6, (), marks=pytest.mark.slow),
        ("hugging_face_trainer", 0.5, ("transformers", "accelerate")),
        ("lightning_callback", 0.6, ("lightning",)),
    ],
)
def test_an_example_trains_exactly_in_a_share_of_plain_torchs_peak(
    name: str, share: float, libraries: tuple[str, ...]
) -> None:
    needs(*libraries)
    row = run(name)
    check(row)
    assert row["budget_bytes"] == int(share * row["plain_peak_bytes"])


def test_the_cells_of_the_notebook_run_and_run_again() -> None:
    cells = json.loads((EXAMPLES / "notebook.ipynb").read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    names: dict[str, Any] = {"__name__": "__main__"}
    for code in codes:
        for _ in range(2):
            exec(code, names)
    assert names["identical"]
    assert names["session"].stats().rematerializations > 0
    assert dtr_alloc.current_session() is None


@pytest.mark.parametrize(
    "name",
    [
        "fsdp2",
        # To start the processes; tests/sharded/test_sharded.py has such programs.
        pytest.param("ddp", marks=pytest.mark.slow),
        pytest.param("tensor_parallel", marks=pytest.mark.slow),
        pytest.param("pipeline", marks=pytest.mark.slow),
    ],
)
def test_two_processes_train_exactly_under_budgets(name: str) -> None:
    rows = two_processes(EXAMPLES / f"{name}.py")
    assert [row["rank"] for row in rows] == [0, 1]
    for row in rows:
        check(row)


def test_cupy_beside_torch() -> None:
    module = load("cupy_beside_torch")
    if reason := module.missing():
        pytest.skip(reason)
    check(module.main())


def test_the_example_with_cupy_says_why_it_does_not_run() -> None:
    if load("cupy_beside_torch").missing() is None:
        pytest.skip("it runs")
    with pytest.raises(SystemExit, match=r"^not run: "):
        runpy.run_path(str(EXAMPLES / "cupy_beside_torch.py"), run_name="__main__")


def test_the_trainer_runs_on_where_a_batch_needs_half_as_much_again() -> None:
    needs("transformers", "accelerate")
    row = run("random_lengths")
    check(row)
    assert row["budget_bytes"] == int(row["plain_peak_bytes"] / 1.5)
    assert row["outlier_batches"] == [6, 9]
    (told,) = row["told"]
    assert "step 6 " in told


@pytest.mark.parametrize("memory", ["pool", "torch"])
@pytest.mark.parametrize("times", [20, pytest.param(1000, marks=pytest.mark.slow)])  # Minutes.
def test_two_programs_take_turns_with_the_larger_part_of_a_budget(times: int, memory: str) -> None:
    command = [sys.executable, str(EXAMPLES / "two_programs_one_budget.py"), str(times), memory]
    row = json.loads(subprocess.run(command, capture_output=True, check=True, timeout=600).stdout)
    assert row["identical"]
    assert row["kept"]
    assert row["alternations"] == times
    assert row["rematerializations"] > 0


def test_a_trial_that_is_too_large_fails_and_the_next_runs_on() -> None:
    needs("optuna")
    rows = load("optuna_trials").main()
    assert [row["state"] for row in rows] == ["COMPLETE"] * 3 + ["FAIL", "COMPLETE"]
    assert rows[2]["rematerializations"] > 0
    assert rows[0]["rematerializations"] == 0
