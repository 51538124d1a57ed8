"""Runs a command with standard error on a terminal of $TERMINAL_COLUMNS (80): what it wrote there goes to a file. Prints the seconds it took."""
import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time

out, command = sys.argv[1], sys.argv[2:]
master, slave = pty.openpty()
fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, int(os.environ.get("TERMINAL_COLUMNS", "80")), 0, 0))
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
