"""Measurements: one number with what it is about, and what it can be read against.

A measurement is a record: a group, a name, a value, where it was taken (`at`: a rule, a dimension, a head …),
and a reference. Tables, figures and fits work on these parts. A flat name, such as `capacity/optimum_d64`, is only how
a record is written down, in metrics.jsonl, summary.json, wandb and claims; `flat` is the one function that makes it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from string import Formatter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from toytf.errors import UserError, shortened

if TYPE_CHECKING:
    from pydantic import TypeAdapter

Scalar = str | int | float
"""What a factor of a measurement can be; True says that it is so, such as `weighted`."""

KINDS = ("ideal", "hebbian", "limit", "theory", "chance")
"""What a value can be read against: `ideal/<metric>` and so on."""

TAKEN = {"seed", "step", "group", "name", "metric", "variant", "value", "spread", *KINDS}
"""Columns of every table, which no factor can be called."""

SHORT = {
    "d": "d", "width": "m", "alpha": "a", "beta": "b", "n_tokens": "N", "n_heads": "H", "samples": "n", "contexts": "m",
    "n_inputs": "N", "n_outputs": "M",
}  # fmt: skip
"""How factors begin in flat names. Of others, a number begins with the name of its factor, and a word with nothing."""


Section = Literal["", "learning", "memories", "attention", "facts", "interventions"]
"""The sections of a page; empty: after all others."""


@dataclass(frozen=True)
class Reference:
    """What a value can be read against: that of the ideal solution, by chance, by theory, and what is possible."""

    ideal: float | None = None
    chance: float | None = None
    theory: float | None = None
    """What the theory of random vectors predicts."""
    hebbian: float | None = None
    """What the Hebbian rule makes of the same vectors."""
    limit: float | None = None
    """The most that is possible, by the theory of random vectors."""


class Headline(NamedTuple):
    """Metrics that belong in the short table at the end of a run, and what they are in a phrase."""

    label: str
    """The name of a metric without its group, or a pattern of names: `induction`, `*_min`."""
    phrase: str
    """What it is, which is said before its name; factors in braces: `pairs that {rule} stores at d = {d}`."""
    rank: int = 0
    """If there are too many, those of rank 0 come first, then those of rank 1 …"""

    def factors(self) -> set[str]:
        """The factors that the phrase names; refuses a phrase that cannot be filled in."""
        try:
            parsed = list(Formatter().parse(self.phrase))
        except ValueError:
            parsed = [("", "", "", None)]
        named = {factor for _, factor, _, _ in parsed if factor is not None}
        if not all(factor.isidentifier() for factor in named):
            raise UserError(
                f'the phrase "{shortened(self.phrase)}" of a headline has braces that name no factor: write {{d}} for '
                "the factor d, and {{ or }} for a brace itself"
            )
        return named


@dataclass(frozen=True)
class Group:
    """Measurements of one kind, as whoever takes them declares it: how tables, figures and pages show them."""

    name: str
    title: str
    says: str = ""
    """One sentence for readers: what to look for."""
    unit: str = ""
    format: Literal["number", "whole", "power"] = "number"
    """whole: of steps or samples; power: numbers that are small whatever they mean."""
    place: Literal["first", "last", "full", "log"] = "first"
    """Where its rows stand: among the first, after all others, there but only in full tables, or in no table."""
    curve: bool = True
    """Does the page of a training draw it over the steps?"""
    variants: tuple[str, ...] = ()
    """Factors that make variants of a metric, such as the head: `recall/W_OV2/head0`."""
    short: bool = False
    """Do short tables show the variants, too?"""
    timed: Literal["", "onset", "halfway"] = ""
    """Of which moment the step is of interest: when it leaves chance, or when it is halfway to the ideal."""
    headline: tuple[Headline, ...] | None = None
    """What the short table shows of it, in this order; None: all, with the title as phrase, after what is declared."""
    meanings: tuple[tuple[str, str], ...] = ()
    """What single metrics mean, in a sentence: by label or pattern of labels, the first that fits counts. Where none
    does, `says` is the sentence."""
    section: "Section" = ""
    """The section of a page that shows it besides curves and tables; empty: none."""
    pooled: bool = False
    """Is a value that of all seeds together? Then its ± is the error of its fit, the variant `error`."""

    def __post_init__(self) -> None:
        taken = self.name in ("", "seed", "step", *KINDS)
        if taken or set(self.name) & set("/@\\") or not self.name.isprintable():
            raise UserError(f'a group cannot be called "{shortened(self.name)}"')
        for row in self.headline or ():
            row.factors()  # a mistake in a phrase should show before anything is measured

    def meaning(self, label: str) -> str:
        """What the metric of this label means, in a sentence; nothing if nobody said."""
        return next((says for pattern, says in self.meanings if fnmatchcase(label, pattern)), self.says)

    def measurement(
        self,
        value: float | None,
        name: str = "",
        *,
        ideal: float | None = None,
        chance: float | None = None,
        theory: float | None = None,
        hebbian: float | None = None,
        limit: float | None = None,
        **at: Scalar | None,
    ) -> "Measurement":
        """A measurement of this group; None among the factors is left out, and as value: there is none."""
        said = {factor: plain_scalar(given) for factor, given in at.items() if given is not None}
        number = None if value is None else float(value)
        return Measurement(Quantity(self, name, said), number, Reference(ideal, chance, theory, hebbian, limit))

    @property
    def heading(self) -> str:
        """The title with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


