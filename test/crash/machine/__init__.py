"""The machine that the scenarios break: servers, disks, networks, clocks."""
