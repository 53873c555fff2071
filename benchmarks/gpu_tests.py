"""Run the tests marked gpu and keep what came out: counts per file, command, device, versions.

    python benchmarks/gpu_tests.py --json benchmarks/results/nvidia-h200/gpu_tests.json packages/cudnn-gemm-dense/tests packages/cudnn-base/tests -- -n 6

What follows "--" goes to pytest. The exit status is pytest's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cudnn.bench import environment


def outcomes(junit: Path) -> tuple[dict[str, dict[str, int]], list[dict[str, str]]]:
    """({test file: {passed, failed, skipped, error: count}}, what failed or was skipped and why) of a JUnit file."""
    counts: dict[str, Counter[str]] = {}
    notable = []
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        where = case.get("classname", "")
        module = next((part for part in where.split(".") if part.startswith("test_")), where)
        outcome, text = "passed", ""
        for kind, name in (("failure", "failed"), ("error", "error"), ("skipped", "skipped")):
            found = case.find(kind)
            if found is not None:
                outcome, text = name, (found.get("message") or "").splitlines()[0] if found.get("message") else ""
        counts.setdefault(module, Counter())[outcome] += 1
        if outcome != "passed":
            notable.append({"test": f"{where}::{case.get('name')}", "outcome": outcome, "reason": text})
    return {module: dict(counter) for module, counter in sorted(counts.items())}, notable


def one_core_each(options: Sequence[str]) -> dict[str, str]:
    """The environment for pytest. Where it runs several processes, none of them starts more that compile or more threads of its own: they wait for each other then, for minutes."""
    environ = dict(os.environ)
    if any(option.startswith(("-n", "--numprocesses")) for option in options):
        for name in ("CUDNN_KERNELS_COMPILE_JOBS", "TORCHINDUCTOR_COMPILE_THREADS", "OMP_NUM_THREADS"):
            environ.setdefault(name, "1")
    return environ


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="+", help="test files or folders")
    parser.add_argument("--json", type=Path, required=True, help="where the result goes")
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    own, rest = sys.argv[1:cut], sys.argv[cut + 1 :]
    arguments = parser.parse_args(own)
    with tempfile.TemporaryDirectory() as folder:
        junit = Path(folder) / "junit.xml"
        command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", *arguments.paths, *rest]
        started = time.time()
        with subprocess.Popen([*command, f"--junitxml={junit}"], env=one_core_each(rest)) as running:
            try:
                status = running.wait()
            except KeyboardInterrupt:  # pytest has it too, and says what it got through
                status = running.wait()
        seconds = time.time() - started
        files, notable = outcomes(junit) if junit.exists() else ({}, [])
    total: Counter[str] = Counter()
    for counter in files.values():
        total.update(counter)
    result: dict[str, Any] = {
        "what": "tests marked gpu",
        "command": " ".join(["python", *command[1:]]),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 1),
        "exit_status": status,
        "total": dict(total),
        "files": files,
        "not_passed": notable,
        "device": environment.describe_device("cuda:0"),
        "versions": environment.versions(),
    }
    arguments.json.parent.mkdir(parents=True, exist_ok=True)
    arguments.json.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{dict(total)}, written to {arguments.json}")
    return status


if __name__ == "__main__":
    sys.exit(main())
