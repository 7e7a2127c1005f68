# The sink protocol and the sink programs.  Included by the top-level Makefile
# after PGXS; src/sink/protocol is linked into the server library, too.

SINK_BINDIR = src/sink/bin
SINK_BUILDDIR = src/sink/build
sinkdir = $(pkglibdir)/idempotency-sinks

SINK_CFLAGS = -std=gnu11 -O2 -g -Wall -Wextra -Werror -fno-strict-aliasing \
	-fwrapv -fstack-protector-strong -MMD -MP -I$(srcdir)/src
