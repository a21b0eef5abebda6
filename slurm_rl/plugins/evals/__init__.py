"""Evaluation jobs of saved checkpoints (eval.on_checkpoint)."""
