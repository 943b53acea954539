"""`dymem`: what the commands are called and how they explain themselves; the work is in the file of each command.

Exit codes, the same everywhere: 0 = done (and everything fitted), 1 = done, but something did not fit or is missing,
2 = bad input, said in one sentence, 3 = a broken invariant of dymem's own, to be reported.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from dymem import __version__
from dymem.cli import compare, compare_gpu, doctor, plot, replay, run, stress
from dymem.cli.console import one_sentence
from dymem.compare.capped import parse_caps
from dymem.replaying import LAG_MS
from dymem.rivals import ALLOCATORS

# Options that several commands have, said in one way.
Json = Annotated[Optional[Path], typer.Option(metavar="FILE", show_default=False, help="Write every figure there.")]
Lag = Annotated[float, typer.Option(metavar="MS", help="In replays, when work on one stream counts as done for another: so "
                                    "long after the trace says that the free completed, since a snapshot does not tell.")]
Limit = Annotated[Optional[str], typer.Option(metavar="BYTES|RATIOx", show_default=False, help="What dymem's pool may hold "
                  "in a replay: 20GiB, 512MiB, bytes, or 1.02x = times the trace's own occupied peak. None unless given here "
                  "or in DYMEM_CONF.")]
Markdown = Annotated[bool, typer.Option("--markdown", help="The tables as Markdown.")]
Traces = Annotated[list[Path], typer.Argument(metavar="TRACE…", show_default=False, help="PyTorch memory snapshots "
                   "(.pickle, also .xz or .gz) or dymem's own traces.")]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="A drop-in CUDA memory manager for PyTorch: the same training, less GPU memory.\n\n"
    "[bold]dymem run train.py[/bold] trains under it, [bold]dymem compare[/bold] shows what it saves, "
    "[bold]dymem replay snapshot.pickle[/bold] asks whether a run of yours would have fitted. "
    "Only training needs a GPU: dymem run, and dymem compare of a script of yours.",
    epilog="In a script: import dymem; dymem.install() before the first use of CUDA.",
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"dymem {__version__}")
        raise typer.Exit()


@app.callback()
def _main(version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True,
                                                help="Show the version.")] = False) -> None:
    pass


@app.command("replay", epilog="Exit code 0: all fitted; 1: one did not; 2: bad input; 3: an audit failed, please report "
             "it.  Record a snapshot with "
             "torch.cuda.memory._record_memory_history(max_entries=10**7), then "
             "torch.cuda.memory._dump_snapshot('run.pickle').")
@one_sentence
def _replay(
    traces: Traces,
    limit: Limit = None,
    lag: Lag = LAG_MS,
    json: Json = None,
    alias: Annotated[Optional[str], typer.Option(metavar="on|off", show_default=False, help="Map idle granules a "
                     "second time (on), or give them back and map them again (off).")] = None,
    wait: Annotated[Optional[str], typer.Option(metavar="on|off", show_default=False, help="Copy streams wait for memory "
                    "that compute freed a while ago (on), or the pool grows (off).")] = None,
    backing: Annotated[Optional[str], typer.Option(metavar="auto|vmm|contiguous", show_default=False,
                       help="Granules, or one slab.")] = None,
    grow_ratio: Annotated[Optional[float], typer.Option("--grow-ratio", metavar="R", show_default=False,
                          help="Grow to (1 + R) x the peak of occupied bytes before stitching.")] = None,
    grow_slack: Annotated[Optional[str], typer.Option("--grow-slack", metavar="BYTES", show_default=False,
                          help="Bytes to grow beyond that.")] = None,
    mobility: Annotated[str, typer.Option(metavar="recorded|hindsight", help="Classes of blocks as the trace has them "
                        "(snapshots have none), or what a perfect rule would have said of each.")] = "recorded",
    placement: Annotated[str, typer.Option(metavar="best_fit|two_ends|by_size|grouped", help="How classes share memory: not "
                         "at all; each with an end of its own (the paper's); small blocks at one end, others at the other; "
                         "what is short-lived at the far end, or in what is free elsewhere.")] = "grouped",
    audit: Annotated[int, typer.Option(metavar="N", help="Recount the whole pool after every N events; "
                     "0 = at the end only.")] = 0,
) -> None:
    """Would my run have fitted? Replays recorded allocations through dymem's pool on an emulated device; needs no GPU.

    What the options leave open is as DYMEM_CONF says, but for its mobility, which is for programs that run. --json has,
    beside the table's figures, unusable_free: of what was free when reserved came to its peak, the share that a request of
    2^j bytes could not use ({"2^21": 0.03, ...}).
    """
    given = {"alias": alias, "wait": wait, "backing": backing, "grow_ratio": grow_ratio, "grow_slack": grow_slack}
    raise typer.Exit(replay.main(traces, limit=limit, lag_ms=lag, json_file=json, audit_every=audit, mobility=mobility,
                                 placement=placement, config={key: value for key, value in given.items() if value is not None}))


@app.command("compare", context_settings={"allow_interspersed_args": False},
             epilog="With a GPU the bundled workloads are trained, or your script: dymem compare train.py ARGS…; without "
             "one, the bundled recordings are replayed beside what PyTorch reserved for them on the card. Exit code 0: "
             "all ran; 1: something failed under some allocator; 2: bad input.")
@one_sentence
def _compare(
    script: Annotated[Optional[list[str]], typer.Argument(metavar="[SCRIPT.py ARGS…]", show_default=False,
                      help="A script of yours and what it is given; steps are those of its optimizer.")] = None,
    json: Json = None,
    html: Annotated[Optional[Path], typer.Option(metavar="FILE", show_default=False,
                    help="Write one page there, tables and pictures in it.")] = None,
    pictures: Annotated[Optional[Path], typer.Option(metavar="FOLDER", show_default=False,
                        help="Write the pictures there: who holds which addresses over time; steps under caps.")] = None,
    only: Annotated[Optional[list[str]], typer.Option(metavar="NAME", show_default=False,
                    help="Only this recording or workload (may be repeated).")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every bundled workload that can run here, not the short choice; a GPU "
                     "and a checkout, as for --cap.")] = False,
    allocators: Annotated[Optional[str], typer.Option(metavar="A,B,…", show_default=False,
                          help=f"Of {', '.join(ALLOCATORS)}; all unless given.")] = None,
    cap: Annotated[Optional[str], typer.Option(metavar="R,R,…", show_default=False, help="Train under hard caps: multiples "
                   "of PyTorch's live peak, for example 1.00x,1.02x,1.05x. On a GPU, of your script, or of the bundled "
                   "workloads, which are in bench/ of a checkout.")] = None,
    repeats: Annotated[Optional[int], typer.Option(metavar="N", min=1, max=100, show_default=False, help="Processes of each "
                       "allocator, interleaved. \\[default: 3; under caps 1]")] = None,
    iterations: Annotated[Optional[int], typer.Option(metavar="N", min=2, show_default=False, help="Steps of a workload. "
                          f"\\[default: {compare_gpu.ITERATIONS}]")] = None,
    shapes: Annotated[Optional[int], typer.Option(metavar="N", min=0, show_default=False, help="Shapes of a workload whose "
                      "steps vary; steps are timed from the second of each on. 0: every step its own. "
                      f"\\[default: {compare_gpu.SHAPES}]")] = None,
    seconds: Annotated[Optional[float], typer.Option(metavar="S", min=1, show_default=False, help="Time for all training; what "
                       f"does not fit is left out. \\[default: {compare_gpu.SECONDS:g}]")] = None,
    recordings: Annotated[bool, typer.Option("--recordings", help="Replay the recordings even where a GPU is.")] = False,
    lag: Lag = LAG_MS,
    markdown: Markdown = False,
) -> None:
    """The same work under PyTorch's allocators, RMM's and dymem, side by side; without a GPU, recordings of it."""
    asked = compare_gpu.Asked(json_file=json, html_file=html, folder=pictures, only=only, every=every,
                              allocators=compare_gpu.chosen_allocators(allocators), repeats=repeats,
                              iterations=iterations, shapes=shapes, seconds=seconds,
                              caps=None if cap is None else parse_caps(cap), markdown=markdown)
    raise typer.Exit(compare.main(asked, program=script or [], recordings=recordings, lag_ms=lag))


@app.command("stress", epilog="Each pattern is run under smaller and smaller limits until it no longer fits: with a GPU by "
             "every allocator, each in a process of its own; without one by dymem's pool on an emulated device. "
             "Exit code 0: every pattern survives; 1: one does not, even under four times its occupied peak, or time ran "
             "out; 2: bad input; 3: an audit failed, please report it.")
@one_sentence
def _stress(
    patterns: Annotated[Optional[list[str]], typer.Argument(metavar="PATTERN…", show_default=False,
                        help="Names from --list; all unless given.")] = None,
    driver: Annotated[Optional[str], typer.Option(metavar="cuda|emulated", show_default=False,
                      help="The machine; cuda where a GPU is, unless given.")] = None,
    scale: Annotated[str, typer.Option(metavar="BYTES", help="What a pattern holds at its peak, about.")] = stress.SCALE,
    seed: Annotated[int, typer.Option(metavar="N", help="Of the random sizes and lifetimes.")] = 0,
    precision: Annotated[float, typer.Option(metavar="R", help="How exactly the limit is found, as a share of the "
                         "occupied peak.")] = stress.PRECISION,
    setting: Annotated[Optional[list[str]], typer.Option(metavar="NAME", show_default=False,
                       help="Emulated: vmm, alias=off or contiguous (may be repeated); all unless given.")] = None,
    allocator: Annotated[Optional[list[str]], typer.Option(metavar="NAME", show_default=False,
                         help="On a GPU: native, expandable, async, rmm_pool, rmm_async, dymem, dymem_remap or "
                         "dymem_contiguous (may be repeated); all unless given.")] = None,
    budget_seconds: Annotated[Optional[float], typer.Option("--budget-seconds", metavar="S", show_default=False,
                              help="On a GPU: about how long it may take; what is not measured by then stays empty. "
                              f"\\[default: {stress.BUDGET_SECONDS:g}]")] = None,
    json: Json = None,
    picture: Annotated[Optional[Path], typer.Option(metavar="FILE", show_default=False,
                       help="Draw the table there, as .png, .svg or .pdf.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Name the patterns and what they do, "
                         "or those given.")] = False,
    markdown: Markdown = False,
) -> None:
    """Fragmentation stress tests: the smallest memory in which each pattern of sizes and lifetimes survives."""
    raise typer.Exit(stress.main(patterns, driver=driver, scale=scale, seed=seed, precision=precision, settings=setting,
                                 allocators=allocator, budget_seconds=budget_seconds, json_file=json, picture=picture,
                                 listed=listed, markdown=markdown))


@app.command("plot", epilog="dymem plot run.pickle → run.png: address over time as PyTorch's allocator had it.\n\n"
             "dymem plot run.pickle --allocators recorded,dymem → the same beside dymem's pool.\n\n"
             "dymem plot run.pickle --from 3 --to 4 --colour size --out steps.svg → two iterations, by size.\n\n"
             "dymem plot a.pickle b.pickle --out both.html → every picture and table on one page.\n\n"
             "In address over time, grey is memory that the allocator holds for no block. Exit code 0: drawn; 1: drawn up "
             "to where --limit was not enough; 2: bad input.")
@one_sentence
def _plot(
    traces: Traces,
    out: Annotated[Optional[Path], typer.Option(metavar="FILE", show_default=False, help="A .png or .svg (one picture), or "
                   "an .html page (all of them, and tables). NAME.png in this folder unless given.")] = None,
    picture: Annotated[Optional[list[str]], typer.Option(metavar="NAME", show_default=False, help="address, bytes, "
                       "histogram or peak; address unless given, and all on a page, where it may be repeated.")] = None,
    allocators: Annotated[Optional[str], typer.Option(metavar="NAME,…", show_default=False, help="Panels: recorded, and "
                          "the replays dymem, dymem_remap (alias=off) and dymem_contiguous.")] = None,
    replay_: Annotated[bool, typer.Option("--replay", help="Draw where dymem's pool would put it: short for --allocators "
                       "dymem.")] = False,
    colour: Annotated[str, typer.Option("--colour", "--color", metavar="WHAT", help="Blocks by phase, mobility, size or "
                      "stream.")] = "phase",
    x: Annotated[str, typer.Option("--x", metavar="event|time|auto", help="The time axis: events are even steps, time is "
                 "the clock; auto = events where all panels show the same trace.")] = "auto",
    first: Annotated[Optional[int], typer.Option("--from", metavar="N", min=0, show_default=False,
                     help="First iteration shown.")] = None,
    last: Annotated[Optional[int], typer.Option("--to", metavar="N", min=0, show_default=False,
                    help="Last iteration shown.")] = None,
    limit: Limit = None,
    lag: Lag = LAG_MS,
    title: Annotated[Optional[str], typer.Option(metavar="TEXT", show_default=False, help="Above the picture.")] = None,
) -> None:
    """See fragmentation at a glance: who lay where in device memory, when, and what was held for nothing."""
    raise typer.Exit(plot.main(traces, out_file=out, allocators=allocators, replay=replay_, pictures=picture,
                               colour=colour, x=x, first=first, last=last, limit=limit, lag_ms=lag, title=title))


app.command("run", context_settings={"allow_interspersed_args": False, "ignore_unknown_options": True},
            epilog="Child processes inherit it: dymem run -m torch.distributed.run --nproc-per-node 8 train.py")(
    one_sentence(run.command()))


@app.command("doctor", epilog="Exit code 0: dymem can serve PyTorch here; 1: something is missing, and the command that "
             "mends it; 2: bad input.")
@one_sentence
def _doctor(
    json: Annotated[Optional[Path], typer.Option(metavar="FILE", show_default=False,
                    help="Write every finding and figure there.")] = None,
    calibrate: Annotated[bool, typer.Option("--calibrate", help="Measure what driver calls cost on each kind of card here "
                         "(seconds, 256 MiB), and keep it for policies.")] = False,
) -> None:
    """What this machine has, whether dymem can work here, and what to do if not."""
    raise typer.Exit(doctor.main(json, calibrate))
