"""Published measurements that no command of ``refocus bench`` needs."""

__all__ = ["condensing", "install", "install_process", "service", "service_client", "switching"]
