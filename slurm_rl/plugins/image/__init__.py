"""Images: from a recipe to a file that the site's container runtime starts. Standard library alone.

    recipe + extras --engine (podman, docker, buildah)--> image in the engine's store
        --mksquashfs--> .sqsh for pyxis      --apptainer--> .sif

`make.py` is the way from end to end; the other files are one step each.
"""
