"""Studies: what a run is worth, by whole tables: accuracy, ablations, histories, federated orders."""
