"""Runs a command with standard error on a terminal: what it wrote there goes to a file. Prints the seconds it took."""
import os
import pty
import subprocess
import sys
import time

out, command = sys.argv[1], sys.argv[2:]
master, slave = pty.openpty()
start = time.monotonic()
done = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=slave)
os.close(slave)
with open(out, "wb") as f:
    while True:
        try:
            data = os.read(master, 4096)
        except OSError:  # the other end is closed
            break
        if not data:
            break
        f.write(data)
rc = done.wait()
print(f"{time.monotonic() - start:.2f}")
sys.exit(rc)
