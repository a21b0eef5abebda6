"""Parts that run inside other trainers."""
