"""A verifier with a hanging import, as on an unresponsive disk."""

import time

time.sleep(600)
