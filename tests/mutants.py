"""`python -m tests.mutants`: would a test notice if one token of the code were another?

Random mutants of memory, theory, models, probes and claims, as many of each folder: another operator, comparison or
number, a transposition less, min for max. Each meets the tests that name its module, in a copy of the tree. A mutant
that no test notices is a hole in the tests, or in code that does not matter. A hundred take ten minutes.
"""

import argparse
import ast
import itertools
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("toytf/memory", "toytf/theory", "toytf/models", "probes", "toytf/claims")
WORDS_ONLY = ("config.py", "figures.py", "__init__.py")
"""Endings of files with sentences, defaults and drawings."""
SWAPS = {
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*", ast.Pow: "*", ast.MatMult: "*",
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==", ast.Is: "is not",
    ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in", ast.And: "or", ast.Or: "and",
}  # fmt: skip
NAMES = {"min": "max", "amin": "amax", "argmin": "argmax"}
NAMES |= {other: name for name, other in NAMES.items()}
MOST_SECONDS = 600
"""After which a mutant that makes the tests run forever is noticed."""


@dataclass(frozen=True)
class Mutant:
    """One token of a file that is replaced."""

    path: str
    line: int
    start: int
    end: int
    """Bytes of the file from start to before end."""
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line} `{self.old}` → `{self.new}`"


def mutants(path: Path) -> Iterator[Mutant]:
    """All of a file, but for annotations, decorators, errors and what is said."""
    source = path.read_bytes()
    ends = [0, *itertools.accumulate(map(len, source.splitlines(keepends=True)))]

    def at(node: ast.expr, *, end: bool = False) -> int:
        line, column = (node.end_lineno, node.end_col_offset) if end else (node.lineno, node.col_offset)
        assert line is not None and column is not None
        return ends[line - 1] + column

    def replaced(start: int, end: int, pattern: str, new: str) -> Iterator[Mutant]:
        found = re.search(pattern.encode(), source[start:end])
        if found is not None:
            first, last = start + found.start(), start + found.end()
            line = source.count(b"\n", 0, first) + 1
            yield Mutant(str(path.relative_to(ROOT)), line, first, last, found.group().decode(), new)

    def of(node: ast.AST) -> Iterator[Mutant]:
        match node:
            case ast.BinOp(left, op, right) if type(op) in SWAPS:
                yield from replaced(at(left, end=True), at(right), r"//|\*\*|[-+*/@]", SWAPS[type(op)])
            case ast.Compare(left, ops, comparators):
                words = r"is not|not in|is|in|[<>=!]=|[<>]"
                for one, sign, other in zip([left, *comparators], ops, comparators, strict=False):
                    yield from replaced(at(one, end=True), at(other), words, SWAPS[type(sign)])
            case ast.BoolOp(op, [left, right, *_]):
                yield from replaced(at(left, end=True), at(right), "and|or", SWAPS[type(op)])
            case ast.UnaryOp(ast.Not() | ast.USub(), operand):
                yield from replaced(at(node), at(operand), "not |-", "")
            case ast.Constant(bool(value)):
                yield from replaced(at(node), at(node, end=True), ".+", str(not value))
            case ast.Constant(int(value) | float(value)):
                number = value + 1 if isinstance(value, int) or value == 0 else 2 * value
                yield from replaced(at(node), at(node, end=True), ".+", repr(number))
            case ast.Attribute(value, "T" | "mT"):
                yield from replaced(at(value, end=True), at(node, end=True), r"\.m?T", "")
            case ast.Attribute(value, name) if name in NAMES:
                yield from replaced(at(value, end=True), at(node, end=True), name, NAMES[name])
            case ast.Name(name) if name in NAMES:
                yield from replaced(at(node), at(node, end=True), name, NAMES[name])

    def visit(node: ast.AST) -> Iterator[Mutant]:
        if not isinstance(node, ast.Raise | ast.JoinedStr):
            yield from of(node)
            for name, field in ast.iter_fields(node):
                if name not in ("annotation", "returns", "decorator_list"):
                    for child in field if isinstance(field, list) else [field]:
                        if isinstance(child, ast.AST):
                            yield from visit(child)

    yield from visit(ast.parse(source))


