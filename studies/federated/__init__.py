"""Studies of federated training: the tables of pFedPG, FedPerfix and FedCLIP."""

__all__ = ["bundle_accuracy", "deployment_trial", "orders", "programme", "sensitivity"]
