"""Scripts that a plan profiles do there what python has them do."""

import subprocess
import sys
from pathlib import Path

from dtr_alloc.runtime.planning import script as profiling
from dtr_alloc.runtime.planning.profile import Profile

TRAINS = """
import torch, dtr_alloc
layer = torch.nn.Linear(64, 64)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
def step():
    layer(torch.ones(256, 64)).tanh().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def profile(folder: Path, text: str, steps: int = 3) -> Profile:
    path = folder / "train.py"
    path.write_text(TRAINS + text)
    return profiling.profile_script(str(path), [], steps, 1)


def test_a_process_that_a_script_leaves_behind_is_not_waited_for(tmp_path: Path) -> None:
    made = profile(
        tmp_path,
        "import subprocess\n"
        "left = subprocess.Popen(['sleep', '600'])\n"
        f"with open({str(tmp_path / 'left')!r}, 'a') as file:\n"
        "    file.write(f'{left.pid} ')\n"
        "step()\n"
        "step()\n",
    )
    left = (tmp_path / "left").read_text().split()
    subprocess.run(["kill", *left], check=True)  # They were there still.
    assert made.traced_steps == 1


def test_a_script_with_one_step_is_that_step_and_what_follows_is_none(tmp_path: Path) -> None:
    made = profile(tmp_path, "step()\nfor _ in range(9):\n    layer(torch.ones(256, 64))\n")
    assert (made.warm_marks, made.traced_steps) == (0, 1)
    assert len(made.eager_ns) == len(made.scope_ns) == 1


def test_a_script_may_ask_for_the_session_of_its_decorators_scope(tmp_path: Path) -> None:
    made = profile(
        tmp_path,
        "@dtr_alloc.rematerialize('4MiB')\n"
        "def train():\n"
        "    for _ in range(9):\n"
        "        step()\n"
        "        assert dtr_alloc.current_session().stats().evictions >= 0\n"
        "train()\n",
    )
    assert made.traced_steps == 2


def test_a_module_beside_the_scripts_folder_hides_none_that_torch_imports(tmp_path: Path) -> None:
    (tmp_path / "statistics.py").write_text("raise ImportError('not the library')\n")
    (tmp_path / "scripts").mkdir()
    path = tmp_path / "scripts/train.py"
    path.write_text(TRAINS + "for _ in range(3):\n    step()\n")
    command = str(Path(sys.executable).with_name("dtr-alloc")), "plan", "--rounds", "1", str(path)
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "not the library" not in done.stderr
    assert "budget" in done.stdout
