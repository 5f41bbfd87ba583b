"""Fault injection: runs that are killed, cut off or given failing system calls, resumed, and compared with an
uninterrupted run."""
