"""Write what documents say about metrics, results and performance: `make docs`.

docs/metrics.md lists every group of metrics as the code declares it. docs/results.md lists every claim: its words come
from configs/claims, its numbers from docs/claims.json. After a new check, `python -m docs.generate DIR/claims.json`
takes the numbers that `toytf claims --out DIR` wrote into docs/claims.json first. docs/performance.md is
docs/performance.template with the numbers that `toytf bench --json benchmarks/measured.json` measured.
"""

import ast
import importlib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, get_args

from docs.markdown import filled, table
from toytf.claims import Claim, Expectation, compare, load_claim
from toytf.claims.claim import Kind
from toytf.config.compose import read_config
from toytf.config.plugins import plugins
from toytf.config.sections import digest
from toytf.config.shipped import claim_files
from toytf.errors import UserError
from toytf.measurement import KINDS, Group
from toytf.report.table import number, whole
from toytf.report.verdicts import evidence
from toytf.task import EVAL, meanings_by_role

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
CLAIMS = DOCS / "claims.json"
MEASURED = ROOT / "benchmarks" / "measured.json"
METRIC_NAMES = ROOT / "tests" / "golden" / "metric_names.txt"
MARK = "<!-- Below: written by `make docs` from the groups that the code declares. Change those. -->"
VERDICTS = ("refuted", "not reached", "confirmed")


# Results


def outcomes(checks: Iterable[Path]) -> list[dict[str, Any]]:
    """docs/claims.json with the verdicts of newer checks: name, verdict and findings of every claim."""
    newest = {outcome["name"]: outcome for path in (CLAIMS, *checks) for outcome in json.loads(path.read_bytes())}
    hasty = [name for name, outcome in newest.items() if outcome.get("quick")]
    if hasty:
        raise UserError(f"{', '.join(hasty)}: a quick check is no result: check without --quick")
    return [
        {part: outcome[part] for part in ("name", "verdict", "seconds", "findings")}
        for name, outcome in sorted(newest.items())
        if name in claim_files()
    ]


@dataclass(frozen=True)
class Result:
    """A claim as it is worded today, and its last verdict."""

    name: str
    claim: Claim
    verdict: str
    findings: list[dict[str, Any]]
    shares: tuple[str, ...]
    """Claims that rest on a run of this one, too."""

    @property
    def _kind(self) -> str:
        return self.claim.kind.capitalize()

    @property
    def _told(self) -> str:
        """The verdict, and how many expectations do not have it."""
        n = sum(found["verdict"] == "confirmed" for found in self.findings)
        return self.verdict + ("" if n == len(self.findings) else f", {n} of {len(self.findings)} expectations hold")

    @property
    def link(self) -> str:
        """To its section."""
        return section_link(self.name)

    def section(self) -> str:
        """Statement, expectations beside what was measured, and the note."""
        rows = [
            (
                f"`{found['run']}`",
                f"`{found['metric']}`",
                _expected(asked, found),
                _measured(found),
                evidence(found["n"], found["doubt"], found["held"], found["p"]),
                _bold(found["verdict"]),
            )
            for asked, found in zip(self.claim.expect, self.findings, strict=True)
        ]
        parts = [
            f"### {self.name}",
            filled(f"**{self.claim.title}: {self._told}.** {self.claim.statement} *{self._kind}: {self.claim.source}*"),
            table(("run", "metric", "expected", "measured", "seeds", "verdict"), rows),
            filled(self.claim.note),
            filled("Shares runs with " + ", ".join(map(section_link, self.shares)) + "." if self.shares else ""),
        ]
        return "\n\n".join(filter(None, parts))


def section_link(name: str) -> str:
    """To the section of a claim."""
    return f"[{name}](#{re.sub('[^a-z0-9_]', '', name)})"


