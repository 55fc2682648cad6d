"""What is measured: stages, personal weights, cold start, switching, condensing, service."""
