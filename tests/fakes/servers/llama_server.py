"""llama.cpp's server with a tiny model, as a separate process on loopback.

The model (2.4 MB) knows a few answers by heart. The
engine serves all three dialects. It comes from the package ``xllamacpp``, or it is the program
``llama-server``, built once from the sources in the package ``llama-cpp-python``.
"""

import fcntl
import importlib.util
import os
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from tests.fakes.optional_tools import skip_loudly, skip_or_fail

REPOSITORY = Path(__file__).parents[3]
MODEL = Path(__file__).parents[4] / "shared" / "engines" / "tiny.gguf"
CONTEXT_TOKENS = 131_072  # for two requests at once
START_WITHIN_S = 60

Build = Literal["xllamacpp", "llama-server"]
SOURCES: Final = "llama-cpp-python==0.3.36"
"""The package whose source distribution contains llama.cpp."""
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
"""The program is kept here between runs, because its build takes minutes (``BUILD_WITHIN_S``)."""
BUILD_WITHIN_S: Final = 1200
"""Timeout of a test that may have to build: 8 minutes of CPU time, shared with other tests."""
BUILD_OPTIONS: Final = (
    "CMAKE_BUILD_TYPE=Release", "CMAKE_CXX_FLAGS_RELEASE=-O0", "BUILD_SHARED_LIBS=OFF",
    "GGML_NATIVE=OFF", "GGML_OPENMP=OFF", "LLAMA_CURL=OFF", "LLAMA_OPENSSL=OFF",
    "LLAMA_BUILD_UI=OFF", "LLAMA_USE_PREBUILT_UI=OFF", "LLAMA_BUILD_TESTS=OFF",
    "LLAMA_BUILD_EXAMPLES=OFF", "LLAMA_BUILD_APP=OFF",
)  # fmt: skip


def skip_without_model() -> None:
    """Skip the test and print a warning if the model is missing."""
    if not MODEL.exists():
        skip_loudly(f"NO REAL ENGINE: the tiny model is not beside this clone ({MODEL})")


def _xllamacpp(port: int) -> list[str]:
    if importlib.util.find_spec("xllamacpp") is None:
        skip_or_fail("NO REAL ENGINE: the package xllamacpp is not installed")
    return [sys.executable, "-m", __name__, str(MODEL), str(port)]


def _llama_server(port: int) -> list[str]:
    options = ["--ctx-size", str(CONTEXT_TOKENS), "--parallel", "2", "--threads", "1"]
    options += ["--swa-full", "--temp", "0", "--alias", "tiny", "--port", str(port)]
    return [str(built_llama_server()), "--model", str(MODEL), *options]


COMMANDS: Final[dict[Build, Callable[[int], list[str]]]] = {
    "xllamacpp": _xllamacpp,
    "llama-server": _llama_server,
}


@contextmanager
def running_llama_server(log: Path, build: Build = "xllamacpp") -> Iterator[str]:
    """Start the engine and yield its URL; ``log`` receives its output."""
    skip_without_model()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = COMMANDS[build](port)
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - the test wrote this command
            command, stdout=output, stderr=output, cwd=REPOSITORY
        )
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_healthy(url, process, log)
        yield url
    finally:
        process.kill()
        process.wait(30)


def built_llama_server() -> Path:
    """Return the program ``llama-server``; build it first if the cache does not have it."""
    program = CACHE / "messages-bridge-tests" / SOURCES / "llama-server"
    program.parent.mkdir(parents=True, exist_ok=True)
    with program.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of pytest may be building it
        if not program.exists():
            _build(program)
    return program


def _build(program: Path) -> None:
    if missing := [tool for tool in ("cmake", "g++") if shutil.which(tool) is None]:
        skip_loudly(f"NO LLAMA-SERVER: it cannot be built without {', '.join(missing)}")
    with tempfile.TemporaryDirectory(prefix="llama-server-") as name:
        folder = Path(name)
        _run("cmake", "-S", str(_sources(folder)), "-B", name, *(f"-D{o}" for o in BUILD_OPTIONS))
        _run("cmake", "--build", name, "--target", "llama-server", "--parallel", "2")
        arriving = program.with_name(f"{program.name}.{os.getpid()}")
        shutil.copy2(folder / "bin" / program.name, arriving)
        arriving.rename(program)  # a build that is killed leaves no half of the program


def _sources(folder: Path) -> Path:
    """Download the package into ``folder`` and return the path of llama.cpp's sources."""
    # The build backend must be present, because pip asks it for the package's metadata.
    _run(sys.executable, "-m", "venv", str(folder / "pip"))
    pip = str(folder / "pip" / "bin" / "pip")
    _run(pip, "install", "--quiet", "scikit-build-core")
    _run(pip, "download", "--quiet", "--no-deps", "--no-build-isolation",
         "--no-binary", ":all:", "--dest", str(folder), SOURCES)  # fmt: skip
    (archive,) = folder.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(folder, filter="data")
    return archive.with_name(archive.name.removesuffix(".tar.gz")) / "vendor" / "llama.cpp"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the test wrote this command
    if done.returncode:
        skip_loudly(f"NO LLAMA-SERVER: {command[0]} failed: {done.stderr[-500:]}")


def _wait_until_healthy(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_WITHIN_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):  # noqa: S310 - the URL is on loopback
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