def results() -> list[Result]:
    """Every claim that ships."""
    found = {outcome["name"]: outcome for outcome in outcomes([])}
    loaded = {name: load_claim(path) for name, path in claim_files().items()}
    claims = {name: claim for name, (claim, _) in loaded.items()}
    runs = {name: {digest(config) for config in configs.values()} for name, (_, configs) in loaded.items()}
    missing = sorted(set(claims) - set(found))
    if missing:
        raise UserError(
            f"no result yet: toytf claims {' '.join(missing)}; python -m docs.generate runs/claims/claims.json"
        )
    shares = {name: tuple(other for other in runs if other != name and runs[other] & runs[name]) for name in runs}
    return [
        Result(name, claim, found[name]["verdict"], found[name]["findings"], shares[name])
        for name, claim in claims.items()
    ]


def expectations(claim: Claim) -> list[tuple[str, str, str, float]]:
    """What a check of this claim would compare: run, metric, expectation, tolerance."""
    findings = [compare(expectation, None) for expectation in claim.expect]
    return [(found.run, found.metric, found.expected, found.tolerance) for found in findings]


INTRODUCTION = """
A claim is a statement of a paper, or one derived here, as runs and what their metrics should be. There are {counts}.
The expected numbers come from the paper, a derivation, a separate simulation (a short program that shares no code with
toytf and is not part of it), runs on other seeds, or are our choice; the source or the note says which. {restated}
claims were restated after an earlier version had run, some because it failed: their notes say what it asked for.
`toytf claims --jobs 2` checks all claims again, in about an hour and a quarter; `toytf claims bigram` checks one area,
`toytf claims bigram/ideal` one claim, and `toytf claims --quick` a smaller version of all.

An expectation of a mean is *confirmed* if the mean holds, within its tolerance, by more than the doubt, *refuted* if it
fails by more than tolerance and doubt, and else *not reached*. The doubt is half of the 95 % confidence interval of the
mean, t(0.975, n − 1) · sd / √n over n seeds. Where two metrics are compared it is that of their difference, seed by
seed; of a value fitted to all seeds, t times the error of the fit. For a range, mean ± doubt must lie inside.

What should hold in every seed is confirmed if it holds in each that is run, five or more (which shows that it holds in
most seeds, not in all), and refuted if it fails in so many that a fair coin would not (p ≤ 0.05). Shown are in how many
it holds, and the chance that a fair coin falls on the same side so often. *Exact*: nothing is random, and there is no
doubt. A dash: some seed has no such number, as what it counts never came, or not between the sizes that were run.

A claim has the verdict of its worst expectation, so *not reached* says that one of them was neither confirmed nor
refuted. ± after what is measured is its standard deviation over seeds, or the error of a fit. If the true mean lies
exactly on the bound, chance alone gives *refuted* in one of forty checks and *confirmed* in another (in up to one of
twenty where every seed counts). There are hundreds of expectations, and nothing corrects for their number. Ten cheap
claims whose doubt was too large at first, those with seeds from 5000 on but for `bigram/learning_order`, got four times
as many seeds, once, and none of the former.

*Published*: the statement is a paper's; the source says whether the numbers that decide are, too. *Derived here*: a
statement or comparison of ours. *Check of the code*: an identity, or fixed examples that a separate simulation also
computed, so that only a bug could refute it. Claims that share runs say so, and are not independent evidence; nor are
those on cells of the scaling grid, which train the same cells on the same seeds.

Papers: Bietti et al. 2023 is arXiv 2306.00802, Chen, Bruna, Bietti 2024 is arXiv 2406.03068, Nichani, Lee, Bietti 2024
is arXiv 2412.06538, Giorlandino, Goldt, Maillard 2026 is arXiv 2605.10795, Barnfield et al. 2026 is arXiv 2605.05189,
Lyu and Li 2020 is arXiv 1906.05890, Cabannes, Dohmatob, Bietti 2024 is arXiv 2310.02984, Cabannes, Simsek, Bietti 2024
is arXiv 2402.18724, Hutter 2021 is arXiv 2102.04074. "Derived" means that we derived the formula.
"""


