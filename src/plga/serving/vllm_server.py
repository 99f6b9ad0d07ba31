"""vLLM's OpenAI server, which ends when it is told to: ``python -m plga.serving.vllm_server --model DIR``.

On SIGTERM vLLM kills its engine and then lets clients that still stream finish. What the engine had no time to say to
them they wait for without end, and so does the server.
"""

from functools import partial

GRACE_SECONDS = 10  # after that, clients that still wait are cut off

if __name__ == "__main__":
    from vllm.entrypoints.launchers.api_server import entry

    entry.run_server = partial(entry.run_server, timeout_graceful_shutdown=GRACE_SECONDS)  # goes on to uvicorn
    entry.main()
