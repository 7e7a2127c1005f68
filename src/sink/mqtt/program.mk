# Debian: libmosquitto libmosquitto-dev
SINK_MODULES_mqtt = libmosquitto
