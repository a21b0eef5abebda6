"""A verifier on a disk that never answers."""

import time

time.sleep(600)