def results_page() -> str:
    """All of docs/results.md."""
    found = results()
    failed = sorted(
        (result for result in found if result.verdict != "confirmed"), key=lambda result: VERDICTS.index(result.verdict)
    )
    restated = sum("version" in result.claim.note for result in found)
    introduction = INTRODUCTION.format(counts=_counted(found), restated=restated)
    parts = [
        "# Results",
        "<!-- Written by `make docs` from docs/claims.json and configs/claims. Change those. -->",
        *(filled(paragraph) for paragraph in introduction.strip().split("\n\n")),
        _by_kind(found),
        "## Not confirmed",
        *(result.section() for result in failed),
    ]
    for area in dict.fromkeys(result.name.partition("/")[0] for result in found):
        own = [result for result in found if result.name.partition("/")[0] == area]
        rows = [(result.link, result.claim.title, result.claim.source, _bold(result.verdict)) for result in own]
        parts += [
            f"## {_title(area)}",
            f"{_counted(own)}. The runs are explained in [{area}.md]({area}.md).",
            table(("claim", "in one line", "source", "verdict"), rows),
            *(result.section() for result in own if result.verdict == "confirmed"),
        ]
    return "\n\n".join(parts) + "\n"


def _counted(found: list[Result]) -> str:
    counts = Counter(result.verdict for result in found)
    shown = [f"{counts[verdict]} {verdict}" for verdict in reversed(VERDICTS) if counts[verdict]]
    return f"{len(found)} claims: {', '.join(shown)}"


def _by_kind(found: list[Result]) -> str:
    kinds = {kind: [result for result in found if result.claim.kind == kind] for kind in get_args(Kind)}
    rows = [
        (
            kind,
            f"{len(own)}",
            *(f"{sum(result.verdict == verdict for result in own)}" for verdict in reversed(VERDICTS)),
        )
        for kind, own in kinds.items()
    ]
    return table(("kind", "claims", *reversed(VERDICTS)), rows)


def _title(area: str) -> str:
    return (DOCS / f"{area}.md").read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")


def _bold(verdict: str) -> str:
    return verdict if verdict == "confirmed" else f"**{verdict}**"


def _expected(asked: Expectation, found: Mapping[str, Any]) -> str:
    sign, slack = {">=": ("≥", "−"), ">": (">", "−"), "<=": ("≤", "+"), "<": ("<", "+"), "==": ("=", "±")}[
        asked.comparison
    ]
    level = f"{asked.value:g}" if isinstance(asked.value, float) else _shown(found["predicted"], asked.value)
    times = f"{asked.factor:g} × " if asked.factor != 1 else ""
    tolerance = f" {slack} {asked.tolerance:g}" if asked.tolerance else ""
    named = isinstance(asked.value, str) and (times or asked.value != asked.metric)
    other = f" ({times}`{asked.value}`)" if named else ""
    of = f" of `{asked.of}`" if asked.of else ""
    limit = f" for size → ∞, from {', '.join(map(str, asked.sizes))}" if asked.sizes else ""
    return f"{sign} {level}{tolerance}{other}{of}{limit}" + (", every seed" if asked.over == "every" else "")


def _measured(found: Mapping[str, Any]) -> str:
    spread = f" ± {_shown(found['spread'], found['metric'])}" if found["spread"] is not None else ""
    return _shown(found["measured"], found["metric"]) + spread


def _shown(value: float | None, metric: str) -> str:
    """A value as tables show it, small ones with two digits; steps and samples are whole numbers."""
    counts = {one.group.name for one in declared() if one.group.format == "whole"}
    if value is not None and metric.partition("/")[0] in counts:
        return whole(value)
    return f"{value:.2g}" if value is not None and 0 < abs(value) < 0.01 else number(value)


# Metrics


