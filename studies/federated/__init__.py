"""Studies of federated training: tables of pFedPG, FedPerfix and FedCLIP."""

__all__ = ["bundle_accuracy", "deployment_trial", "orders", "programme", "sensitivity"]
