"""Images: from a recipe to a file that the site's container runtime starts. Standard library only.

    recipe + extras --engine (podman, docker)--> image in the engine's store
        --mksquashfs--> .sqsh for pyxis      --apptainer--> .sif

`make.py` runs all steps; the other files have one step each.
"""
