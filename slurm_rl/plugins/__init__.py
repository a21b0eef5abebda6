"""Optional features, one package each. The layers never import them; see launch/hooks.py."""