@dataclass(frozen=True)
class Declared:
    """A group of metrics, the module that declares it, and its flat names with what each is compared with, if known."""

    group: Group
    module: str
    names: Mapping[str, tuple[str, ...] | None]

    def row(self) -> tuple[str, ...]:
        """Its line of the list."""
        group = self.group
        shown = {"whole": "whole numbers", "power": "powers of ten", "number": ""}[group.format]
        details = ", ".join(filter(None, [group.unit, shown, "in no table" if group.place == "log" else ""]))
        told = f"**{group.title}**" + (f" ({details})" if details else "") + (f". {group.says}" if group.says else "")
        compared = ", ".join(kind for kind in KINDS if any(kind in found for found in self.names.values() if found))
        known = any(found is not None for found in self.names.values())
        examples = ", ".join(f"`{name}`" for name in _examples(self.names))
        return _link(group.name, self.module), told, compared or ("–" if known else ""), examples

    def meanings(self) -> Iterator[str]:
        """What its metrics mean, one by one; after that of tasks and experiments that say more."""
        name, variations = self.group.name, [(made, other) for made, other in varied() if other.name == self.group.name]
        if self.group.meanings:
            yield f"`{name}/…`" + (", if a task says nothing else:" if variations else ":")
            yield _sentences(self.group)
        for module, other in variations:
            yield f"`{name}/…`, as said in {_link(module.replace('.', '/') + '.py', module)}:"
            yield _sentences(other)


@cache
def declared() -> list[Declared]:
    """The groups that the modules of toytf, tasks and probes declare."""
    found = _made_by("Group")
    return [Declared(group, module, _names(group, module, found)) for module, group in found]


@cache
def varied() -> list[tuple[str, Group]]:
    """Declared groups with sentences of their own, and the modules that say them: roles and heuristics of a task."""
    found = [(module, group) for module, group in _made_by("replace") if group.meanings]
    for config in plugins("tasks").values():
        module, _, name = config.implementation.partition(":")
        if module.startswith("tasks."):  # not of a stranger's package
            texts = getattr(importlib.import_module(module), name).role_texts
            found.append((module, replace(EVAL, meanings=meanings_by_role(texts))))
    return found


