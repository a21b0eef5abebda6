import sys

from tests.fake_gpu.machine import main

sys.exit(main(sys.argv[1:]))