def tests_of(path: Path) -> list[str]:
    """Files of tests that name a module or something public in it, its own first; else those of its folder."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    module, package = ".".join(parts), ".".join(parts[:-1])
    room = ROOT.joinpath("tests", *(part for part in parts[:-1] if part != "toytf"))
    defined = ast.parse(path.read_bytes()).body
    names = {node.name for node in defined if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"}
    ranks: dict[str, int] = {}
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        words = {*re.findall(r"[\w.]+", file.read_text(encoding="utf-8"))}
        near = room in file.parents or any(word == package or word.startswith(f"{package}.") for word in words)
        named = [file.stem == f"test_{path.stem}", module in words, near and bool({*names, path.stem} & words)]
        if any(named):
            ranks[str(file.relative_to(ROOT))] = named.index(True)
    return sorted(ranks, key=lambda file: ranks[file]) or [str(room.relative_to(ROOT))]


def copied(target: Path) -> Path:
    """All that git knows, as it is now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout
    for name in filter(None, listed.decode().split("\0")):
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target / name)
    return target


def failing(tests: list[str], folder: Path, seconds: float | None = MOST_SECONDS) -> list[str]:
    """The tests that fail in a copy of the tree, up to the first; if they do not end, or end pytest, how."""
    options = ["-x", "--tb=no", "-rfE", "-p", "no:cacheprovider"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "", "PYTHONPATH": str(folder)}
    try:
        command = [sys.executable, "-m", "pytest", *options, *tests]
        ended = subprocess.run(
            command, cwd=folder, env=environment, check=False, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired:
        return ["no end"]
    found = re.findall(r"^(?:FAILED|ERROR) (tests/\S+(?:\[.*?\])?)(?: - .*)?$", ended.stdout, re.MULTILINE)
    return found or ([] if ended.returncode in (0, 5) else [f"exit code {ended.returncode}"])


def met(drawn: list[Mutant], copies: list[Path]) -> list[str | None]:
    """Of every mutant the test that notices it, if one does; the copies of the tree are used at once."""
    folders: SimpleQueue[Path] = SimpleQueue()
    for copy in copies:
        folders.put(copy)
    stamps = itertools.count(10**9)

    def meet(mutant: Mutant) -> str | None:
        folder, source = folders.get(), (ROOT / mutant.path).read_bytes()

        def write(text: bytes) -> None:
            (folder / mutant.path).write_bytes(text)
            os.utime(folder / mutant.path, (next(stamps),) * 2)  # or what was compiled before would be taken for it

        tests = tests_of(ROOT / mutant.path)
        write(source[: mutant.start] + mutant.new.encode() + source[mutant.end :])
        failed = failing(tests, folder)
        write(source)
        folders.put(folder)
        print(mutant, f"noticed by {failed[0]}" if failed else f"SURVIVED {len(tests)} files of tests", flush=True)
        return failed[0] if failed else None

    with ThreadPoolExecutor(len(copies)) as pool:
        noticed_by = list(pool.map(meet, drawn))
    wrong = failing(sorted({test for test in noticed_by if test and test.startswith("tests/")}), copies[0], None)
    if wrong:
        raise SystemExit(f"{wrong[0]} fails without a mutant, too: these counts mean nothing")
    return noticed_by


def main() -> None:
    """Make mutants, run their tests, say which no test noticed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mutants", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    chosen = parser.parse_args()
    draw = random.Random(chosen.seed)
    drawn = []
    for i, room in enumerate(FOLDERS):
        files = (path for path in sorted((ROOT / room).rglob("*.py")) if not path.name.endswith(WORDS_ONLY))
        possible = [mutant for path in files for mutant in mutants(path)]
        drawn += draw.sample(possible, len(range(i, chosen.mutants, len(FOLDERS))))
    with tempfile.TemporaryDirectory(prefix="mutants-") as place:
        noticed_by = met(drawn, [copied(Path(place, str(i))) for i in range(chosen.jobs)])
    for room in (*FOLDERS, ""):
        own = [test for mutant, test in zip(drawn, noticed_by, strict=True) if mutant.path.startswith(room)]
        print(f"{room or 'all'}: {len(own) - own.count(None)} of {len(own)} noticed")


if __name__ == "__main__":
    main()
