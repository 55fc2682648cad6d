"""The cloud side: data, backbones, the methods, training, evaluation and the demo."""

__all__ = [
    "backbones",
    "bench",
    "commands",
    "data",
    "demos",
    "documents",
    "errors",
    "evaluate",
    "federated",
    "locks",
    "methods",
    "pipeline",
    "progress",
    "release",
    "render",
    "runs",
    "service",
    "settings",
    "train",
]
