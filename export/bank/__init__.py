"""Writing TAPER banks, with batch norms folded."""

from refocus.export.bank.batchnorm_folding import find_folds, fold, folded_structure
from refocus.export.bank.write import BANK_TARGETS, BankSource, export_bank, read_source

__all__ = [
    "BANK_TARGETS",
    "BankSource",
    "export_bank",
    "find_folds",
    "fold",
    "folded_structure",
    "read_source",
]
