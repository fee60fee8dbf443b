"""llama.cpp's server with a tiny model, as a separate process on loopback.

The model (2.4 MB) knows a few answers by heart; ``../shared/engines/README.md`` lists them. The
engine comes from the package ``xllamacpp`` and serves all three dialects.
"""

import importlib.util
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fakes.optional_tools import skip_loudly, skip_or_fail

REPOSITORY = Path(__file__).parents[3]
MODEL = Path(__file__).parents[4] / "shared" / "engines" / "tiny.gguf"
CONTEXT_TOKENS = 131_072  # for two requests at once
START_WITHIN_S = 60


def skip_without_engine() -> None:
    """Skip the test with a warning if the engine or its model is missing."""
    if importlib.util.find_spec("xllamacpp") is None:
        skip_or_fail("NO REAL ENGINE: the package xllamacpp is not installed")
    if not MODEL.exists():
        skip_loudly(f"NO REAL ENGINE: the tiny model is not beside this clone ({MODEL})")


@contextmanager
def running_llama_server(log: Path) -> Iterator[str]:
    """Start the engine and yield its URL; ``log`` receives its output."""
    skip_without_engine()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with log.open("wb") as output:
        command = [sys.executable, "-m", __name__, str(MODEL), str(port)]
        process = subprocess.Popen(  # noqa: S603 - our own command line
            command, stdout=output, stderr=output, cwd=REPOSITORY
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(url, process, log)
        yield url
    finally:
        process.kill()
        process.wait(30)


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - loopback
                return
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)
    raise AssertionError(f"the engine did not start; its log:\n{log.read_text(errors='replace')}")


def serve(model: str, port: int) -> None:
    """Serve the model until the process ends. Temperature 0: each answer is always the same."""
    import signal

    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.model_alias = model, {"tiny"}
    params.port = port  # on 127.0.0.1, the default
    params.n_ctx, params.n_parallel, params.cpuparams.n_threads = CONTEXT_TOKENS, 2, 1
    params.swa_full = True
    params.sampling.temp = 0.0
    _server = xllamacpp.Server(params)  # serves as long as the object exists
    signal.pause()


if __name__ == "__main__":
    serve(sys.argv[1], int(sys.argv[2]))
