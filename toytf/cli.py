"""The command line. Every command imports what it needs when it runs, so that `toytf --help` stays fast."""

import io
import os
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from toytf.errors import ToytfError, UserError, plugin_of, printable, reason, shortened
from toytf.words import say

if TYPE_CHECKING:
    from toytf.engines import EngineOptions

LONGEST = 2000
"""Characters of an error."""

Engine = Annotated[str, typer.Option(help="Where jobs run: process (this machine) or ray (also a cluster).")]
Address = Annotated[str | None, typer.Option(help="With ray: the cluster [default: one on this machine].")]

app = typer.Typer(
    help="Train toy transformers on synthetic tasks and compare what they store with ideal associative memories.",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.command("run")
def run_command(
    config: Annotated[
        Path, typer.Argument(help="A config that ships, such as quickstart (see `toytf list configs`), or a YAML file.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the config, such as train.steps=500."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run directory [default: runs/<config name>-<hash>].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a run that was stopped.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Run even if there seems to be too little memory.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Print every metric, not only the main ones.")] = False,
    jobs: Annotated[int, typer.Option(help="Cases of a study that are measured at a time.")] = 1,
    engine: Engine = "process",
    address: Address = None,
) -> None:
    """Run an experiment; prints its main results, and the run directory last."""
    from toytf.config.plugins import load_config

    options = _engine(engine, jobs, address)
    if not options.in_this_process and load_config(config, overrides or []).trains_model:
        raise UserError(
            "--jobs and --engine are for studies: a training runs all its seeds as one; for several, `toytf sweep`"
        )
    from toytf.experiments.launch import launch
    from toytf.report.terminal import print_end

    experiment, run = launch(config, overrides or [], out=out, resume=resume, force=force, engine=options)
    with run.read_once():
        print_end(run, experiment.story(run), verbose=verbose)


@app.command("list")
def list_command(
    what: Annotated[str, typer.Argument(metavar="[tasks|probes|experiments|configs|claims]")] = "",
    schema: Annotated[
        bool, typer.Option("--schema", help="With configs: print the JSON schema of a config, for editors.")
    ] = False,
) -> None:
    """List the tasks, probes, experiments, configs and claims that are installed."""
    from toytf.catalogue import config_schema, print_catalogue

    if schema:
        if what != "configs":
            raise UserError("--schema is an option of configs: toytf list configs --schema")
        typer.echo(config_schema())
    else:
        print_catalogue(what)


@app.command("inspect")
def inspect_command(
    runs: Annotated[list[Path], typer.Argument(help="Run directories.")],
    html: Annotated[
        Path | None,
        typer.Option(
            help="Where to write the page [default: report.html; for several runs, compare.html next to the first]."
        ),
    ] = None,
    serve: Annotated[
        bool, typer.Option("--serve", help="Open the page in a browser, served from this machine until Ctrl-C.")
    ] = False,
) -> None:
    """Write an HTML page about one or several runs: results, curves, probes and attention, next to the ideal."""
    from toytf.experiments.inspection import inspect_runs

    inspect_runs(runs, html, serve=serve)


@app.command("probe")
def probe_command(
    run: Annotated[Path, typer.Argument(help="A run directory.")],
    probe: Annotated[str | None, typer.Option(help="One probe [default: those of the run's config].")] = None,
    step: Annotated[int | None, typer.Option(help="A checkpoint [default: the last].")] = None,
    seed: Annotated[int | None, typer.Option(help="A seed [default: the first].")] = None,
    on: Annotated[
        str | None, typer.Option(help="An entry of evaluate_on in the run's config [default: its task].")
    ] = None,
) -> None:
    """Run probes on any checkpoint of a run."""
    from toytf.experiments.inspection import print_probes

    print_probes(run, probe, step=step, seed=seed, on=on)


@app.command("sweep")
def sweep_command(
    config: Annotated[
        Path, typer.Argument(help="A config that ships, such as quickstart or sweeps/tiny, or a YAML file.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUES]...",
            help="What to vary, such as model.d_model=[64,128], train.optimizer.lr=log(1e-4,1e-1,7) or seeds=3; "
            "KEY=VALUE changes the config of all runs.",
        ),
    ] = None,
    engine: Engine = "process",
    jobs: Annotated[int | None, typer.Option(help="Runs at a time [default: the number of cores].")] = None,
    out: Annotated[Path | None, typer.Option(help="Its directory [default: sweeps/<config name>-<hash>].")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a sweep that was stopped.")] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Continue it, and try again what failed.")] = False,
    address: Address = None,
    gpus: Annotated[float, typer.Option(help="With ray: the GPUs of a run, or the fraction of one.")] = 0.0,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print which runs there would be, and run nothing.")
    ] = False,
) -> None:
    """Run an experiment at many points, with error bars over seeds; prints the best points, and the directory last."""
    if dry_run:
        from toytf.sweeps.plan import plan_sweep
        from toytf.sweeps.terminal import print_plan

        print_plan(plan_sweep(config, overrides or []))
        return
    from toytf.sweeps.sweep import sweep
    from toytf.sweeps.terminal import check_failures, print_sweep

    done = sweep(
        config, overrides or [], out=out, resume=resume, retry=retry,
        engine=engine, jobs=jobs, address=address, gpus=gpus,
    )  # fmt: skip
    print_sweep(done)
    check_failures(done)


@app.command("claims")
def claims_command(
    names: Annotated[
        list[str] | None, typer.Argument(help="Claims (bigram/ideal), areas (bigram) or files [default: all].")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A smaller version of each claim: fewer seeds, fewer and shorter runs.")
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(help="Where to put their runs and claims.json [default: runs/claims, or runs/claims-quick]."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Runs at a time.")] = 1,
    engine: Engine = "process",
    address: Address = None,
) -> None:
    """Check claims from the literature: predicted, measured ± spread, verdict."""
    from toytf.claims import check_claims
    from toytf.report.verdicts import print_verdicts

    out = out or Path("runs/claims-quick" if quick else "runs/claims")
    outcomes = check_claims(names or [], out, _engine(engine, jobs, address), quick=quick)
    print_verdicts(outcomes)
    typer.echo(printable(out / "claims.json"))
    if any(outcome.verdict != "confirmed" for outcome in outcomes):
        raise typer.Exit(1)


@app.command("bench")
def bench_command(
    names: Annotated[list[str] | None, typer.Argument(help="Benchmarks [default: all].")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the ratios to this file.")] = None,
) -> None:
    """Measure speed, as ratios of two implementations timed side by side."""
    from toytf.bench import run_benchmarks

    run_benchmarks(names or [], json)


def main() -> None:
    """Run a command; a foreseen end is one line on stderr and an exit code, never a traceback."""
    _prepare_streams()
    try:
        Path.cwd()
    except FileNotFoundError:
        _end("the working directory was deleted: change to another folder", 2)
    try:
        code = app(sys.argv[1:] or ["--help"], standalone_mode=False)
    except ToytfError as error:
        _end(str(error), error.exit_code)
    except BrokenPipeError:  # whoever reads our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except OSError as error:
        where = "" if error.filename is None else f"{error.filename}: "
        _end(f"{where}{reason(error)}", 1)
    except MemoryError:
        _end("not enough memory", 1)
    except KeyboardInterrupt:
        _end("stopped immediately; everything saved so far is kept", 130)
    except (Exception, SystemExit) as error:  # no command of ours calls sys.exit
        usage = getattr(error, "format_message", None)  # an unknown option, a missing argument
        if usage is not None:
            _end(f"{usage()} (see toytf --help)", 2)
        if not plugin_of(error):
            raise
        say(traceback.format_exc().rstrip())  # for its author
        _end(f"{plugin_of(error)}: {type(error).__name__}: {reason(error)}", 1)
    else:
        if code == 130:  # what typer makes of Ctrl-C
            _end("stopped immediately; everything saved so far is kept", code)
        sys.exit(code)


def _prepare_streams() -> None:
    for number in range(3):  # one that is closed: its number must not go to a file of the run
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a terminal may not know every letter of a name


def _engine(engine: str, jobs: int, address: str | None) -> "EngineOptions":
    from toytf.engines import EngineOptions

    return EngineOptions(cast(Any, engine), jobs, address=address)


def _end(message: str, exit_code: int) -> None:
    say(f"toytf: {shortened(message, LONGEST)}")
    sys.exit(exit_code)
