"""`python -m benchmarks.hostile [ATTACK ...] [--quick] [--out DIR]`: what hostile circumstances do to a run.

Every attack is a module beside this one. Each writes ATTACK.json into the folder; an attack that is run again replaces its file.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import pkgutil
import subprocess
import sys
import time
from pathlib import Path

import benchmarks.hostile as package


def attacks() -> list[str]:
    """Names of the attacks: every module of this package without an underscore."""
    return sorted(module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_"))


def main() -> int:
    """Run the attacks; 1 if a defence did not hold."""
    known = attacks()
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*known, []], help="which attacks; default all")
    parser.add_argument("--quick", action="store_true", help="a small version of each, in seconds")
    parser.add_argument("--out", type=Path, default=Path("results/hostile"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout.strip()
    held = True
    for name in arguments.names or known:
        module = importlib.import_module(f"benchmarks.hostile.{name}")
        start = time.perf_counter()
        rows = module.run(arguments.quick)
        content = {
            "command": f"python -m benchmarks.hostile {name}{' --quick' if arguments.quick else ''}",
            "attack": (module.__doc__ or "").strip().splitlines()[0],
            "commit": commit,
            "cores": os.cpu_count(),
            "seconds": round(time.perf_counter() - start, 1),
            "rows": rows,
        }
        (arguments.out / f"{name}.json").write_text(json.dumps(content, indent=1) + "\n")
        print(f"\n{name}: {content['attack']}")
        for row in rows:
            print("  " + "  ".join(f"{key} {value}" for key, value in row.items()))
            held = held and bool(row.get("held", True))
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
