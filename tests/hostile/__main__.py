"""`make fuzz`: many hostile cases in processes of limited memory. Prints counts, and every case that went wrong."""

import argparse
import collections
import multiprocessing
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.hostile.worker import work


def main() -> int:
    """Do all cases with some workers; one that dies is named and replaced."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=20_000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    chosen = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    folder, results, started = Path(tempfile.mkdtemp(prefix="fuzz-")), context.SimpleQueue(), time.monotonic()
    share = -(-chosen.cases // chosen.jobs)
    ranges = [range(i * share, min((i + 1) * share, chosen.cases)) for i in range(chosen.jobs)]
    ats = [context.Value("q", -1) for numbers in ranges]

    def begin(i: int, numbers: range) -> Any:
        process = context.Process(
            target=work, args=(folder / f"{i}-{numbers.start}", chosen.seed, numbers, ats[i], results)
        )
        process.start()
        return process

    workers = {i: begin(i, numbers) for i, numbers in enumerate(ranges)}
    done, failures, peak, ended = 0, [], 0, collections.Counter[tuple[str, int]]()
    while workers or not results.empty():
        while not results.empty():
            number, said = results.get()
            if number is None:
                ended, peak = ended + said[0], max(peak, said[1])
            else:
                done += 1
                failures += [said] if said else []
                if said or done % 1000 == 0:
                    print(
                        said or f"{done} cases, {len(failures)} went wrong, {time.monotonic() - started:.0f} s",
                        flush=True,
                    )
        for i, process in list(workers.items()):
            if not process.is_alive() and results.empty():
                del workers[i]
                if process.exitcode and ats[i].value < 0:
                    raise SystemExit("a worker cannot begin")
                if process.exitcode:
                    failures.append(
                        f"case {ats[i].value} of seed {chosen.seed} ended its process with {process.exitcode}"
                    )
                    print(failures[-1], flush=True)
                    ranges[i] = range(ats[i].value + 1, ranges[i].stop)
                    ats[i].value = -1
                    workers[i] = begin(i, ranges[i])
        time.sleep(0.05)
    for (kind, code), n in sorted(ended.items()):
        print(f"{kind}: exit code {code}: {n}")
    print(
        f"seed {chosen.seed}: {done} cases in {time.monotonic() - started:.0f} s, largest memory {peak / 1e6:.2f} GB, "
        f"{len(failures)} went wrong"
    )
    if not failures:
        shutil.rmtree(folder)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
