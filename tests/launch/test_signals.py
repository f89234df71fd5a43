"""A signal is answered at once, whatever the process is doing."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

BUSY = """
    import signal
    import sys
    import jax
    from troupe.launch import signals

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    # A shell without job control starts what is in its background with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    @jax.jit
    def compute(x):
        return jax.lax.while_loop(lambda x: x < 10**9, lambda x: jax.lax.rem(x + 1, 10**8), x)

    kind = sys.argv[1]
    stop = signals.Stop()
    within = signals.prompt() if kind == "prompt" else signals.caught(stop, print)
    compute = compute.lower(0).compile()
    with within:
        try:
            print("busy", flush=True)
            compute(0)  # One call, which never returns.
        except KeyboardInterrupt:  # It came between the two.
            sys.exit(print("troupe: interrupted.", file=sys.stderr) or 130)
"""


@pytest.fixture
def busy():
    """Starts a process that is within a long call; its words come line by line."""
    started = []

    def start(kind):
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(BUSY), kind],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XLA_FLAGS": ""},
        )
        started.append(process)
        assert process.stdout.readline() == "busy\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_within_a_long_call_answers_and_a_second_signal_ends_it(busy, number):
    process = busy("caught")
    process.send_signal(number)
    assert process.stdout.readline().startswith("stopping: a checkpoint is saved first; a second")
    assert process.poll() is None
    process.send_signal(number)
    # If the first came before the call began, the second finds what the system does with it:
    # to a shell both are the same.
    code = process.wait(60)
    assert (128 - code if code < 0 else code) == 128 + number


def test_any_other_command_ends_with_the_first(busy):
    process = busy("prompt")
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert process.stderr.read() == "troupe: interrupted.\n"
