"""What all tests need of the process that runs them."""

import signal

# A shell that starts the tests in the background has them ignore interrupts, `nohup` has them ignore SIGHUP; and the
# children that they interrupt would too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
