"""TAPER: bank of bases, tasks, task descriptions, three training stages."""
