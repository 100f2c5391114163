"""The code in docs/plan.md and docs/ecosystem.md runs."""

import json
import re
from pathlib import Path

import pytest

from dtr_alloc.runtime import rematerialization_cost

DOCS = Path(__file__).parents[1] / "docs"


@pytest.mark.parametrize("page", ["plan.md", "ecosystem.md"])
def test_the_code_of_a_page_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(rematerialization_cost, "_measured", [0.0])
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], page, "exec"), {"__name__": "docs"})
    if page == "plan.md":
        assert len(capsys.readouterr().out.splitlines()) == 4
    else:
        both = json.loads((tmp_path / "both.json").read_text())["traceEvents"]
        names = [event.get("name") for event in both]
        assert "evict aten::addmm" in names
        assert names.count("rematerialize aten::addmm") > 0
        assert names.count("rematerialize aten::addmm") == names.count(
            "dtr::rematerialize(aten::addmm)"
        )
