"""What users do wrong in configs and overrides, and what the one line about it must say."""

from dataclasses import dataclass
from pathlib import Path

from toytf.config.shipped import config_folder

QUICKSTART = config_folder() / "quickstart.yaml"


@dataclass(frozen=True)
class Mistake:
    """What a user did wrong, and what the one line about it must say."""

    says: tuple[str, ...]
    overrides: tuple[str, ...] = ()
    content: str | None = None
    """The text of the config file; None: the quickstart."""

    def source(self, folder: Path) -> Path:
        """The config file that is given."""
        if self.content is None:
            return QUICKSTART
        path = folder / "mine.yaml"
        path.write_text(self.content, encoding="utf-8")
        return path


def _override(*overrides: str, says: tuple[str, ...]) -> Mistake:
    return Mistake(says, overrides)


def _file(content: str, *says: str) -> Mistake:
    return Mistake(("mine.yaml", *says), content=content)


MISTAKES = {
    # an unknown key: where, and the nearest
    "key_of_task": _override("task.seq_length=8", says=('"seq_length"', 'in "task"', 'did you mean "seq_len"?')),
    "key_of_attention": _override("model.attention.nheads=2", says=('"model.attention"', 'did you mean "n_heads"?')),
    "key_of_optimizer": _override("train.optimizer.lrr=1", says=('"train.optimizer"', 'did you mean "lr"?')),
    "key_of_logging": _override("logging.projct=x", says=('"logging"', 'did you mean "project"?')),
    "key_at_top": _override(
        "sedes=[1]", says=('"sedes"', 'did you mean "seeds"?', "accepted: device, evaluate_on, experiment")
    ),
    "section_at_top": _override("trian.steps=3", says=('"trian"', 'did you mean "train"?')),
    "key_like_no_other": _override("model.zebra=3", says=('"zebra" in "model"', "accepted: attention, beta")),
    "key_of_a_probe": _override("probes=[{kind: memory_recall, failure: 3}]", says=('"probes.0"', '"failures"')),
    "key_in_a_file": _file("experiment: train\ntask: {kind: bigram, seq: 3}\n", 'unknown key "seq" in "task"'),
    # a wrong value: the key as it is typed, what was given, what is accepted
    "wrong_type": _override("train.steps=many", says=("train.steps = 'many'", "integer")),
    "fraction": _override("train.steps=1.5", says=("train.steps = 1.5", "integer")),
    "nothing": _override("train.steps=null", says=("train.steps = None", "integer")),
    "negative_size": _override("model.d_model=-4", says=("model.d_model = -4", "greater than 0")),
    "zero_batch": _override("train.batch_size=0", says=("train.batch_size = 0", "greater than 0")),
    "not_a_number": _override("train.optimizer.lr=nan", says=("train.optimizer.lr", "finite")),
    "beta_above_one": _override("train.optimizer.betas=[1.5,0.9]", says=("train.optimizer.betas.0 = 1.5",)),
    "momentum_of_adamw": _override("train.optimizer.momentum=0.5", says=('"momentum" in "train.optimizer"', "betas")),
    "unknown_optimizer": _override("train.optimizer.kind=adam", says=('train.optimizer.kind = "adam"', '"adamw"')),
    "one_of_names_or_numbers": _override("model.attention.scale=-1", says=("model.attention.scale = -1", "sqrt_d")),
    "one_of_two_lists": _override("model.position=sinusoid", says=('model.position = "sinusoid"', '"sinusoidal"')),
    "text_for_a_list": _override("logging.tags=a", says=("logging.tags = 'a'",)),
    "number_for_a_section": _override("model=3", says=("model = 3",)),
    # an unknown plug-in
    "unknown_task": _override("task.kind=bigran", says=('task.kind = "bigran"', 'did you mean "bigram"?')),
    "task_of_a_missing_package": _override(
        "task.kind=copy", "train.steps=x", says=('task.kind = "copy"', "of other packages", "(and 1 more mistake")
    ),
    "unknown_probe": _override("probes=[memory_recal]", says=("probes.0", 'did you mean "memory_recall"?')),
    "unknown_experiment": _override("experiment=trian", says=('experiment = "trian"', 'did you mean "train"?')),
    # a file that is no config
    "empty_file": _file("", "the file is empty"),
    "only_comments": _file("# nothing\n", "experiment is missing"),
    "no_task": _file("experiment: train\n", "task is missing"),
    "no_kind": _file("experiment: train\ntask: {seq_len: 3}\n", "task.kind is missing"),
    "list_for_a_mapping": _file("- experiment\n- train\n", "mapping", "got a list"),
    "broken_yaml": _file("experiment: train\ntask: bigram\nseeds: ]\n", "line 3", "not valid YAML"),
    "key_twice": _file("experiment: train\nexperiment: train\n", "line 2", "duplicate key"),
    "tag_that_lies": _file("experiment: train\ntask: bigram\nthreads: !!int y\n", "not valid YAML", "'y'"),
    "no_boolean": _file("experiment: train\ntask: {kind: bigram, no_repeat: !!bool maybe}\n", "not valid YAML"),
    "many_digits": _file(f"experiment: train\ntask: bigram\nthreads: {'9' * 5000}\n", "not valid YAML", "digits"),
    "deep": _file(f"experiment: train\ntask: {'[' * 700 + ']' * 700}\n", "nested more than"),
    "alias_of_itself": _file("experiment: train\ntask: bigram\nseeds: &a [*a]\n", "nested more than"),
    "alias_bomb": _file(
        "a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 10)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        "too large",
    ),
    "bytes": _file("experiment: train\ntask: !!binary aGk=\n", "line 2", "not valid YAML"),
    "long_value": _override(f"device={'x' * 20000}", f"train.steps={'y' * 20000}", says=("train.steps = 'yyy", "…")),
    "long_key": _override(f"{'x' * 20000}=3", says=("unknown key", "…")),
    "control_characters": _override("train.loss=\x1b[31mred\x1b[0m", says=("\\x1b[31mred",)),
    "not_utf8": _override("logging.project=\udc80", says=("\\udc80", "not text in UTF-8")),
    # a number that no tensor could have
    "huge_size": _override(f"model.d_model={10**23}", says=("model.d_model = 1000", "too large: at most 1e+15")),
    "huge_seed": _override(f"seeds=[{10**26}]", says=("seeds.0 = ", "too large")),
    "huge_rate": _override("train.optimizer.lr=1e300", says=("train.optimizer.lr = 1e+300", "at most 1e+38")),
    "huge_step": _override(f"model.unfreeze={{{10**30}: [embed.W_E]}}", says=("model.unfreeze.1000", "too large")),
    "many_threads": _override(
        "threads=1000000", says=("threads = 1000000", "give auto, or a whole number from 1 to 1024")
    ),
    # a base that is none
    "missing_base": Mistake(("nowhere.yaml",), content="base: nowhere.yaml\n"),
    "circle": _file("base: mine.yaml\n", "circle"),
    "number_for_a_base": _file("base: 3\n", "base"),
    "interpolated_base": Mistake(("${oc.env:HOME}: no such config",), content="base: ${oc.env:HOME}\n"),
    "long_base": Mistake(("cannot be read", "too long"), content=f"base: {'x' * 300}.yaml\n"),
    "mapping_over_a_list": _file(f"base: {QUICKSTART}\nprobes: {{a: 1}}\n", "probes"),
    # an override that is none
    "no_equals_sign": _override("train.steps", says=("'train.steps'", "expected key=value")),
    "no_key": _override("=3", says=("'=3'", "expected key=value")),
    "into_a_scalar": _override("train.steps.x=3", says=("train.steps",)),
    "past_the_end_of_a_list": _override("seeds.7=5", says=("seeds.7=5",)),
    "name_for_an_index": _override("seeds.x=5", says=("seeds.x=5",)),
    "broken_value": _override("seeds=[1", says=("'seeds=[1'",)),
    "interpolated_value": _override("model.d_model=${nowhere}", says=("model.d_model = '${nowhere}'", "integer")),
    # parts that do not fit each other
    "no_such_role": _override("train.loss=in_contxt", says=('train.loss = "in_contxt"', 'did you mean "in_context"?')),
    "seed_twice": _override("seeds=[0,1,0]", says=("seeds", "0 is listed twice")),
    "probe_twice": _override("probes=[attention,attention]", says=("probes", "attention is listed twice")),
    "heads_do_not_fit": _override("model.attention.n_heads=3", says=("d_model = 128", "n_heads = 3", "d_head")),
    "no_such_layer": _override(
        "model.feed_forward.layers=[2]", says=("feed_forward.layers", "layer 2", "n_layers = 2")
    ),
    "beta_without_ideal": _override("model.beta={W_KQ1: 2}", says=("beta", "init: ideal")),
    "offset_without_fixed": _override(
        "task.triggers=random", "task.trigger_offset=2", says=("trigger_offset", "triggers: fixed")
    ),
    "too_many_triggers": _override("task.n_triggers=70", says=("n_triggers", "70", "n_tokens = 65")),
    "latents_do_not_fit": _override("task.show_latents=true", "task.seq_len=4", says=("seq_len", "at least 7")),
    "noise_of_1": _override("task.noise.probability=1", says=("task.noise.probability = 1", "less than 1")),
    "noise_without_probability": _override("task.noise.token=x", says=("task.noise.probability is missing",)),
    "probe_of_noise_without_it": _override("probes=[noise]", says=('probe "noise"', "task.noise.probability = 0.5")),
    # a test: the task with changes
    "key_of_a_test": _override(
        "evaluate_on={short: {seq_length: 8}}",
        says=('evaluate_on.short: unknown key "seq_length": did you mean "seq_len"?',),
    ),
    "value_of_a_test": _override(
        "evaluate_on={short: {seq_len: 1}}", says=("evaluate_on.short: seq_len = 1", "greater than")
    ),
    "kind_of_a_test": _override(
        "evaluate_on={other: {kind: copy}}", says=('evaluate_on.other: kind = "copy"', "bigram")
    ),
    "name_of_a_test": _override(
        "evaluate_on={Not-A-Name: {}}", says=('evaluate_on: "Not-A-Name"', "lowercase letters, digits and _")
    ),
    "list_for_a_test": _override("evaluate_on={short: [8]}", says=("evaluate_on.short: should be a mapping",)),
    "list_for_tests": _override("evaluate_on=[short]", says=("evaluate_on: should be a mapping",)),
    "probe_that_a_test_does_not_fit": _override(
        "task.noise.probability=0.5",
        "probes=[noise]",
        "evaluate_on={clean: {noise: null}}",
        says=("evaluate_on.clean", 'probe "noise" needs a task with noise'),
    ),
    "corpus_of_nobody": _override("task.corpus=~nobody_of_this_name/a.txt", says=("task.corpus", "cannot be read")),
    "long_corpus": _override(f"task.corpus={'x' * 300}", says=("task.corpus", "too long")),
    "no_such_corpus": _override("task.corpus=nowhere.txt", says=("task.corpus", "nowhere.txt", "shakespeare")),
}
