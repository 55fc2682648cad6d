"""Commands of the studies, ``python -m studies NAME RUN``.

Commands import inside their functions so that ``--help`` is fast.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus.cloud_train.commands.flags import AsDocument, MadeRun
from refocus.cloud_train.commands.parsing import seeds_of, typed_command
from refocus.cloud_train.commands.train import Changes, Show
from refocus.edge.commands import print_json, words
from studies.commands.parsing import integers, seeds_of_run, shares, with_flags

if TYPE_CHECKING:
    from refocus.cloud_train.evaluate.page import StudyPage
    from refocus.cloud_train.runs.iciia import Run
    from studies.federated.programme import Queue

STUDIES = "python -m studies"
study_app = typer.Typer(
    name="studies",
    help="Repeat the papers' studies on held-out photos, and compare alternatives. Each goes on where it stopped.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

SeedsOfRun = Annotated[
    str,
    typer.Option(
        help="comma-separated random seeds; what a seed lacks is trained; default: those that the run has",
        show_default=False,
    ),
]
Folder = Annotated[Path, typer.Argument(help="folder of the study, new or one to go on with")]
Layers = Annotated[int, typer.Option(min=0, help="number of layers N; 0: 1 for glyphs, else 3")]
Heads = Annotated[int, typer.Option(min=1, help="number of attention heads H")]
Partitions = Annotated[str, typer.Option(help="numbers of partitions P, comma-separated")]
Classifier = Annotated[
    str, typer.Option(help="of each block: own, shared or residual; residual starts from the plain classifier")
]
Targets = Annotated[int, typer.Option(min=1, help="maximum number of target photos per person")]
Rates = Annotated[str, typer.Option(help="SGD learning rate; of several, comma-separated, each block uses its best")]
Momentum = Annotated[float, typer.Option(min=0, max=0.9999, help="SGD momentum")]
WindowsPerStep = Annotated[int, typer.Option(min=1, help="batch size, in history windows")]
Epochs = Annotated[int, typer.Option(min=1, help="maximum number of epochs")]
Data = Annotated[str, typer.Option(help="folder of photo sets and weights")]
Programme = Annotated[Path | None, typer.Option(help="programme definition, TOML")]
Documents = Annotated[Path, typer.Option(help="output folder for the documents of finished jobs")]
To = Annotated[str, typer.Option(help="comma-separated targets")]
BOTH_RUNTIMES = "onnx:fp32,executorch:fp32"
ICIIA, TAPER, FEDERATED, PHOTO_SETS = (
    "Of a run of refocus train iciia",
    "Of a run of refocus train taper",
    "Of federated training",
    "Of photo sets, without a run",
)
FEDERATED_DOCUMENTS = Path("docs/results/federated")


# ---- heads of ICIIA, each point trained on a run's features


def _blocks(name: str, about: str) -> None:
    """Add a study that trains blocks and has no additional flags."""

    def command(
        run: MadeRun,
        seeds: SeedsOfRun = "",
        layers: Layers = 0,
        heads: Heads = 4,
        classifier: Classifier = "own",
        targets: Targets = 8,
        learning_rate: Rates = "0.1",
        momentum: Momentum = 0.9,
        windows_per_step: WindowsPerStep = 16,
        epochs: Epochs = 4,
        as_json: AsDocument = False,
    ) -> None:
        _train_points(run, name, dict(locals()), [layers], heads)

    study_app.command(name, help=about, rich_help_panel=ICIIA)(command)


@study_app.command(rich_help_panel=ICIIA)
def heterogeneity(
    run: MadeRun,
    ratios: Annotated[str, typer.Option(help="heterogeneity levels, comma-separated")] = "0,0.25,0.5,0.75,1",
    seeds: SeedsOfRun = "",
    layers: Layers = 0,
    heads: Heads = 4,
    classifier: Classifier = "own",
    targets: Targets = 8,
    learning_rate: Rates = "0.1",
    momentum: Momentum = 0.9,
    windows_per_step: WindowsPerStep = 16,
    epochs: Epochs = 4,
    as_json: AsDocument = False,
) -> None:
    """Compare levels of cross-client heterogeneity (ICIIA Fig. 6).

    Blocks and labelled baselines are trained and evaluated at each level.
    """
    _train_points(run, "heterogeneity", dict(locals()), [layers], heads, ratios=shares(ratios, "--ratios"))


@study_app.command(rich_help_panel=ICIIA)
def partitions(
    run: MadeRun,
    partitions: Partitions = "1,16,256",
    layers: Annotated[
        str,
        typer.Option(
            help="numbers of layers N, comma-separated, the first with all partitions; default: 1 for glyphs, else 3"
        ),
    ] = "",
    seeds: SeedsOfRun = "",
    heads: Heads = 4,
    classifier: Classifier = "own",
    targets: Targets = 8,
    learning_rate: Rates = "0.1",
    momentum: Momentum = 0.9,
    windows_per_step: WindowsPerStep = 16,
    epochs: Epochs = 4,
    as_json: AsDocument = False,
) -> None:
    """Compare numbers of partitions P and of layers N (ICIIA Figs. 7, 8).

    Partitions are compared with and without shuffling.
    """
    depths, parts = integers(layers, "--layers") if layers else [0], integers(partitions, "--partitions")
    _train_points(run, "partitions", dict(locals()), depths, heads, partitions=parts)


@study_app.command(rich_help_panel=ICIIA)
def heads(
    run: MadeRun,
    heads: Annotated[str, typer.Option(help="numbers of attention heads H, comma-separated")] = "1,2,4,8",
    seeds: SeedsOfRun = "",
    layers: Layers = 0,
    classifier: Classifier = "own",
    targets: Targets = 8,
    learning_rate: Rates = "0.1",
    momentum: Momentum = 0.9,
    windows_per_step: WindowsPerStep = 16,
    epochs: Epochs = 4,
    as_json: AsDocument = False,
) -> None:
    """Compare numbers of attention heads H (ICIIA appendix A)."""
    numbers = integers(heads, "--heads")
    _train_points(run, "heads", dict(locals()), [layers], numbers[0], heads=numbers)


_blocks("ablations", "ICIIA Table 4: without attention, projection, shuffling.")
_blocks("shuffling", "ICIIA Table 4, shuffling alone: the block with and without it, each at its best rate.")
_blocks("baselines", "ICIIA Table 3: fine-tuning and prompt tuning on labelled photos, class shares, ICIIA-B, ICIIA-T.")
_blocks("gates", "Gates, for never being worse than the photo alone.")
_blocks("streaming", "Causal attention and a shared classifier against full attention, all gated.")


def _train_points(
    run: Path, name: str, flags: Mapping[str, Any], layers: list[int], heads_of_block: int, **axes: Any
) -> None:
    """Train and evaluate the points of a study, and write its document.

    Args:
        run: folder of the run.
        name: name of the study.
        flags: values of the command's flags.
        layers: numbers of layers N, the one of the study's own block first.
        heads_of_block: number of heads H of blocks, unless the study varies it.
        axes: values that the study varies, fields of :class:`studies.iciia.Axes`.
    """
    from refocus.cloud_train.methods.iciia.block import IciiaConfig, tiny_partitions
    from refocus.cloud_train.methods.iciia.train import IciiaRecipe
    from studies.iciia import Axes, run_study

    seeds, opened = seeds_of_run(flags["seeds"], run), _of_one_label(run, name)
    rates = shares(flags["learning_rate"], "--learning-rate")
    width, kind = opened.backbone().width, flags["classifier"]
    block = IciiaConfig(layers=layers[0], partitions=tiny_partitions(width), heads=heads_of_block, classifier=kind)
    iciia = block.on(width, opened.config.data.source == "glyphs")
    tried = Axes(layers=layers, rates=rates if len(rates) > 1 else (), **axes)
    recipe = with_flags(IciiaRecipe, flags, learning_rate=rates[0])
    found = run_study(opened, name, iciia, recipe, seeds, typed(run), flags["targets"], tried)
    write_study(run, name, found, flags["as_json"])


def _of_one_label(run: Path, name: str) -> Run:
    """Open a run of ``refocus train iciia`` with one label per photo.

    Raises:
        DataError: its photos have several labels.
    """
    from refocus.cloud_train.errors import DataError
    from refocus.cloud_train.runs.iciia import Run

    opened = Run(run)
    if opened.table.several:
        raise DataError(
            f"{STUDIES} {name} needs one label of each photo; these photos have several (data.labels = several)"
        )
    return opened


# ---- heads of ICIIA as they were trained


@study_app.command(rich_help_panel=ICIIA)
def attention(run: MadeRun, seeds: SeedsOfRun = "", targets: Targets = 8, as_json: AsDocument = False) -> None:
    """Measure the attention on photos of the target's class (ICIIA Fig. 4).

    Trains nothing.
    """
    from studies.iciia.attention import study_attention

    found = study_attention(_of_one_label(run, "attention"), seeds_of_run(seeds, run), typed(run), targets)
    write_study(run, "attention", found, as_json)


@study_app.command(rich_help_panel=ICIIA)
def windows(
    run: MadeRun,
    windows: Annotated[str, typer.Option(help="attention windows in photos, comma-separated")] = "16,32,46,64",
    seeds: SeedsOfRun = "",
    targets: Targets = 8,
    as_json: AsDocument = False,
) -> None:
    """Measure heads at attention windows other than in training.

    Reports accuracy and cost of exported heads. Trains nothing.
    """
    from studies.iciia.windows import study_windows

    opened, sizes = _of_one_label(run, "windows"), integers(windows, "--windows")
    write_study(run, "windows", study_windows(opened, seeds_of_run(seeds, run), typed(run), sizes, targets), as_json)


@study_app.command(rich_help_panel=ICIIA)
def memories(
    run: MadeRun,
    histories: Annotated[str, typer.Option(help="history lengths, comma-separated")] = "16,64,256,1024,4096",
    seeds: SeedsOfRun = "",
    people: Annotated[int, typer.Option(min=1, help="maximum number of people")] = 24,
    targets: Targets = 8,
    as_json: AsDocument = False,
) -> None:
    """Compare the newest with the most similar photos of a long history.

    Trains nothing.
    """
    from studies.iciia.history_policies import study_memories

    opened, lengths = _of_one_label(run, "memories"), integers(histories, "--histories")
    found = study_memories(opened, seeds_of_run(seeds, run), typed(run), people, targets, lengths)
    write_study(run, "memories", found, as_json)


@study_app.command(rich_help_panel=ICIIA)
def labelled(run: MadeRun, as_json: AsDocument = False) -> None:
    """Add labelled baselines to RUN/results.json (ICIIA section 4.1).

    They are fine-tuning and prompt tuning with labels.
    """
    from refocus.cloud_train.documents import write_results
    from refocus.cloud_train.evaluate.report import print_summary
    from studies.iciia.labelled import with_labelled

    document = with_labelled(_of_one_label(run, "labelled"))
    write_results(document, run / "results.json")
    if as_json:
        print_json(document)
    else:
        print_summary(document)


# ---- banks of TAPER


@study_app.command(rich_help_panel=TAPER)
def taper(
    run: MadeRun,
    rows: Annotated[str, typer.Option(help="row names, separated by ';'; * is a wildcard; default: all")] = "",
    seeds: SeedsOfRun = "",
    as_json: AsDocument = False,
) -> None:
    """Compute TAPER Tables 2 and 4 to 7 and check the paper's orders.

    Trains missing models.
    """
    from refocus.cloud_train.runs.taper import TaperRun
    from studies.banks.tables import study_taper

    found = study_taper(TaperRun(run), seeds_of_run(seeds, run), typed(run), words(rows, ";"))
    write_study(run, "taper", found, as_json)


@study_app.command(rich_help_panel=TAPER)
def ways(run: MadeRun, seeds: SeedsOfRun = "", as_json: AsDocument = False) -> None:
    """Vary the number of classes of a task (TAPER Table 3).

    Banks are trained and evaluated on tasks of 20 classes, and of 5 to 100.
    """
    from refocus.cloud_train.runs.taper import TaperRun
    from studies.banks.tables import study_ways

    write_study(run, "ways", study_ways(TaperRun(run), seeds_of_run(seeds, run), typed(run)), as_json)


@study_app.command(rich_help_panel=TAPER)
def bases(
    run: MadeRun,
    counts: Annotated[str, typer.Option(help="comma-separated numbers of bases, besides the run's own")] = "1",
    seeds: SeedsOfRun = "",
    as_json: AsDocument = False,
) -> None:
    """Compare banks with fewer bases on the same tasks (TAPER Table 5).

    One basis per domain is an example. Trains missing banks.
    """
    from refocus.cloud_train.runs.taper import TaperRun
    from studies.banks.tables import study_bases

    wanted = integers(counts, "--counts")
    found = study_bases(TaperRun(run), seeds_of_run(seeds, run), typed(run), wanted)
    write_study(run, "bases", found, as_json)


@study_app.command(rich_help_panel=TAPER)
def bank(run: MadeRun, seeds: SeedsOfRun = "", to: To = BOTH_RUNTIMES, as_json: AsDocument = False) -> None:
    """Measure exported banks as a device uses them.

    Reports accuracy, the time of a photo, and the time of condensing.
    """
    from refocus.cloud_train.evaluate.bank_replay import replay_bank
    from refocus.cloud_train.evaluate.bank_tasks import TASKS
    from refocus.cloud_train.runs.taper import TaperRun

    write_study(
        run, "bank", replay_bank(TaperRun(run), seeds_of_run(seeds, run), TASKS, typed(run), words(to)), as_json
    )


@study_app.command(rich_help_panel=TAPER)
def improvement(run: MadeRun, seeds: SeedsOfRun = "", as_json: AsDocument = False) -> None:
    """Evaluate owners without a task description (TAPER Fig. 3).

    Uses exported banks.
    """
    from refocus.cloud_train.evaluate.self_improvement import study_improvement
    from refocus.cloud_train.runs.taper import TaperRun

    write_study(run, "improvement", study_improvement(TaperRun(run), seeds_of_run(seeds, run), typed(run)), as_json)


@study_app.command(rich_help_panel=TAPER)
def growth(run: MadeRun, seeds: SeedsOfRun = "", as_json: AsDocument = False) -> None:
    """Add a basis for a new domain to a trained bank (TAPER section 3.4)."""
    from refocus.cloud_train.runs.taper import TaperRun
    from studies.banks.growth import study_growth

    write_study(run, "growth", study_growth(TaperRun(run), seeds_of_run(seeds, run), typed(run)), as_json)


# ---- federated runs


@study_app.command(rich_help_panel=FEDERATED)
def federated(
    run: Folder,
    programme: Programme = None,
    documents: Documents = FEDERATED_DOCUMENTS,
    data: Data = "",
    jobs: Annotated[str, typer.Option(help="comma-separated job names, * is a wildcard; default: all")] = "",
    processes: Annotated[int, typer.Option(min=1, help="jobs at a time, each in a process of one thread")] = 1,
) -> None:
    """Run a programme of federated tables as a queue of jobs."""
    from refocus.cloud_train.errors import UsageError
    from studies.federated.programme import run_queue

    queue = _queue(run, programme, documents, data)
    failed = run_queue(queue, words(jobs), processes)
    done = [job for job in queue.jobs() if queue.document(job) is not None]
    typer.echo(f"{len(done)} of {len([*queue.jobs()])} jobs are done; documents: {queue.documents}")
    if failed:
        raise UsageError(f"{len(failed)} jobs failed: {', '.join(failed)}; what is wrong is said above")


@study_app.command(rich_help_panel=FEDERATED)
def bundles(
    run: Folder,
    jobs: Annotated[str, typer.Option(help="name of one job, such as TABLE.METHOD.seed-0")],
    programme: Programme = None,
    documents: Documents = FEDERATED_DOCUMENTS,
    data: Data = "",
    to: To = BOTH_RUNTIMES,
) -> None:
    """Evaluate the clients of a federated job through exported bundles.

    Each client uses their own file, another client's, and none.
    """
    from refocus.cloud_train.documents import write_results
    from refocus.cloud_train.errors import UsageError
    from studies.federated.bundle_accuracy import bundle_accuracy

    queue, path = _queue(run, programme, documents, data), run / "studies" / "bundles.json"
    known = {job.name: job for job in queue.jobs() if job.seed is not None}
    if jobs not in known:
        raise UsageError(f"--jobs {jobs}: expected the name of one training, such as {next(iter(known))}")
    job = known[jobs]
    command = typed_command({str(run): "RUN", data: "DATA"} if data else {str(run): "RUN"}, STUDIES)
    document = bundle_accuracy(queue.run(job.table), job.method, job.seed or 0, queue.rates(job), words(to), command)
    write_results(document, path)
    for row in document["rows"]:
        through = ", ".join(f"{target} {found['own']}" for target, found in row["targets"].items())
        typer.echo(f"{row['client']}: of {row['photos']} photos PyTorch recognises {row['pytorch']}, {through}")
    typer.echo(f"results: {path}")


def _queue(run: Path, programme: Path | None, documents: Path, data: str) -> Queue:
    from refocus.cloud_train.errors import UsageError
    from studies.federated.programme import Queue, load_programme

    if programme is None:
        raise UsageError("this study needs its tables: --programme docs/federated-programme.toml")
    return Queue(load_programme(programme), Path(data or os.environ.get("REFOCUS_DATA", ".")), run, documents)


@study_app.command(rich_help_panel=FEDERATED)
def sensitivity(run: MadeRun, seeds: SeedsOfRun = "", as_json: AsDocument = False) -> None:
    """Keep each kind of layer local in turn (FedPerfix Table 1).

    Each is kept local alone and with the classifier.
    """
    from refocus.cloud_train.federated.run import FederatedRun
    from studies.federated.sensitivity import study_sensitivity

    write_study(run, "sensitivity", study_sensitivity(FederatedRun(run), seeds_of_run(seeds, run), typed(run)), as_json)


# ---- photo sets, without a run


@study_app.command(rich_help_panel=PHOTO_SETS)
def run(
    file: Annotated[Path, typer.Argument(help="experiment, a TOML file such as studies/streams/stream.toml")],
    run: Annotated[Path | None, typer.Argument(help="folder of the results, new or one to go on with")] = None,
    data: Annotated[str, typer.Option(help="folder of photo sets and weights: the setting settings.source")] = "",
    known: Annotated[
        str, typer.Option(help="photo set of known classes, instead of those of the grid: the setting settings.known")
    ] = "",
    unknown: Annotated[
        str, typer.Option(help="comma-separated photo sets of other classes: the setting settings.unknown")
    ] = "",
    seeds: Annotated[str, typer.Option(help="comma-separated random seeds; default: those of the file")] = "",
    cells: Annotated[
        str, typer.Option(help="comma-separated names of cells, such as 'office-31:*'; * is a wildcard; default: all")
    ] = "",
    changes: Changes = None,
    show: Show = False,
    as_json: AsDocument = False,
) -> None:
    """Evaluate and compare the cells of an experiment.

    Cells that were evaluated before are not evaluated again.
    """
    from refocus.cloud_train.errors import UsageError
    from refocus.cloud_train.settings import explained_toml
    from refocus.edge.files import write_file
    from studies.experiment import ExperimentPage, read_experiment, run_experiment
    from studies.report import pages, sections

    given = [f"seeds={seeds_of(seeds)}"] if seeds else []
    given += [f"settings.source={data}"] if data else []
    given += [f"settings.known={known}", 'grid.data=["own"]'] if known else []
    given += [f"settings.unknown={unknown}"] if unknown else []
    experiment = read_experiment(file, [*given, *(changes or ())])
    if show:
        typer.echo(explained_toml(experiment))
        return
    if run is None:
        raise UsageError(f"give the folder of the results: {STUDIES} run {file} RUN")
    parts = file.parts[file.parts.index("studies") :] if "studies" in file.parts else (file.name,)
    command = typed(run).replace(file.name, "/".join(parts))
    name, document = experiment.name, run_experiment(experiment, run, command, words(cells))
    shown = {name: ExperimentPage.of(experiment.page), **pages.STUDIES}
    write_study(run, name, document, as_json, shown)
    pictures: sections.Pictures = {}
    write_file(run / "studies" / f"{name}.md", sections.study_section(name, document, pictures, shown[name]))
    for picture, draw in pictures.items():
        (run / "pictures").mkdir(exist_ok=True)
        write_file(run / "pictures" / picture, draw())


@study_app.command(rich_help_panel=PHOTO_SETS)
def decoding(run: Folder, data: Data = "", as_json: AsDocument = False) -> None:
    """Compare decoding large JPEGs at a reduced size with full size.

    Reports labels, features and accuracy.
    """
    from studies.bench.decoding import study_decoding

    write_study(run, "decoding", study_decoding(data, run, typed(run)), as_json)


# ---- documents


def typed(folder: Path, name: str = "RUN") -> str:
    """Return the typed command line with the folder replaced by a name.

    It contains no private path and may be published.
    """
    return typed_command({str(folder): name}, STUDIES)


def write_study(
    run: Path, name: str, document: dict[str, Any], as_json: bool, pages: Mapping[str, StudyPage] | None = None
) -> None:
    """Write a study's results document to its run, and print it.

    Args:
        run: folder of the study.
        name: name of the study.
        document: results document.
        as_json: print the document instead of its table.
        pages: pages by study; default: the published ones.
    """
    from refocus.cloud_train.documents import write_results
    from refocus.cloud_train.evaluate.report import show_study
    from studies.report.pages import STUDIES as PUBLISHED

    path = run / "studies" / f"{name}.json"
    write_results(document, path)
    show_study(document, path, as_json, pages or PUBLISHED)
