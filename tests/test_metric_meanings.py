"""Every metric has a sentence for readers: what it is, and what is good. Whoever declares a group says it.

That the metrics of a run have one is tested with their names (test_metric_names); here, that all sentences have the
same form, and that each belongs to a metric that there is.
"""

from collections.abc import Iterable

import pytest

from docs import generate
from toytf.measurement import Group

LONGEST = 160

ELSEWHERE = {
    "recall": ("*_weighted/head*",),  # models with several heads
    "ownership": ("key_cosine*/head*", "key_cosine*"),  # heads that own tokens, as after a longer training
    "value_alignment": ("owned*/head*", "owned*"),  # the same
    "token_exponent": ("*/error",),  # a fit to more than two numbers of tokens
    "signal": ("W_OV2_remapped*",),  # bigram/three_steps_residual
    "break": ("*_half", "*_hebbian", "*_least_squares"),  # limits/…
}
"""Patterns that no metric of the small runs and of the claims has, and what would have one."""

DECLARED = [(one.module, one.group, [*one.names]) for one in generate.declared()]
SAID = [*((module, group) for module, group, _ in DECLARED), *generate.varied()]


def _used(group: Group, names: Iterable[str]) -> set[str]:
    """The patterns whose sentences metrics of these flat names have."""
    labels = [name.partition("/")[2] for name in names]
    sentences = {group.meaning(label) for label in labels}
    return {pattern for pattern, says in group.meanings if says in sentences}


@pytest.mark.parametrize(("module", "group"), SAID, ids=lambda part: getattr(part, "name", part))
def test_what_a_metric_means_is_one_short_sentence(module: str, group: Group) -> None:
    for _, says in group.meanings or (("*", group.says),):
        assert says[0].isupper() and says.endswith(".") and ". " not in says and len(says) <= LONGEST, says
    sentences = {says for _, says in group.meanings}
    assert len(dict(group.meanings)) == len(sentences) == len(group.meanings)


def test_every_sentence_is_about_a_metric_that_there_is() -> None:
    dead = {}
    for _, group, names in DECLARED:
        unused = [pattern for pattern, _ in group.meanings if pattern not in _used(group, names)]
        if names and unused:
            dead[group.name] = tuple(unused)
    assert dead == ELSEWHERE


def test_what_tasks_say_of_roles_and_heuristics_is_about_metrics_that_there_are() -> None:
    names = [name for _, _, found in DECLARED for name in found]
    for module, group in generate.varied():
        own = [name for name in names if name.partition("/")[0] == group.name]
        assert _used(group, own) == {pattern for pattern, _ in group.meanings}, module
