"""The rig's side of the line: answers requests, one line of JSON each, over pipes or TCP.

Copy this file to the computer of the rig; it needs Python 3.8 or newer and nothing else. A rig is an object with three methods:

    reset()      bring the rig to where experiments start
    run(params)  one experiment; returns the reward, or {"objective": reward, "constraints": {name: value}}
    stop()       motor off, at once; may be called from another thread, at any time, more than once

Every error, a closed line and the end of this program stop the rig.
"""

from __future__ import annotations

import json
import signal
import socket
import sys
import threading


def answer(rig, line, lock):
    """The answer to one request, as a line. A "stop" does not wait for the lock."""
    reply = {}
    try:
        request = json.loads(line)
        reply["id"] = request["id"]
        if request["command"] == "stop":
            rig.stop()
        else:
            with lock:
                _execute(rig, request, reply)
    except Exception as error:
        rig.stop()
        reply["error"] = f"{type(error).__name__}: {error}"
    return json.dumps(reply) + "\n"


def _execute(rig, request, reply):
    if request["command"] == "run":
        result = rig.run(dict(request["params"]))
        reply.update(result if isinstance(result, dict) else {"objective": float(result)})
    elif request["command"] == "reset":
        rig.reset()
    else:
        raise ValueError(f"unknown command {request['command']!r}")


def serve_pipes(rig):
    """Answer requests from standard input on standard output until it closes or the program is terminated."""
    sink, sys.stdout = sys.stdout, sys.stderr  # whatever is printed must not end up between the answers
    lock = threading.Lock()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        for line in sys.stdin:
            sink.write(answer(rig, line, lock))
            sink.flush()
    finally:
        rig.stop()


def serve_socket(rig, host="127.0.0.1", port=0, ready=lambda port: None):
    """Answer requests over TCP, for ever; `ready` is called with the port.

    Experiments come one at a time. A "stop" is executed at once, on whatever connection it comes.
    """
    one_at_a_time = threading.Lock()

    def talk(connection):
        try:
            with connection, connection.makefile("r") as lines:
                for line in lines:
                    connection.sendall(answer(rig, line, one_at_a_time).encode())
        except OSError:
            pass
        finally:
            rig.stop()

    with socket.create_server((host, port)) as server:
        ready(server.getsockname()[1])
        while True:
            connection, _ = server.accept()
            threading.Thread(target=talk, args=(connection,), daemon=True).start()