def _made_by(function: str) -> list[tuple[str, Group]]:
    """The groups that modules of toytf, tasks and probes make by a call of this function, as `NAME = function(…)`."""
    found: list[tuple[str, Group]] = []
    for path in sorted(path for package in ("toytf", "tasks", "probes") for path in (ROOT / package).rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        calls = [line for line in tree.body if isinstance(line, ast.Assign) and isinstance(line.value, ast.Call)]
        targets = [line.targets[0] for line in calls if ast.unparse(line.value).startswith(f"{function}(")]
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        values = [getattr(importlib.import_module(module), ast.unparse(target)) for target in targets]
        found += [(module, value) for value in values if isinstance(value, Group)]
    return found


def _names(group: Group, module: str, found: list[tuple[str, Group]]) -> dict[str, tuple[str, ...] | None]:
    """Flat names of a group, and what each is compared with.

    Where several modules declare a group of this name, a run has that of its own experiment, else that of a probe.
    """
    makers = [maker for maker, other in found if other.name == group.name]
    packages = [_package(experiment) for experiment in plugins("experiments")]
    outside = [maker for maker in makers if not maker.startswith(tuple(packages))]
    names: dict[str, tuple[str, ...] | None] = {}
    for experiment, name, kinds in _metrics():
        if name.partition("/")[0] == group.name:
            inside = [maker for maker in makers if maker.startswith(_package(experiment))]
            if module in (inside or outside):
                names.setdefault(name, kinds)
    return names


@cache
def _metrics() -> list[tuple[str, str, tuple[str, ...] | None]]:
    """Names that exist: of the small runs of the tests, with what each is compared with, and of the claims."""
    found: list[tuple[str, str, tuple[str, ...] | None]] = []
    for section in METRIC_NAMES.read_text(encoding="utf-8").removeprefix("# ").split("\n# "):
        config, *lines = section.strip().splitlines()
        experiment = read_config(ROOT / "configs" / f"{config.removesuffix('.yaml')}.yaml")["experiment"]
        for line in lines:
            name, *kinds = line.split()
            found.append((experiment, name, tuple(kinds)))
    for claim, configs in map(load_claim, claim_files().values()):
        asked = [place for expectation in claim.expect for place in expectation.places().values()]
        found += [(configs[run].experiment, metric, None) for run, metric in asked]
    return found


def _link(text: str, module: str) -> str:
    return f"[`{text}`](../{module.replace('.', '/')}.py)"


def _sentences(group: Group) -> str:
    """A line for each pattern of labels."""
    lines = [f"- `{pattern}`: {says}" for pattern, says in group.meanings]
    return "\n".join(filled(line, subsequent_indent="  ") for line in lines)


def _package(experiment: str) -> str:
    """The package of an experiment, such as `tasks.bigram.three_steps.`."""
    module: str = plugins("experiments")[experiment].implementation.partition(":")[0]
    return module.rpartition(".")[0] + "."


def _examples(names: Iterable[str], most: int = 4) -> list[str]:
    """A few names that differ in more than their numbers, plain and short ones first."""
    kinds: dict[str, str] = {}
    for name in sorted(names, key=lambda name: (name.count("/"), len(name), name)):
        kinds.setdefault(re.sub(r"\d+(\.\d+)?", "0", name), name)
    return list(kinds.values())[:most]


def _groups() -> str:
    """The list, by what has to run for a metric to be there."""
    experiments = {_package(name): f"Experiment `{name}`" for name in plugins("experiments") if name != "train"}
    rooms = {
        "toytf.": "Every training",
        "probes.": "Probes for any task",
        "toytf.memory.": "Probes `margins`, `scores`, `spectrum`, `utilisation`, and experiment `storage`",
        "probes.bigram.": "Probes for the bigram task",
        "probes.factual.": "Probes for the factual task",
        **experiments,
    }
    sections: dict[str, list[Declared]] = {room: [] for room in rooms}
    for one in declared():
        sections[max((room for room in rooms if one.module.startswith(room)), key=len)].append(one)
    columns = ("group", "what it is, and what to look for", "compare with", "names, such as")
    parts: list[str] = []
    for room, ones in sections.items():
        if ones:
            parts += [f"### {rooms[room]}", table(columns, [one.row() for one in ones])]
            parts += [part for one in ones for part in one.meanings()]
    return "\n\n".join(parts) + "\n"


def metrics_page() -> str:
    """docs/metrics.md with its list written anew; what is above the mark is written by hand."""
    by_hand = (DOCS / "metrics.md").read_text(encoding="utf-8").partition(MARK)[0]
    return f"{by_hand}{MARK}\n\n{_groups()}"


# Performance


class Measured(float):
    """A number of a benchmark, which the template shows as `{steps[birth_ratio]:times}`."""

    def __format__(self, way: str) -> str:
        value = float(self)
        shown = {
            "times": f"{value:.2g} ×" if value < 10 else f"{value:,.0f} ×",
            "times_precisely": f"{value:.2f} ×",
            "seconds": f"{value:.2f} s",
            "percent": f"{100 * value:.0f} %" if value >= 0.01 else f"{100 * value:.1f} %",
            "millions": f"{value / 1e6:.0f} million",
            "power": f"{value:z.2f}",
            "whole": f"{value:.0f}",
        }
        if way == "seconds" and value < 1:
            return f"{1000 * value:.2g} ms" if value < 0.1 else f"{1000 * value:.0f} ms"
        return shown[way]


def performance_page() -> str:
    """docs/performance.md: every number of every benchmark in its place."""
    measured = json.loads(MEASURED.read_bytes())
    machine = measured.pop("machine")
    found = {name: {key: Measured(value) for key, value in numbers.items()} for name, numbers in measured.items()}
    return (DOCS / "performance.template").read_text(encoding="utf-8").format(machine=machine, **found)


# All


def main() -> None:
    """Take up new checks, if any are given, and write the three documents."""
    CLAIMS.write_text(json.dumps(outcomes(map(Path, sys.argv[1:])), indent=2) + "\n", encoding="utf-8")
    (DOCS / "results.md").write_text(results_page(), encoding="utf-8")
    (DOCS / "metrics.md").write_text(metrics_page(), encoding="utf-8")
    (DOCS / "performance.md").write_text(performance_page(), encoding="utf-8")


if __name__ == "__main__":
    main()
