"""Witness 3: what the operators of the model code really do, recorded without a weight and replayed in FP64."""
