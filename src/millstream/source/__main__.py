"""`python -m millstream.source SPOOL`: the sender of a spool. Started by a regulator, not by people."""

from .launch import main

main()
