#!/usr/bin/python3
"""The MCP server of the AgentDojo bench, as clawk sees it: passes lines between its standard streams and the bench, by two pipes."""
import sys
import threading

out = open("./io/to", "w")
back = open("./io/from")


def answers():
    for line in back:
        sys.stdout.write(line)
        sys.stdout.flush()


threading.Thread(target=answers, daemon=True).start()
for line in sys.stdin:
    out.write(line)
    out.flush()
