"""The model card of a bundle: metadata for the hub's search, and its contents for people."""

from __future__ import annotations

from refocus.edge.bundle import Manifest

CARD = "README.md"


def card_text(manifest: Manifest, repository: str, sha256: str, licence: str = "", tags: tuple[str, ...] = ()) -> str:
    """Markdown with a metadata block. All figures come from the bundle's own manifest.

    Args:
        repository: "organisation/name".
        sha256: of the manifest.
        licence: as the hub names it; "" leaves it out.
        tags: besides "refocus" and the runtimes.
    """
    from huggingface_hub import EvalResult, ModelCardData

    results = [
        EvalResult(
            task_type="image-classification",
            dataset_type=artifact.accuracy.data,
            dataset_name=artifact.accuracy.data,
            metric_type="accuracy",
            metric_value=artifact.accuracy.delivered,
            metric_name=f"accuracy with history, {artifact.target}",
        )
        for artifact in manifest.artifacts
        if artifact.accuracy is not None
    ]
    runtimes = sorted({artifact.runtime for artifact in manifest.artifacts})
    data = ModelCardData(
        library_name="refocus",
        license=licence or None,
        pipeline_tag="image-classification",
        tags=["refocus", *runtimes, *tags],
        model_name=manifest.name if results else None,
        eval_results=results or None,
        metrics=["accuracy"] if results else None,
        refocus={"manifest_sha256": sha256, "schema_version": manifest.schema_version},
    )
    return f"---\n{data.to_yaml()}\n---\n\n{_body(manifest, repository, sha256)}"


def _body(manifest: Manifest, repository: str, sha256: str) -> str:
    lines = [f"# {manifest.name}", "", "A Refocus bundle: image recognition on the device.", ""]
    for head in manifest.heads:
        personal = head.personalisation
        reads = f"reads {personal.window} photos of history" if personal.form != "none" else "reads no history"
        shares = ", estimates class shares" if personal.shares is not None else ""
        lines.append(f"- head `{head.name}`: {len(head.labels)} classes; {personal.method}, {reads}{shares}")
    lines += ["", "| program | target | bytes | largest difference to PyTorch |", "|---|---|---|---|"]
    for artifact in manifest.artifacts:
        parity = artifact.parity
        found = f"{parity.max_abs:.2g} on {parity.photos} photos" if parity else artifact.parity_note or "not measured"
        name = f"{artifact.role} {artifact.head}".strip()
        lines.append(f"| {name} | {artifact.target} | {artifact.size_bytes} | {found} |")
    command = f"refocus pull hf://{repository} --out bundle --sha256 {sha256}"
    return "\n".join([*lines, "", "```sh", command, "refocus check bundle", "```", ""])
