"""What README.md and docs/ hold: blocks between fences, and commands in sentences."""

import re
import shlex
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCUMENTS = ("README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")))


@dataclass(frozen=True)
class Block:
    """What is between two fences."""

    document: str
    line: int
    """Of the opening fence."""
    language: str
    content: str
    file: str | None
    """The path that is alone on a line above: the block is what this file should hold."""

    @property
    def runs(self) -> bool:
        """Is it a piece of code that a reader pastes into Python?"""
        return self.language == "python" and self.file is None

    @property
    def needs_run(self) -> bool:
        """Does it look at a trained model, so that what it prints depends on the training?"""
        return "Run.open(" in self.content or "toytf.run(" in self.content

    @property
    def commands(self) -> list[list[str]]:
        """The words of its lines that call toytf."""
        if self.language not in ("", "bash", "sh", "console"):
            return []
        lines = re.sub(r"\\\n\s*", "", self.content).splitlines()
        found = [line.removeprefix("$ ") for line in lines if line.removeprefix("$ ").startswith("toytf ")]
        return [
            _synopsis(line) if _is_synopsis(line) else shlex.split(line.split(" > ")[0], comments=True)
            for line in found
        ]


FENCED = re.compile(
    r"^(?P<skipped><!-- not run: .+ -->\n)?(?:`(?P<file>[\w./-]+)`\n\n)?```(?P<language>\w*)\n(?P<content>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@cache
def blocks(document: str) -> list[Block]:
    """The blocks of a document, but for those that it says are not to be run, and why."""
    text = (ROOT / document).read_text(encoding="utf-8")
    return [
        Block(
            document,
            text.count("\n", 0, found.start("language")) + 1,
            found["language"],
            found["content"],
            found["file"],
        )
        for found in FENCED.finditer(text)
        if not found["skipped"]
    ]


def commands_in_sentences(document: str) -> list[list[str]]:
    """Whole commands between backticks, outside of blocks: not `toytf run` alone, nor `toytf run RUN/config.yaml`."""
    text = FENCED.sub("", (ROOT / document).read_text(encoding="utf-8"))
    found = re.findall(r"`(toytf (?:(?:run|probe|inspect) |claims\b|bench\b|list\b)[^`]*)`", text)
    return [shlex.split(line) for line in found if not re.search(r"[…*<]|\b[A-Z]{2,}\b", line)]


def _is_synopsis(line: str) -> bool:
    """Such as `toytf probe RUN [--step N]   what it does`."""
    return re.match(r"toytf \w+ (\[|[A-Z]+\b)", line) is not None


def _synopsis(line: str) -> list[str]:
    """The command, and the options that it is said to have."""
    synopsis = re.split(r"\s{2,}", line)[0]
    return [*synopsis.split()[:2], "[", *re.findall(r"--[\w-]+", synopsis)]
