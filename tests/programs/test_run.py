"""`dtr-alloc run`: programs that know nothing of us, byte for byte what python makes of them."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from dtr_alloc.__main__ import main

MODEL = """
import torch
from torch import nn
def model():
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(8)])
def digest(net):
    return sum(p.detach().double().sum().item() for p in net.parameters()).hex()
"""
LOOP = """
net = model()
optimizer = torch.optim.AdamW(net.parameters())
for step in range(4):
    loss = net(torch.randn(512, 64)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, loss.item())
print(digest(net), sys.argv, __name__)
sys.exit(len(sys.argv))
"""
TRAINER = """
import transformers
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = model()
    def forward(self, x):
        return {"loss": self.inner(x).square().mean()}
net = Net()
arguments = transformers.TrainingArguments(
    sys.argv[1], max_steps=4, per_device_train_batch_size=512, report_to=[], disable_tqdm=True,
    save_strategy="no", use_cpu=True, logging_steps=1,
)
data = [{"x": row} for row in torch.randn(512, 64)]
log = transformers.Trainer(net, arguments, train_dataset=data)
log.remove_callback(transformers.trainer_callback.PrinterCallback)  # It prints times.
log.train()
print([row["loss"] for row in log.state.log_history if "loss" in row], digest(net))
"""
LIGHTNING = """
import lightning
class Net(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.inner = model()
    def training_step(self, batch, _):
        return self.inner(batch[0]).square().mean()
    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())
