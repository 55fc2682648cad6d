"""``refocus pipeline``: retrain, judge, export and release, again and again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from refocus.edge.commands import Json, print_json, print_result

if TYPE_CHECKING:
    from refocus.cloud_train.pipeline.run import Outcome

app = typer.Typer(help="Retraining pipeline: from new photos to a gated, signed release.", no_args_is_help=True)

FolderOption = Annotated[Path, typer.Option(help="folder of the pipeline: its runs, records and current release")]
ConfigOption = Annotated[Path, typer.Option(help="settings file (TOML), as refocus pipeline init writes it")]


@app.command()
def init(config: Annotated[Path, typer.Argument(help="output file for the settings")] = Path("pipeline.toml")) -> None:
    """Write settings to start from, with what each means."""
    from refocus.cloud_train.errors import UsageError
    from refocus.edge.files import write_file

    if config.exists():
        raise UsageError(f"{config} is there already; choose another file")
    write_file(config, (Path(__file__).parents[1] / "pipeline" / "default.toml").read_bytes())
    typer.echo(f"wrote {config}; refocus pipeline run --config {config}")


@app.command()
def run(config: ConfigOption = Path("pipeline.toml"), folder: FolderOption = Path("pipeline")) -> None:
    """Retrain once: photos, features, head, gates, targets, release, report."""
    from refocus.cloud_train.pipeline.run import run_pipeline

    _tell(run_pipeline(config, folder))


@app.command()
def resume(folder: FolderOption = Path("pipeline")) -> None:
    """Go on with a run that was stopped; what it did is not done again."""
    from refocus.cloud_train.pipeline.run import resume_pipeline

    _tell(resume_pipeline(folder))


@app.command()
def show(folder: FolderOption = Path("pipeline"), as_json: Json = False) -> None:
    """List runs with what they came to, and which release is the current one."""
    from refocus.cloud_train.pipeline.run import runs_of

    rows, lines = [*runs_of(folder)], []
    for row in rows:
        said = {"released": f"release {row['release']}", "refused": "; ".join(row["reasons"])}.get(row["state"], "")
        lines.append(f"{row['run']}  {row['state']:<9}{'  current' if row['current'] else '         '}  {said}")
    print_result(rows, lines, as_json)


@app.command()
def gates(folder: FolderOption = Path("pipeline"), as_json: Json = False) -> None:
    """Show the test people's accuracy and what each gate found, of every run that judged people."""
    from refocus.cloud_train.pipeline.gate_results import gates_document

    document, lines = gates_document(folder.resolve()), []
    for row in document["rows"]:
        accuracies = ", ".join(f"{name} {value:.1%}" for name, value in row["accuracy"].items())
        lines.append(f"{row['run']}  {row['state']}: {row['people']} people, {accuracies}")
        lines += [
            f"      {'passed' if gate['passed'] else 'FAILED'}  {gate['name']}: {gate['why']}" for gate in row["gates"]
        ]
    print_result(document, lines, as_json)


@app.command()
def rebuild(
    release: Annotated[int, typer.Argument(min=1, help="number of the release")],
    folder: FolderOption = Path("pipeline"),
) -> None:
    """Make a release again from its record, and compare every byte; fail if one differs."""
    from refocus.cloud_train.errors import PipelineError
    from refocus.cloud_train.pipeline.rebuild import rebuild as make_again
    from refocus.cloud_train.pipeline.run import model_name

    found = make_again(folder, release, model_name(folder))
    if not found.same:
        what = f": {', '.join(found.differs)}" if found.differs else ""
        raise PipelineError(f"release {release} came out with other bytes{what}; compare {found.bundle}")
    typer.echo(f"release {release}: the same bytes ({found.identity[:12]}), {found.bundle}")


@app.command()
def prepare(config: ConfigOption = Path("pipeline.toml"), folder: FolderOption = Path("pipeline")) -> None:
    """Begin a run whose steps Argo runs; print its folder, the workflow's parameter "work"."""
    from refocus.cloud_train.pipeline.run import prepare_run

    typer.echo(prepare_run(config, folder))


@app.command()
def argo(
    image: Annotated[str, typer.Option(help="container image that has refocus-edge with the extras cpu and pipeline")],
    claim: Annotated[str, typer.Option(help="persistent volume claim with the pipeline's folder")],
    store: Annotated[
        str, typer.Option(help="S3 URL for Metaflow's metadata and code packages, such as s3://bucket/refocus")
    ],
    mount: Annotated[str, typer.Option(help="mount path of the volume in the steps")] = "/refocus",
    endpoint: Annotated[str, typer.Option(help="S3 endpoint URL; default: Amazon's")] = "",
    secret: Annotated[str, typer.Option(help="Kubernetes secret with the store's credentials")] = "",
    namespace: Annotated[str, typer.Option(help="Kubernetes namespace")] = "default",
    cpu: Annotated[int, typer.Option(min=1, help="CPU cores per step")] = 2,
    memory: Annotated[int, typer.Option(min=512, help="memory per step, in MB")] = 8192,
    retries: Annotated[int, typer.Option(min=0, help="retries of a failed step")] = 0,
) -> None:
    """Print Argo's workflow template of the same steps; nothing is sent to a cluster."""
    from refocus.cloud_train.pipeline.argo import Cluster, workflow_template

    where = Cluster(image, claim, mount, store, endpoint, secret, namespace, cpu, memory)
    print_json(workflow_template(where, retries))


def _tell(outcome: Outcome) -> None:
    from refocus.cloud_train.errors import ReleaseError

    if not outcome.passed:
        more = f" (and {len(outcome.reasons) - 1} more)" if len(outcome.reasons) > 1 else ""
        raise ReleaseError(
            f"no release: {outcome.reasons[0]}{more}; {outcome.report} shows all, {outcome.work} keeps it"
        )
    typer.echo(f"release {outcome.release}: {outcome.bundle}\nreport: {outcome.report}")