@dataclass(frozen=True)
class Quantity:
    """What is measured: a column of metrics.jsonl."""

    group: Group
    name: str = ""
    at: Mapping[str, Scalar] = field(default_factory=dict)
    plain: tuple[str, ...] = ()
    """Factors that the flat name leaves out, being at the value that goes without saying."""

    def __post_init__(self) -> None:
        taken = set(self.at) & TAKEN
        if taken:
            raise UserError(
                f"a factor of {self.group.name} cannot be called {min(taken)}: the table has a column of that name"
            )

    @property
    def is_variant(self) -> bool:
        """Is it a variant of a metric, such as one head of several?"""
        return any(factor in self.at and factor not in self.plain for factor in self.group.variants)

    @property
    def on(self) -> str:
        """Which entry of `evaluate_on` it was measured on; empty: the task itself."""
        return str(self.at.get("on", ""))

    @property
    def label(self) -> str:
        """Its flat name without the group; that of the group if there is nothing else."""
        return flat(self).partition("/")[2] or self.group.name


@dataclass(frozen=True)
class Measurement:
    """A value of a quantity, and what it can be read against.

    The value is None if what should have been measured did not come, such as a stage of learning, but has a reference.
    """

    quantity: Quantity
    value: float | None
    reference: Reference = Reference()

    @property
    def flat(self) -> str:
        """Its flat name."""
        return flat(self.quantity)

    def placed(self, at: Mapping[str, Scalar], plain: Iterable[str] = ()) -> "Measurement":
        """The same, taken at these factors as well; they come before its own."""
        own = self.quantity
        twice = set(at) & set(own.at)
        if twice:
            raise UserError(f"{self.flat} already has a factor {min(twice)}: rename one of the two")
        return replace(self, quantity=replace(own, at={**at, **own.at}, plain=(*plain, *own.plain)))

    def evaluated_on(self, name: str) -> "Measurement":
        """The same, measured on an entry of `evaluate_on`."""
        return self.placed({"on": name})


def flat(quantity: Quantity) -> str:
    """The flat name: `<group>/<name>_<factors>/<variants>`, `<group>@<on>/…`.

    Factors are written as in `d64`, `a0.5` or `optimum`; what is true by its name alone.
    """
    group = quantity.group
    said = {factor: value for factor, value in quantity.at.items() if factor not in ("on", *quantity.plain)}
    words = [quantity.name, *(_word(factor, value) for factor, value in said.items() if factor not in group.variants)]
    variants = [_word(factor, value) for factor, value in said.items() if factor in group.variants]
    on = f"@{quantity.on}" if quantity.on else ""
    return "/".join(filter(None, [group.name + on, "_".join(filter(None, words)), *variants]))


def _word(factor: str, value: Scalar) -> str:
    if isinstance(value, bool):
        return factor if value else ""
    if isinstance(value, str):
        return SHORT.get(factor, "") + value
    return SHORT.get(factor, factor) + repr(value).removesuffix(".0")


