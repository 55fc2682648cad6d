"""The commands of training, studies, federation, pipeline, release and service."""

__all__ = ["register"]
