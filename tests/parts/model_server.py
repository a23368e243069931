"""A small real language model on loopback: llama.cpp's server from a wheel, speaking OpenAI's and Anthropic's protocols.

usage: model_server.py MODEL.gguf PORT TEMPLATE.jinja
Prints `ready PORT` when it answers; ends on SIGTERM, SIGINT, or when its standard input is closed.
"""

import os
import signal
import sys
import threading

import xllamacpp


def parameters(model, port, template):
    p = xllamacpp.CommonParams()
    p.model.path = model
    p.hostnames = ["127.0.0.1"]
    p.port = port
    p.n_ctx = 4096
    p.n_parallel = 1
    # So small a model may not find an end; a turn must.
    p.n_predict = 256
    p.sampling.temp = 0.0
    # Waiting threads spin; beside a test suite one thread is the fastest.
    for cpu in (p.cpuparams, p.cpuparams_batch):
        cpu.n_threads = 1
        cpu.poll = 0
    # A cached prompt rounds differently, and with it the choice between near-equal words.
    p.cache_prompt = False
    p.use_jinja = True
    with open(template, encoding="utf-8") as text:
        p.chat_template = text.read()
    p.ui = False
    return p


def end_with_parent():
    """The test that started this may be killed; its end of the pipe closes then."""
    while sys.stdin.buffer.read(4096):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main():
    model, port, template = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    wanted = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
    server = xllamacpp.Server(parameters(model, port, template))
    threading.Thread(target=end_with_parent, daemon=True).start()
    print("ready", port, flush=True)
    signal.sigwait(wanted)
    del server
    # Joining idle workers takes seconds and saves nothing.
    os._exit(0)


main()