def plain_scalar(value: Any) -> Scalar:
    """A number of numpy or pandas as Python's own."""
    own: Scalar = value.item() if hasattr(value, "item") else value
    return own


def reference_name(kind: str, name: str) -> str:
    """The flat name of what a metric can be read against: `ideal/recall/W_OV2`."""
    return f"{kind}/{name}"


def is_reference(name: str) -> bool:
    """Is this the flat name of something to read a metric against?"""
    return name.partition("/")[0] in KINDS


def spread_name(name: str) -> str:
    """The flat name of the standard deviation of a metric over seeds, in a summary."""
    return f"{name}/std"


def as_row(measurements: Iterable[Measurement], *, references: bool = True) -> dict[str, float]:
    """Values by flat name, and what each can be read against: a row of metrics.jsonl.

    Refuses two measurements of one name: one of them would be lost.
    """
    row: dict[str, float] = {}
    taken: set[str] = set()
    for measured in measurements:
        name = measured.flat
        if name in taken:
            raise UserError(_twice(name))
        taken.add(name)
        if measured.value is not None:
            row[name] = measured.value
        for kind in KINDS if references else ():
            level = getattr(measured.reference, kind)
            if level is not None:
                row[reference_name(kind, name)] = level
    return row


def check_measured(found: Iterable[object], whose: str) -> None:
    """Refuse what is no measurement, or has a value or a name that cannot be written down; whose: who gave it."""
    taken: set[str] = set()
    for one in found:
        if not isinstance(one, Measurement):
            raise UserError(f"{whose} gave a {type(one).__name__}, expected measurements: Group.measurement makes them")
        name = one.flat
        if len(name) > LONGEST or not name.isprintable():
            raise UserError(f'{whose} gave a metric that cannot be called "{shortened(name)}"')
        if name in taken:
            raise UserError(f"{whose}: {_twice(name)}")
        taken.add(name)
        for kind, level in {"value": one.value, **vars(one.reference)}.items():
            if not isinstance(level, float | int | None):
                what = f"{shortened(str(level))}, a {type(level).__name__}"
                raise UserError(f"{whose} gave {name} the {kind} {what}: expected a number, or None for nothing")


def _twice(name: str) -> str:
    return f"{name} is measured twice: give one of the two a different name or factor"


LONGEST = 200
"""Characters of a flat name."""


def quantity_of(name: str) -> Quantity:
    """What the flat name of a metric tells by itself, such as of one that no run of a sweep has."""
    first, _, rest = name.partition("/")
    name_of_group, _, on = first.partition("@")
    return Quantity(Group(name_of_group, name_of_group), rest, {"on": on} if on else {})


# Quantities as JSON


def to_json(quantities: Mapping[str, Quantity]) -> dict[str, Any]:
    """Groups, and quantities by flat name, as JSON can hold them."""
    groups: list[Group] = list(dict.fromkeys(quantity.group for quantity in quantities.values()))
    default = Group("default", "")

    def told(group: Group) -> dict[str, Any]:
        values = {part.name: getattr(group, part.name) for part in fields(Group)}
        return {name: value for name, value in values.items() if name == "title" or value != getattr(default, name)}

    return {
        "groups": [told(group) for group in groups],
        "metrics": {
            name: [groups.index(quantity.group), quantity.name, dict(quantity.at), list(quantity.plain)]
            for name, quantity in quantities.items()
        },
    }  # fmt: skip


def from_json(content: Any) -> dict[str, Quantity]:
    """The quantities that `to_json` wrote; raises TypeError, KeyError or ValueError for anything else."""
    known, metrics = {part.name for part in fields(Group)}, content["metrics"].items()
    factors = [value for _, (_, _, at, _) in metrics for value in at.values()]
    if not all({*given} <= known for given in content["groups"]) or not all(isinstance(f, Scalar) for f in factors):
        raise TypeError
    groups = [_group_schema().validate_python(given) for given in content["groups"]]
    return {
        str(name): Quantity(groups[group], str(own), dict(at), tuple(map(str, plain)))
        for name, (group, own, at, plain) in metrics
    }


@cache
def _group_schema() -> "TypeAdapter[Group]":
    from pydantic import TypeAdapter

    return TypeAdapter(Group)
