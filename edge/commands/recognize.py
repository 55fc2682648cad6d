"""``refocus recognize``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from refocus import edge
from refocus.edge.commands import options
from refocus.edge.commands.answers import exit_if, print_answers
from refocus.edge.commands.news import logger
from refocus.edge.errors import RefocusError
from refocus.edge.files import check_output

if TYPE_CHECKING:
    from refocus.edge.recognize.explain import Explanation


DEFAULT_PROFILE = "default"


def recognize(
    bundle: options.BundleOrPhoto,
    photos: Annotated[
        list[Path], options.optional(list, "photo files, or clips of a bundle for clips, recognised in this order")
    ],
    profiles: options.Profiles,
    profile: Annotated[str, typer.Option(help="profile whose history is read and extended")] = DEFAULT_PROFILE,
    top: options.Top = 3,
    remember: Annotated[bool, typer.Option(help="store the photos' features in the history")] = True,
    explain: Annotated[
        bool, typer.Option("--explain", help="print the history photos that each answer depends on")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="with --explain: write the explanation as an image, FILE.png")
    ] = None,
    threads: options.Threads = 0,
    head: options.Head = "",
    runtime: options.Runtime = "",
    precision: options.Precision = "",
    provider: options.Provider = "",
    refuse_fallback: options.RefuseFallback = False,
    memory: Annotated[str, typer.Option(help="history selection: newest; spread or similar (window heads)")] = "newest",
    time_limit: Annotated[
        float, typer.Option(min=0, help="time limit of one inference in seconds (onnxruntime); 0: no limit")
    ] = 0,
    shares: options.Shares = True,
    head_target: options.HeadTarget = "",
    as_json: options.Json = False,
) -> None:
    """Recognise photos, or clips, each with the help of those this profile has seen before.

    Status 3: done, but some photos have no answer; they are listed.
    """
    from refocus.edge.recognize.explain import explain as explain_answer
    from refocus.edge.recognize.explain import save_picture, text

    if out is not None and (not explain or out.suffix.lower() != ".png"):
        raise RefocusError(f"--out {out}: expected --explain and a file name that ends in .png")
    if out is not None:
        check_output(out)  # before anything is remembered
    explanations = []
    bundle, photos = options.bundle_and_photos(bundle, photos)
    weights = options.personal_weights(profiles)
    reads = remember or options.has_history(profile, profiles) or (weights is not None and weights.holds(profile))
    if not reads and profile != DEFAULT_PROFILE:
        options.existing_path(profile, profiles)
    with edge.Recognizer.open(
        bundle,
        profile if reads else None,
        profiles=profiles,
        runtime=runtime,
        precision=precision,
        threads=threads,
        head=head,
        provider=provider,
        allow_fallback=not refuse_fallback,
        memory=memory,
        time_limit=time_limit,
        shares=shares,
        head_target=head_target,
    ) as recognizer:
        if recognizer.head_passed_over:
            logger.warning(recognizer.head_passed_over)
        told = str(recognizer.history.recovered) if recognizer.history and recognizer.history.recovered else ""
        if told:
            logger.warning(f"{profile}: {told}")

        def tell(photo: Path, answer: edge.Answer) -> tuple[dict[str, Any], str]:
            explanation = explain_answer(answer, recognizer.card.labels, str(photo.resolve()), top)
            explanations.append(explanation)
            row = _row(photo, answer, explanation)
            reads = recognizer.card.personalisation.form != "none" or answer.shared is not None
            guess = "" if answer.is_known else "unknown, best guess: "
            mode = f"  ({_mode(row, explanation)})" if reads else ""
            line = f"{photo}: {guess}{text(explanation.delivered)}{mode}"
            if explain:
                return {**row, "explanation": explanation.as_dict()}, "\n".join([line, *explanation.lines()])
            return row, line

        failed = print_answers(
            photos,
            lambda photo: recognizer.recognize(photo, remember=remember),
            tell,
            ("trust", "history"),
            as_json,
            told,
        )
    if out is not None and explanations:
        save_picture(explanations, out)
    exit_if(failed, len(photos))


def _row(photo: Path, answer: edge.Answer, explanation: Explanation) -> dict[str, Any]:
    """One photo's answer in the JSON output."""
    row: dict[str, Any] = {
        "photo": str(photo),
        "answer": [shown._asdict() for shown in explanation.delivered],
        "confidence": answer.confidence,
        "trust": answer.trust,
        "history": len(answer.attention) - 1,
    }
    if answer.rejection is not None:
        row |= {"known": answer.is_known, "known_score": answer.known_score, "rejection": answer.rejection}
    if answer.thresholds is not None:
        row["labels"] = [name for name, _ in answer.label_set]
    if answer.shared is not None:
        row["shares"] = {name: getattr(explanation.shares, name) for name in ("photos", "trust", "moved")}
    return row


def _mode(row: dict[str, Any], explanation: Explanation) -> str:
    from refocus.edge.recognize.explain import number_of

    read = f"history of {number_of(row['history'])}, trust {row['trust']:.2f}" if row["history"] else ""
    counted = explanation.counted
    shares = f"shares of {number_of(counted.photos)}, trust {counted.trust:.2f}" if counted is not None else ""
    before = explanation.shares.photos if explanation.shares is not None else 0
    none = f"{number_of(before)} before, none counts for a label" if before else "no history yet"
    return "; ".join(filter(None, (read, shares))) or none