net = Net()
data = torch.utils.data.TensorDataset(torch.randn(2048, 64))
loader = torch.utils.data.DataLoader(data, batch_size=512)
trainer = lightning.Trainer(
    max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False,
    enable_progress_bar=False, enable_model_summary=False, default_root_dir=sys.argv[1],
)
trainer.fit(net, loader)
print(digest(net))
raise SystemExit("the end")
"""
ENV = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
ENV["OMP_NUM_THREADS"] = "1"
RUN = (sys.executable, "-m", "dtr_alloc", "run")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with pkg.model, pkg.train, and the programs as files."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "__init__.py").touch()
    (tmp_path / "pkg" / "model.py").write_text(MODEL)
    (tmp_path / "pkg" / "train.py").write_text(f"import sys\nfrom .model import *\n{LOOP}")
    for name, text in {"loop": LOOP, "trainer": TRAINER, "fit": LIGHTNING}.items():
        (tmp_path / f"{name}.py").write_text(f"import sys\nfrom pkg.model import *\n{text}")
    return tmp_path


def ran(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command, cwd=folder, env=ENV | more, capture_output=True, text=True, timeout=600
    )


def written(folder: Path, text: str) -> Path:
    (folder / "program.py").write_text(text)
    return folder


@pytest.mark.parametrize(
    "words",
    [
        ("loop.py", "--budget", "--lr"),
        ("-m", "pkg.train", "--lr=1"),
        ("trainer.py", "out"),
        ("fit.py", "out"),
    ],
    ids=lambda words: words[-2],
)
def test_an_unedited_program_is_exact_under_a_share(package: Path, words: tuple[str, ...]) -> None:
    if words[0] == "trainer.py":
        pytest.importorskip("transformers")
    if words[0] == "fit.py":
        pytest.importorskip("lightning")
    plain = ran(package, sys.executable, *words)
    ours = ran(package, *RUN, "--budget", "60%", *words)
    assert (ours.returncode, ours.stdout) == (plain.returncode, plain.stdout), ours.stderr[-3000:]
    summary = ours.stderr.split("dtr-alloc run:\n")[1]
    rows = {line[:17].strip(): line[18:].split() for line in summary.splitlines()}
    assert int(rows["evictions"][0].replace(",", "")) > 0
    assert rows["share"][0] == "60%"
    if "--budget" in words:
        assert "--budget behind loop.py is loop.py's; ours stands before it" in ours.stderr


@pytest.mark.parametrize(
    "text",
    [
        "import sys; print(1); sys.exit(300)",
        "raise SystemExit('so it ends')",
        "def f():\n    raise ValueError('no data')\nf()",
        "print(1\n",
        "import os; os._exit(7)",
        "import sys; print(sys.path[0], __file__, sys.argv)",
        "import atexit, torch\nx = torch.ones(9).exp()\natexit.register(lambda: print(x))",
        "import os\nif os.fork():\n    os.wait()\nelse:\n    print('child')",
        "raise KeyboardInterrupt",
    ],
)
def test_a_program_ends_as_python_would_end_it(tmp_path: Path, text: str) -> None:
    folder = written(tmp_path, text)
    plain = ran(folder, sys.executable, "program.py")
    ours = ran(folder, *RUN, "program.py", DTR_ALLOC_BUDGET="1GiB")
    code = 130 if plain.returncode == -signal.SIGINT else plain.returncode
    assert (ours.returncode, ours.stdout) == (code, plain.stdout)
    told, *summaries = ours.stderr.split("dtr-alloc run:\n")
    assert told == plain.stderr
    assert len(summaries) == (0 if "_exit" in text else 1)


def test_ctrl_c_ends_a_program_with_130_and_a_summary(tmp_path: Path) -> None:
    folder = written(tmp_path, "print('on', flush=True)\nwhile True: pass\n")
    command = [*RUN, "--budget", "1GiB", "program.py"]
    pipe = subprocess.PIPE

    def heeds_it() -> None:
        """A shell starts what runs in the background with the signal ignored."""
        signal.signal(signal.SIGINT, signal.SIG_DFL)

    with subprocess.Popen(
        command, cwd=folder, env=ENV, stdout=pipe, stderr=pipe, preexec_fn=heeds_it
    ) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == b"on\n"
        program.send_signal(signal.SIGINT)
        _, told = program.communicate(timeout=600)
    assert program.returncode == 130
    assert b"KeyboardInterrupt\ndtr-alloc run:\n" in told


@pytest.mark.parametrize("call", ["rematerialize('1MiB')", "measure()", "allocator('1MiB')"])
def test_a_program_with_a_budget_of_its_own_is_told_its_line(tmp_path: Path, call: str) -> None:
    folder = written(tmp_path, f"import dtr_alloc\n\ndtr_alloc.{call}\nprint('went on')\n")
    done = ran(folder, *RUN, "--budget", "1GiB", "program.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"program.py:3 calls dtr_alloc.{call.split('(')[0]}(), and the pro" in done.stderr


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (
            "threading.Thread(target=dtr_alloc.measure).start()",
            "threading.py:{}calls dtr_alloc.measure(), and the pro",
        ),
        ("dtr_alloc.current_session().close()", "RuntimeError: this scope is one of dtr-alloc run"),
        (
            "torch.cuda.change_current_allocator(None)",
            "program.py:2 calls torch.cuda.memory.change_current_allocator(), and the pro",
        ),
    ],
)
def test_nothing_else_takes_the_budget_away(tmp_path: Path, text: str, told: str) -> None:
    folder = written(tmp_path, f"import dtr_alloc, threading, torch\n{text}\n")
    done = ran(folder, *RUN, "--budget", "1GiB", "program.py")
    assert all(part in done.stderr for part in told.split("{}"))


def test_what_goes_on_without_memory_is_an_error_where_it_shall_be(tmp_path: Path) -> None:
    folder = written(
        tmp_path,
        "import contextlib, torch\n"
        "@torch.library.custom_op('modest::double', mutates_args=())\n"
        "def double(x: torch.Tensor) -> torch.Tensor:\n"
        "    with contextlib.suppress(torch.OutOfMemoryError):\n"
        "        torch.empty(1 << 30, dtype=torch.uint8)\n"
        "    return x * 2\n"
        "print(double(torch.ones(2)).sum().item())\n",
    )
    done = ran(folder, *RUN, "--budget", "1MiB", "program.py")
    assert (done.returncode, done.stdout) == (0, "4.0\n")
    done = ran(folder, *RUN, "--budget", "1MiB", "--strict", "program.py")
    assert (done.returncode, done.stdout) == (1, "")
    assert "strict=True: modest::double asked for 1024.00 MiB" in done.stderr


def test_the_workers_of_a_data_loader_are_counted(tmp_path: Path) -> None:
    folder = written(
        tmp_path,
        "import torch\nif __name__ == '__main__':\n"
        "    loader = torch.utils.data.DataLoader(torch.arange(4.), num_workers=2)\n"
        "    print(sum(loader))\n",
    )
    done = ran(folder, *RUN, "--budget", "1GiB", "program.py")
    assert (done.returncode, done.stdout) == (0, "tensor([6.])\n")
    assert "without a budget                 2 processes that it started\n" in done.stderr


def test_torchrun_gives_each_process_a_budget(tmp_path: Path) -> None:
    """The model goes before the process ends, and gloo's threads with it. Their last work may still
    hold the backward pass's context variables (torch from 2.12 on, pytorch 173568), whose release
    needs the interpreter: Python below 3.14 then aborts, in plain torch too (pytorch 190489).
    """
    folder = written(
        tmp_path,
        f"{MODEL}\nimport torch.distributed as dist\ndist.init_process_group('gloo')\n"
        "net = nn.parallel.DistributedDataParallel(model())\n"
        "optimizer = torch.optim.AdamW(net.parameters())\n"
        "torch.manual_seed(dist.get_rank())\n"
        "for _ in range(3):\n"
        "    net(torch.randn(512, 64)).square().mean().backward()\n"
        "    optimizer.step()\n    optimizer.zero_grad()\n"
        "if dist.get_rank() == 0: print(digest(net))\n"
        "del net, optimizer\nimport gc\ngc.collect()\ndist.destroy_process_group()\n",
    )
    launch = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    plain = ran(folder, *launch, "program.py")
    ours = ran(folder, *launch, "--no-python", *RUN, "--budget", "60%", "program.py")
    assert (ours.returncode, ours.stdout) == (0, plain.stdout), ours.stderr[-3000:]
    for rank in range(2):
        assert f"dtr-alloc run, rank {rank}:\n" in ours.stderr
    assert ours.stderr.count("that must stay") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["program.py"], "how much memory? Give --budget, such as 4GiB or 60%"),
        (["--memory", "torch", "program.py"], 'budget None with memory="torch": nothing would'),
        (["--budget", "0.5", "program.py"], 'or a share as "50%"'),
        (["--budget", "60%", "-m", "torch.distributed.run", "x.py"], "--no-python dtr-alloc run"),
        (
            ["--budget", "60%", "-m", "accelerate.commands.launch", "x.py"],
            "launch starts processes",
        ),
        (["--budget", "60%", "bin/deepspeed", "x.py"], "bin/deepspeed starts processes that would"),
        (["--budget", "1GiB", "none.py"], "'none.py' does not exist"),
        (["--budget", "1GiB"], "Missing argument"),
    ],
)
def test_what_cannot_run_is_refused_before_anything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], message: str
) -> None:
    written(tmp_path, "raise AssertionError('ran')")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "deepspeed").touch()
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["run", *words], env={"DTR_ALLOC_BUDGET": None})
    assert done.exit_code in (1, 2)
    assert message in " ".join(done.stderr.replace("\n", " ").split())
