"""Results by part, merged into those of earlier calls and rewritten whenever one comes in.

A call may end at any moment, and another on a fresh machine goes on. So gpu.json is the union of
calls: each part says which call it is of, when it ran, and whether it came to its end. A part that
runs again takes the place of its older results, which go to the end of the file (`replaced`). A
call for what is missing goes on within a part instead: it keeps the results that are whole.
"""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from measurement import write_json


def now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def earlier(*files: Path | None) -> dict[str, Any]:
    """What the first of these files that is there holds; an empty document if none is."""
    found: dict[str, Any] = {"calls": {}, "parts": {}, "replaced": [], "passed": []}
    for file in files:
        if file is not None and file.exists():
            found |= json.loads(file.read_text())
            break
    return found


class Report:
    """gpu.json and gpu.txt in a folder, as they stand."""

    def __init__(self, out: Path, call: dict[str, Any], before: Path | None = None) -> None:
        """`call` says what runs, on what; `before` is an older gpu.json to go on from."""
        self.out = out
        self._lock = threading.Lock()
        self._began: dict[str, float] = {}
        self.document = earlier(out / "gpu.json", before)
        self._call = str(1 + max(map(int, self.document["calls"]), default=0))
        self.document["calls"][self._call] = {"date": now(), **call}
        self._write()

    def begin(self, part: str, missing: bool = False, **facts: Any) -> None:
        """From now on `part` has no results but those to come, and those that are whole if only
        what is missing is to come. Until `end` it is unfinished."""
        with self._lock:
            parts = self.document["parts"]
            kept = {}
            self._began[part] = time.monotonic()
            if part in parts and missing:
                old = parts.pop(part)
                self._began[part] -= old.get("seconds", 0)
                kept = {
                    name: {"call": old["call"], **found}
                    for name, found in old["results"].items()
                    if not found.keys() & {"unfinished", "failed"}
                }
            elif part in parts:
                self.document["replaced"].append({"part": part, **parts.pop(part)})
            state = {"state": "unfinished", "call": self._call, "date": now(), **facts}
            parts[part] = state | {"results": kept}
            self._write(part)

    def put(self, part: str, name: str, found: dict[str, Any], line: str) -> None:
        """Writes a result, which may take the place of one of that name."""
        with self._lock:
            self.document["parts"][part]["results"][name] = found | {"line": line}
            self._write(part)

    def add(self, part: str, name: str, found: dict[str, Any], line: str) -> None:
        """`put`, and says so on the terminal."""
        self.put(part, name, found, line)
        print(f"{name:<40} {line}", flush=True)

    def end(self, part: str, state: str, **facts: Any) -> None:
        """`state` is done, unfinished, or failed."""
        with self._lock:
            self.document["parts"][part] |= {"state": state, **facts}
            self._write(part)

    def skip(self, part: str, why: str) -> None:
        """Says that a part did not run; what an earlier call found stays."""
        with self._lock:
            self.document["calls"][self._call].setdefault("skipped", {})[part] = why
            self._write()
        print(f"{part}: skipped: {why}", flush=True)

    def passed(self, *tests: str) -> list[str]:
        """All tests that have ever passed, these included from now on."""
        with self._lock:
            self.document["passed"] = sorted({*self.document["passed"], *tests})
        return list(self.document["passed"])

    def results(self, part: str) -> dict[str, Any]:
        """What a part has found so far, by name."""
        found: dict[str, Any] = self.document["parts"][part]["results"]
        return found

    def whole(self, part: str, name: str) -> dict[str, Any] | None:
        """A result that was kept from an earlier call, if there is one."""
        found = self.document["parts"][part]["results"].get(name, {})
        return dict(found) if "call" in found else None

    def text(self) -> str:
        """The table."""
        lines = []
        for name, part in self.document["parts"].items():
            call = self.document["calls"][part["call"]]
            commit = f"{str(call.get('commit'))[:12]}{', changed' if call.get('dirty') else ''}"
            lines.append(f"{name}: {part['state']}, {part['date']}, commit {commit}")
            lines += [f"  failed: {part['failed']}"] if "failed" in part else []
            lines += [f"  {label:<40} {r['line']}" for label, r in part["results"].items()]
        skipped = self.document["calls"][self._call].get("skipped", {})
        lines += [f"{name}: skipped in the last call: {why}" for name, why in skipped.items()]
        return "\n".join(lines) + "\n"

    def _write(self, part: str | None = None) -> None:
        if part is not None:
            seconds = round(time.monotonic() - self._began[part], 1)
            self.document["parts"][part]["seconds"] = seconds
        used = {part["call"] for part in self.document["parts"].values()} | {self._call}
        used |= {part["call"] for part in self.document["replaced"]}
        results = [part["results"].values() for part in self.document["parts"].values()]
        used |= {found["call"] for of_part in results for found in of_part if "call" in found}
        calls = self.document["calls"]
        self.document["calls"] = {number: calls[number] for number in calls if number in used}
        write_json(self.out / "gpu.json", self.document)
        fresh = self.out / ".gpu.txt"
        fresh.write_text(self.text())
        fresh.replace(self.out / "gpu.txt")
