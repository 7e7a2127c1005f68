"""The machine that faults are made on: servers, disks, networks, clocks."""
