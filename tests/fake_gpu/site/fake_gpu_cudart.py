"""Let vLLM call the device by VLLM_CUDART_SO_PATH: torch also loads the real runtime, which vLLM would find."""

from vllm.distributed.device_communicators import cuda_wrapper

cuda_wrapper.find_loaded_library = lambda name: None
